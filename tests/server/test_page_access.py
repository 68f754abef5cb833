"""The token, checked with the real command: the dashboard is served by a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator

import pytest
from paceline.workers_compat.facade.pages import dashboard_paths

from tests.support.pages import serve_pages

TOKEN = "open-sesame"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "bokeh, token",
}
#: Trusted by the configuration of the scheduler under test; any other origin is only allowed by the wildcard.
TRUSTED = "http://trusted.example"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of the pages of a scheduler that requires `TOKEN`."""
    origins = "DASK_DISTRIBUTED__SCHEDULER__DASHBOARD__BOKEH_APPLICATION__ALLOW_WEBSOCKET_ORIGIN"
    environment = {"DASK_PACELINE__HTTP__TOKEN": TOKEN, origins: "['*', 'trusted.example']"}
    with serve_pages(tmp_path_factory.mktemp("scheduler"), environment) as port:
        yield port


def ask(port: int, path: str, method: str = "GET", **headers: str) -> int:
    """Return the status of a request on a separate connection."""
    return fetch(port, path, method, headers)[0]


def fetch(
    port: int, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, str, bytes]:
    """Return status, cookie and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        cookie = (answer.getheader("Set-Cookie") or "").split(";")[0]
        body = b"" if answer.status == 101 else answer.read()
        return answer.status, cookie, body
    finally:
        connection.close()


def send(port: int, *parts: bytes) -> bytes:
    """Send parts of requests with pauses between them. Return all answers; the last request must ask to close."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.2)
        data = b""
        with contextlib.suppress(
            ConnectionResetError
        ):  # the server closed it before it read the last part
            while piece := connection.recv(2**16):
                data += piece
        return data


def test_every_route_requires_the_token(port: int) -> None:
    assert ask(port, "/health") == 200
    status, _, body = fetch(port, "/sitemap.json", headers=BEARER)
    assert status == 200
    listed = [path for path in json.loads(body)["paths"] if not path.startswith("/statics/")]
    assert {"/status", "/metrics", "/individual-progress"} <= set(listed)
    pages = [
        *dashboard_paths(),
        "/groups",
        "/static/js/bokeh.min.js",
        "/status/autoload.js",
        "/status/ws",
    ]
    for path in sorted({*listed, *pages, "/statics/css/base.css", "/nothing"} - {"/health"}):
        assert ask(port, path) == 401, path
        assert ask(port, f"{path}?token=wrong") == 401, path
    for path in (
        "/status",
        "/workers",
        "/individual-progress",
        "/static/js/bokeh.min.js",
        "/metrics",
    ):
        assert ask(port, path, **BEARER) == 200, path


def test_browser_keeps_a_cookie(port: int) -> None:
    status, cookie, _ = fetch(port, f"/status?token={TOKEN}")
    assert status == 302 and cookie and TOKEN not in cookie
    assert ask(port, "/status", Cookie=cookie) == 200
    assert ask(port, "/status", Cookie=cookie + "0") == 401


def test_websockets_of_the_dashboard(port: int) -> None:
    own, foreign = f"http://127.0.0.1:{port}", "http://elsewhere.example"
    _, cookie, _ = fetch(port, f"/status?token={TOKEN}")
    assert ask(port, "/status/ws", Origin=own, **UPGRADE) == 401
    assert ask(port, "/status/ws", Origin=foreign, **UPGRADE) == 401
    assert ask(port, "/status/ws", Origin=own, Cookie=cookie, **UPGRADE) == 101
    assert ask(port, "/status/ws", Origin=own, **BEARER, **UPGRADE) == 101
    for origin in (foreign, "http://127.0.0.1", "null", "http://trusted.example.evil"):
        assert ask(port, "/status/ws", Origin=origin, Cookie=cookie, **UPGRADE) == 401, origin
        assert ask(port, "/eventstream", Origin=origin, Cookie=cookie, **UPGRADE) == 401, origin
    assert ask(port, "/status/ws", Origin=TRUSTED, Cookie=cookie, **UPGRADE) == 101


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "OPTIONS", "DELETE"])
def test_other_methods_require_the_token(port: int, method: str) -> None:
    for path in ("/status", "/status/ws", "/metrics"):
        assert ask(port, path, method) == 401
        assert ask(port, path, "SPAM") == 405


def test_requests_in_parts_require_the_token(port: int) -> None:
    for parts in (
        (b"GET /sta", b"tus HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
        (b"GET /status HTTP/1.1\r\n", b"Host: h\r\nConnection: close\r\n\r\n"),
        (b"GET http://h/status HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",),
        (b"GET /%73tatus HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",),
    ):
        assert send(port, *parts).startswith(b"HTTP/1.1 401"), parts


@pytest.mark.parametrize("path", ["/status", "/status/ws", "/metrics", "/health"])
def test_later_requests_of_a_connection_require_the_token(port: int, path: str) -> None:
    later = "/metrics" if path == "/health" else path
    allowed = f"GET {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    refused = f"GET {later} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode()
    for parts in ((allowed + refused,), (allowed, refused)):
        first, *others = re.findall(rb"HTTP/1\.1 (\d{3})", send(port, *parts))
        assert first == (b"400" if path == "/status/ws" else b"200")
        assert not others  # the connection is closed after one response
