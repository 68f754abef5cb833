"""Transports over real sockets, and the events that they send."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

import dask.config
import pytest
import uvloop
from paceline.protocol.framing import pack_frames
from paceline.scheduler.server.comm import tcp
from paceline.scheduler.server.comm.accepting import SocketAcceptor
from paceline.scheduler.server.comm.backends import backends
from paceline.scheduler.server.comm.sockets import PeerFacts, set_socket_options
from paceline.scheduler.server.comm.transport import Comm, Transport
from paceline.workers_compat.security.tls_config import Tls


class Sink:
    """Record the events of all comms."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.facts: dict[Comm, PeerFacts] = {}
        self.messages: dict[Comm, list[Any]] = {}
        self.changed = asyncio.Event()

    def note(self, *event: Any) -> None:
        self.events.append(event)
        self.changed.set()

    def opened(self, comm: Comm) -> Recorder:
        self.facts[comm] = comm.facts
        self.note("opened", comm)
        return Recorder(self, comm)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def has(self, *start: Any) -> bool:
        return any(event[: len(start)] == start for event in self.events)


class Recorder:
    """Record the events of one comm in a sink."""

    def __init__(self, sink: Sink, comm: Comm) -> None:
        self.sink = sink
        self.comm = comm

    def messages_received(self, messages: list[Any]) -> None:
        got = self.sink.messages.setdefault(self.comm, [])
        got += messages
        self.sink.note("frames", self.comm)

    def paused(self) -> None:
        self.sink.note("paused", self.comm)

    def resumed(self) -> None:
        self.sink.note("resumed", self.comm)

    def connection_lost(self, reason: str) -> None:
        self.sink.note("closed", self.comm, reason)


@pytest.fixture(
    params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"]
)
def event_loop_policy(request: Any) -> Any:
    return request.param()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Transport, Sink, int]]:
    sink = Sink()
    transport = Transport(sink.opened, backends(Tls()))
    listener = await transport.listen("tcp", "127.0.0.1", 0)
    yield transport, sink, listener.port
    listener.close()
    await transport.close_all(0.1)


async def test_messages_in_both_directions(pair: Any) -> None:
    transport, sink, port = pair
    mine = await transport.connect("tcp", "127.0.0.1", port)
    await sink.until(lambda: len(sink.facts) == 2)
    theirs = next(n for n in sink.facts if n != mine)
    assert sink.facts[mine].outgoing
    assert not sink.facts[theirs].outgoing
    assert sink.facts[theirs].peer_address == sink.facts[mine].local_address
    big = bytes(3_000_000)
    sent = [[b"a", b"", b"bc"], [b"head", big, memoryview(big)[:70_000]], [b"z"]]
    for frames in sent:
        mine.write(frames)
    await sink.until(lambda: len(sink.messages.get(theirs, ())) == 3)
    assert [[bytes(f) for f in frames] for frames in sink.messages[theirs]] == [
        [bytes(f) for f in frames] for frames in sent
    ]


async def test_collected_messages_are_sent_in_one_write(pair: Any) -> None:
    _, sink, port = pair
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await sink.until(lambda: sink.facts)
    (comm,) = sink.facts
    writes: list[Any] = []
    connection: Any = comm
    real = connection._transport

    class Counting:
        def write(self, data: Any) -> None:
            writes.append(data)
            real.write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    connection._transport = Counting()
    for i in range(5):
        comm.write([b"%d" % i])
    await reader.readexactly(5 * 25)
    assert len(writes) == 1
    writer.close()


async def test_failing_write_closes_only_its_connection(pair: Any, caplog: Any) -> None:
    _, sink, port = pair
    peers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    await sink.until(lambda: len(sink.facts) == 2)
    broken, other = sink.facts
    connection: Any = broken
    real = connection._transport

    class Failing:
        def write(self, data: Any) -> None:
            raise RuntimeError("broken")

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    connection._transport = Failing()
    for comm in (broken, other):
        comm.write([b"x"])
    await sink.until(lambda: sink.has("closed", broken, "RuntimeError: broken"))
    other.write([b"y"])
    received = [asyncio.create_task(reader.read(25)) for reader, _ in peers]
    done, _ = await asyncio.wait(received, timeout=10)
    assert sorted(task.result()[-1:] for task in done) == [b"", b"x"]
    assert "Cannot write to tcp://127.0.0.1:" in caplog.text
    for _, writer in peers:
        writer.close()


async def test_an_invalid_prelude_closes_the_connection(pair: Any, caplog: Any) -> None:
    transport, sink, port = pair
    with caplog.at_level(logging.WARNING, "distributed.scheduler"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack("<QQ", 80_000_008, 10_000_000))
        assert await reader.read() == b""
        await sink.until(lambda: sink.has("closed"))
    assert "10000000 frames" in caplog.text
    assert "127.0.0.1" in caplog.text
    assert len(transport.comms) == 0


