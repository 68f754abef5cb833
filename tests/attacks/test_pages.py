"""Pages while the dashboard's process is not running."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from paceline.scheduler.server.http.handover import (
    RESPOND_SECONDS,
    UNRESPONSIVE_SECONDS,
    WAITING_MAX,
)

from tests.support.pages import dashboards, serve_pages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Possible delay on a busy machine, seconds.
LATE_SECONDS = 30.0


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Yield the port of the pages of a scheduler in a separate process."""
    with serve_pages(tmp_path) as port:
        yield port


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ask(port: int, path: str = "/status") -> socket.socket:
    """Send a request on a separate connection."""
    connection = socket.create_connection(
        ("127.0.0.1", port), timeout=UNRESPONSIVE_SECONDS + LATE_SECONDS
    )
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
    return connection


def answer(connection: socket.socket) -> bytes:
    """Return the whole response; empty if the connection breaks."""
    data = b""
    with connection, contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(2**16):
            data += piece
    return data


def get(port: int, path: str = "/status") -> bytes:
    return answer(ask(port, path))


def is_unavailable(page: bytes) -> bool:
    """Return whether a page reports that the dashboard is not available, and makes browsers reload it."""
    head = page.partition(b"\r\n\r\n")[0]
    return head.startswith(b"HTTP/1.1 503") and b"\r\nRefresh: 5" in head and b"<h1>" in page


def test_a_stopped_dashboard_is_reported_and_started_again(port: int) -> None:
    assert b"bokeh" in get(port)
    (stopped,) = dashboards()
    stopped.send_signal(signal.SIGSTOP)
    try:
        started = time.monotonic()
        pages = [ask(port) for _ in range(3)]
        assert get(port, "/health").endswith(b"ok")
        assert b"dask_scheduler_workers" in get(port, "/metrics")
        for page in pages:
            assert is_unavailable(answer(page))
        assert RESPOND_SECONDS <= time.monotonic() - started < RESPOND_SECONDS + LATE_SECONDS
        wait_for(lambda: stopped not in dashboards(), UNRESPONSIVE_SECONDS + LATE_SECONDS)
        wait_for(lambda: b"bokeh" in get(port))
        assert get(port, "/health").endswith(b"ok")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            stopped.kill()


def test_dashboard_that_resumes_in_time_continues(port: int) -> None:
    assert b"bokeh" in get(port)
    (stopped,) = dashboards()
    stopped.send_signal(signal.SIGSTOP)
    page = ask(port)
    time.sleep(1)
    stopped.send_signal(signal.SIGCONT)
    assert b"bokeh" in answer(page)
    stopped.send_signal(signal.SIGSTOP)
    assert is_unavailable(answer(ask(port)))
    stopped.send_signal(signal.SIGCONT)
    assert b"bokeh" in get(port)
    time.sleep(UNRESPONSIVE_SECONDS)
    assert dashboards() == [stopped]


def test_connections_that_wait_for_a_dashboard_are_bounded(port: int) -> None:
    assert b"bokeh" in get(port)
    (stopped,) = dashboards()
    stopped.send_signal(signal.SIGSTOP)
    try:
        waiting = [ask(port) for _ in range(WAITING_MAX)]
        wait_for(lambda: is_unavailable(get(port)), RESPOND_SECONDS)
        assert get(port, "/health").endswith(b"ok")
        scheduler = psutil.Process(stopped.ppid())
        for page in waiting:
            assert is_unavailable(answer(page))
        wait_for(lambda: scheduler.num_fds() < WAITING_MAX // 2)
    finally:
        os.kill(stopped.pid, signal.SIGKILL)


def test_dashboard_stopped_during_its_start(port: int) -> None:
    page = ask(port)
    wait_for(dashboards)
    (stopped,) = dashboards()
    stopped.send_signal(signal.SIGSTOP)
    page.settimeout(120)
    assert is_unavailable(answer(page))
    wait_for(lambda: b"bokeh" in get(port))
    assert stopped not in dashboards()
