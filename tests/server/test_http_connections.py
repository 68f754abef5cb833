"""Limits of HTTP connections: number, idle time, bodies; and listeners while descriptors are exhausted."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

import dask.config
import pytest
from distributed import Client, Worker
from paceline.scheduler import Scheduler
from paceline.scheduler.server.comm import accepting
from paceline.scheduler.server.comm.accepting import SocketAcceptor
from paceline.scheduler.server.http.server import HttpServer
from paceline.scheduler.server.http.start import http_limits
from paceline.workers_compat.security.http_connections import HttpLimits
from paceline.workers_compat.security.http_token import TokenGate
from tornado import web
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.websocket import WebSocketHandler, websocket_connect

#: Larger than the kernel's buffers for a client that does not read.
LARGE_NBYTES = 64 * 2**20


class Page(web.RequestHandler):
    """Reply, and accept bodies."""

    def get(self) -> None:
        self.write("ok")

    def post(self) -> None:
        self.write(str(len(self.request.body)))


class Large(web.RequestHandler):
    """Reply with more than a socket buffers."""

    def get(self) -> None:
        self.write(b"x" * LARGE_NBYTES)


class Socket(WebSocketHandler):
    """Send a message."""

    def open(self, *args: str, **kwargs: str) -> None:
        self.write_message("ok")


Serve = Callable[..., HttpServer]


@pytest.fixture
def serve(request: pytest.FixtureRequest) -> Serve:
    """Start servers with limits, which end with the test. Half of them inspect requests before parsing."""

    def start(peek: bool = False, gate: TokenGate | None = None, **limits: Any) -> HttpServer:
        routes = [("/page", Page, {}), ("/large", Large, {}), ("/ws", Socket, {})]
        server = HttpServer(routes, [("127.0.0.1", 0)], gate=gate, limits=HttpLimits(**limits))
        if peek:
            server.hand_over(["/elsewhere"], lambda *_: False)
        request.addfinalizer(server.stop)
        return server

    return start


async def get(server: HttpServer, path: str = "/page", **options: Any) -> bytes:
    url = f"http://127.0.0.1:{server.port}{path}"
    return (await AsyncHTTPClient().fetch(url, request_timeout=60, **options)).body


async def dial(
    server: HttpServer, data: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    return reader, writer


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """Return everything received until the server closes the connection."""
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("peek", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /pa",
        b"GET /page HTTP/1.1\r\nHost: h\r\n",
        b"GET /page HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /page HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nx",
        b"POST /page HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
    ],
)
async def test_idle_connections_are_closed(serve: Serve, data: bytes, peek: bool) -> None:
    server = serve(peek, idle_seconds=0.2)
    reader, writer = await dial(server, data)
    answer = await until_closed(reader)
    assert answer.startswith(b"HTTP/1.1 200" if data.endswith(b"h\r\n\r\n") else b"")
    writer.close()


async def test_a_client_that_does_not_read_is_closed(serve: Serve) -> None:
    server = serve(idle_seconds=1)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
        async with asyncio.timeout(60):
            while not len(server._server.connections):
                await asyncio.sleep(0.05)
            while len(server._server.connections):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("peek", [False, True])
async def test_new_connection_closes_the_least_recently_used(
    serve: Serve, peek: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(peek, connections=3)
    request = b"GET /page HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n\r\n"
    kept, writer = await dial(server, request)
    await kept.readuntil(b"ok")
    idle = [await dial(server) for _ in range(2)]
    writer.write(request)
    await kept.readuntil(b"ok")  # in use again: the others were unused longer
    assert await get(server) == b"ok"
    assert await until_closed(idle[0][0]) == b""
    writer.write(request)
    await kept.readuntil(b"ok")
    for _ in range(20):
        assert await get(server) == b"ok"
    assert caplog.text.count("More than 3 HTTP connections") == 1
    for each in (writer, *(writer for _, writer in idle)):
        each.close()


async def test_other_requests_are_routed_again_if_some_are_passed_on(serve: Serve) -> None:
    server = serve(peek=True)
    for path in ("/page", "/unknown"):
        reader, writer = await dial(server, f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        assert b"\r\nConnection: close\r\n" in await until_closed(reader)
        writer.close()
    websocket = await websocket_connect(f"ws://127.0.0.1:{server.port}/ws")
    assert await websocket.read_message() == "ok"
    websocket.close()


async def test_bodies_are_bounded(serve: Serve) -> None:
    server = serve(body_nbytes=1000)
    assert await get(server, method="POST", body="x" * 1000) == b"1000"
    with pytest.raises(HTTPClientError, match="400"):
        await get(server, method="POST", body="x" * 1001)


async def test_body_of_refused_request_is_not_awaited(serve: Serve) -> None:
    server = serve(gate=TokenGate("t"))
    reader, writer = await dial(
        server, b"POST /page HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n"
    )
    async with asyncio.timeout(60):
        assert await reader.readline() == b"HTTP/1.1 401 Unauthorized\r\n"
    writer.close()


def test_limits_are_configured() -> None:
    names = {"connections": 7, "idle-timeout": "10 s", "body-size": "2 kB"}
    with dask.config.set({f"paceline.http.{name}": value for name, value in names.items()}):
        assert http_limits() == HttpLimits(7, 10.0, 2000)
    assert http_limits().idle_seconds == HttpLimits().idle_seconds
    assert http_limits(jupyter=True).body_nbytes > http_limits().body_nbytes


async def test_workers_on_the_http_port_are_not_limited() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with dask.config.set({"paceline.http.connections": 2, "paceline.http.idle-timeout": "200ms"}):
        scheduler = Scheduler(
            host="127.0.0.1", protocol="ws", port=port, dashboard_address=f"127.0.0.1:{port}"
        )
        async with (
            scheduler,
            Worker(scheduler.address) as first,
            Worker(scheduler.address),
            Worker(scheduler.address),
            Client(scheduler.address, asynchronous=True) as client,
        ):
            await asyncio.sleep(0.5)  # longer than connections of browsers may idle
            assert len(scheduler.workers) == 3
            assert await client.submit(sum, [1, 2], workers=[first.address]) == 3


class Exhausted(socket.socket):
    """A listening socket whose `accept` fails for lack of descriptors until `error` is None."""

    refused = 0
    error: int | None = errno.EMFILE

    def accept(self) -> tuple[socket.socket, Any]:
        if self.error is None:
            return super().accept()
        self.refused += 1
        raise OSError(self.error, "Too many open files")


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_listener_pauses_while_descriptors_are_exhausted(
    error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "ACCEPT_AGAIN_SECONDS", 0.05)
    sock = Exhausted()
    sock.error = error
    sock.bind(("127.0.0.1", 0))
    taken: asyncio.Queue[socket.socket] = asyncio.Queue()
    listener = SocketAcceptor(sock, taken.put_nowait)
    with socket.create_connection(sock.getsockname()):
        await _until(lambda: sock.refused >= 3)
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "trying again" in caplog.text and "ulimit" in caplog.text
        turns, refused = 1000, sock.refused
        for _ in range(turns):  # no busy loop: few of these turns of the event loop try again
            await asyncio.sleep(0)
        assert sock.refused - refused < turns / 10
        sock.error = None
        async with asyncio.timeout(60):
            (await taken.get()).close()
    listener.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)
