"""What the kernel knows of the bytes of a connection."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator

import pytest
from paceline.scheduler.server.durable.recovery import tcp_counters
from paceline.scheduler.server.durable.recovery.tcp_counters import Transferred, transferred

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux counts these bytes")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The accepted end of a connection, and the other one."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as theirs,
    ):
        ours, _ = server.accept()
        with ours:
            yield ours, theirs


def eventually(sock: socket.socket, expected: Transferred) -> bool:
    """Return whether the counters become ``expected``; acknowledgements take a moment."""
    deadline = time.monotonic() + 5
    while transferred(sock) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return transferred(sock) == expected


def test_read_bytes_do_not_include_those_that_wait(pair: Pair) -> None:
    ours, theirs = pair
    assert transferred(ours) == (0, 0)
    theirs.sendall(b"x" * 1000)
    ours.recv(1, socket.MSG_PEEK)
    assert transferred(ours) == (0, 0)
    ours.recv(300)
    assert transferred(ours) == (300, 0)


def test_written_bytes_include_those_that_the_peer_has_not_received(pair: Pair) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += ours.send(b"y" * 100_000)
    assert transferred(ours) == (0, sent)
    received = 0
    while received < sent:
        received += len(theirs.recv(1_000_000))
    assert eventually(ours, Transferred(0, sent))


def test_data_that_arrives_meanwhile_is_not_counted_as_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    arriving = [b"x" * 100, b"y" * 200]
    queued = tcp_counters._queued

    def queued_after_arrival(sock: socket.socket, request: int) -> int:
        if arriving:
            theirs.sendall(arriving.pop())
            ours.recv(1000, socket.MSG_PEEK)
        return queued(sock, request)

    monkeypatch.setattr(tcp_counters, "_queued", queued_after_arrival)
    assert transferred(ours) == (0, 0)
    assert arriving == []


def test_end_of_the_peer_is_not_counted(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"x" * 10)
    theirs.shutdown(socket.SHUT_WR)
    assert ours.recv(10) == b"x" * 10
    assert eventually(ours, Transferred(10, 0))
    assert ours.recv(10) == b""
    assert transferred(ours) == (10, 0)


def test_duplicates_have_the_same_counters(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"x" * 10)
    ours.recv(4)
    with ours.dup() as duplicate:
        assert transferred(duplicate) == (4, 0)