async def test_messages_before_an_invalid_one_are_handled(pair: Any) -> None:
    _, sink, port = pair
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(pack_frames([b"a", b"b"])) + struct.pack("<QQ", 0, 0))
    await sink.until(lambda: sink.has("closed"))
    assert list(sink.messages.values()) == [[[b"a", b"b"]]]
    writer.close()


async def test_a_slow_reader_is_reported(pair: Any) -> None:
    _, sink, port = pair
    sock = socket.create_connection(("127.0.0.1", port))
    await sink.until(lambda: sink.facts)
    (comm,) = sink.facts
    piece = bytes(2**20)
    for _ in range(20):
        comm.write([piece])
    await sink.until(lambda: sink.has("paused", comm))
    assert comm.unwritten_nbytes > 0
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    left = 20 * (2**20 + 24)
    while left:
        left -= len(await loop.sock_recv(sock, 2**20))
    await sink.until(lambda: sink.has("resumed", comm))
    sock.close()
    await sink.until(lambda: sink.has("closed", comm))


@pytest.mark.parametrize(
    "is_paused",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.skipif(sys.platform != "linux", reason="needs POLLRDHUP")
        ),
    ],
)
async def test_half_closed_peer_that_does_not_read_is_closed(
    is_paused: bool, pair: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(tcp, "EOF_SECONDS", 0.01)
    _, sink, port = pair
    with socket.create_connection(("127.0.0.1", port)) as sock:
        await sink.until(lambda: sink.facts)
        (comm,) = sink.facts
        comm.write([bytes(20 * 2**20)])
        comm.flush()
        if is_paused:
            comm.pause_reading()
        sock.shutdown(socket.SHUT_WR)
        await sink.until(lambda: sink.has("closed", comm, "closed by peer"))


async def test_reading_can_be_paused(pair: Any) -> None:
    transport, sink, port = pair
    mine = await transport.connect("tcp", "127.0.0.1", port)
    await sink.until(lambda: len(sink.facts) == 2)
    theirs = next(n for n in sink.facts if n != mine)
    theirs.pause_reading()
    mine.write([b"x"])
    await asyncio.sleep(0.05)
    assert theirs not in sink.messages
    theirs.resume_reading()
    await sink.until(lambda: theirs in sink.messages)
    mine.close()
    await sink.until(lambda: sink.has("closed", theirs))


async def test_every_interface_and_taken_ports(pair: Any) -> None:
    transport, _, port = pair
    everywhere = await transport.listen("tcp", "", 0)
    for host in ("127.0.0.1", "::1"):
        try:
            _, writer = await asyncio.open_connection(host, everywhere.port)
        except OSError:
            assert host == "::1"  # a machine without IPv6
        else:
            writer.close()
    everywhere.close()
    with pytest.raises(OSError, match="in use"):
        await transport.listen("tcp", "127.0.0.1", port)


async def test_connection_that_cannot_be_opened_is_closed(caplog: Any) -> None:
    taken: list[socket.socket] = []

    def take(sock: socket.socket) -> None:
        taken.append(sock)
        if len(taken) == 1:
            raise OSError("no buffer space")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        acceptor = SocketAcceptor(listening, take)
        for _ in range(2):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.close()
        async with asyncio.timeout(10):
            while len(taken) < 2:
                await asyncio.sleep(0.01)
        acceptor.close()
    assert [sock.fileno() == -1 for sock in taken] == [True, False]
    assert "cannot be opened: no buffer space" in caplog.text
    taken[1].close()


@pytest.mark.skipif(sys.platform != "linux", reason="options of Linux")
@pytest.mark.parametrize(
    ("timeout", "idle", "interval"), [(None, 10, 2), ("2 minutes", 30, 9), (1, 1, 1)]
)
def test_timeout_of_a_silent_peer_is_configurable(timeout: Any, idle: int, interval: int) -> None:
    with dask.config.set({"distributed.comm.timeouts.tcp": timeout}), socket.socket() as sock:
        set_socket_options(sock)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)
        assert [sock.getsockopt(socket.IPPROTO_TCP, each) for each in options] == [idle, interval]


class ListeningSocket(socket.socket):
    """Record the backlog."""

    def listen(self, backlog: int = -1, /) -> None:
        super().listen(backlog)
        self.backlog = backlog


@pytest.mark.parametrize(("configured", "backlog"), [(None, 2048), (7, 7)])
async def test_backlog_is_configurable(configured: int | None, backlog: int) -> None:
    with dask.config.set({"distributed.comm.socket-backlog": configured}):
        sock = ListeningSocket()
        acceptor = SocketAcceptor(sock, lambda accepted: None)
    assert sock.backlog == backlog
    acceptor.close()
