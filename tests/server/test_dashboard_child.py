"""The dashboard's process: it serves the pages except health and metrics, and is restarted when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from paceline.scheduler.server.http.server import request_path
from tornado.httpclient import HTTPClientError

from tests.support.pages import dashboards, get, serve_pages


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Yield the port of the pages of a scheduler that runs in a separate process."""
    with serve_pages(tmp_path) as port:
        yield port


async def test_dashboard_process_starts_with_the_first_page_and_may_die(port: int) -> None:
    assert await get(port, "/health") == "ok"
    assert not dashboards()
    assert "bokeh" in await get(port, "/status")
    (child,) = dashboards()
    # the start of this request does not say which process serves it
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /sta")
    await asyncio.sleep(0.2)
    writer.write(b"tus?x=1 HTTP/1.1\r\nHost: h\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 307 ") and b"\r\nLocation: ./status?x=1\r\n" in head
    writer.close()
    assert {"/individual-progress", "/shares"} <= set(
        json.loads(await get(port, "/sitemap.json"))["paths"]
    )
    assert '<a href="shares">Shares</a>' in await get(port, "/shares")
    # no other request reaches that process on this connection
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /status/ws HTTP/1.1\r\nHost: h\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"\r\nConnection: close\r\n" in head
    writer.close()
    child.send_signal(signal.SIGSTOP)
    try:
        assert await get(port, "/health") == "ok"
        assert "dask_scheduler_workers" in await get(port, "/metrics")
    finally:
        os.kill(child.pid, signal.SIGKILL)
    assert await get(port, "/health") == "ok"
    async with asyncio.timeout(60):
        page = ""
        while "bokeh" not in page:
            await asyncio.sleep(0.2)
            # handed over before its end was noticed, or 503 until it has restarted
            with contextlib.suppress(OSError, HTTPClientError):
                page = await get(port, "/individual-progress")
    assert [p.pid for p in dashboards()] != [child.pid]


def test_the_path_of_a_request_is_read_from_its_first_bytes() -> None:
    assert request_path(b"GET /a/status?x=1 HTTP/1.1\r\nHost: h\r\n") == "/a/status"
    assert request_path(b"GET /a/status?" + b"x" * 5_000) == "/a/status"
    assert request_path(b"GET /a/status HT") == "/a/status"
    assert request_path(b"GET /a/sta") is None
    assert request_path(b"GET /a/status\r\nHost: h ") is None
    assert request_path(b"POST /status HTTP/1.1\r\n") is None
    assert request_path(b"\x16\x03\x01\x02\x00") is None
