"""The standby: a copy of the scheduler process, which continues it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pickle
import socket
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Worker
from paceline.protocol import messages as m
from paceline.scheduler import Scheduler
from paceline.scheduler.server.comm.tcp import TcpComm
from paceline.scheduler.server.durable.channel.deaths import Death, DeathKind, Deaths
from paceline.scheduler.server.durable.channel.keeper_channel import KeeperChannel
from paceline.scheduler.server.durable.channel.kept import Kept
from paceline.scheduler.server.durable.channel.messages import STANDBY_SOON, greeting
from paceline.scheduler.server.durable.keeper.standbys import Standby, Standbys
from paceline.scheduler.server.durable.log.segments import Log, remove_segments
from paceline.scheduler.server.durable.recovery.recorded_connection import RecordedConnection
from paceline.scheduler.server.durable.recovery.replay import RecordedState
from paceline.scheduler.server.durable.recovery.tcp_counters import Transferred
from paceline.scheduler.server.durable.standby.standby import begin, capture
from paceline.scheduler.server.peers.connection_factory import ConnectionFactory
from paceline.scheduler.server.peers.slow_peers import SlowClientBuffer, SlowWorkerBuffer
from paceline.scheduler.server.peers.spool import Spool
from paceline.scheduler.server.requests.plugins import restore_plugins_and_activities
from paceline.scheduler.server.runtime import build, child_process
from paceline.scheduler.server.runtime.template import NUMBER, Template

from tests.support.fake_peers import Peer, until

from .test_replay import replayed, scheduler, slow

__all__ = ["scheduler"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a durable scheduler needs Linux")


def described(recorded: RecordedState) -> dict[object, object]:
    """Return what a successor continues, except the core."""
    connections = {
        number: (
            each.kind,
            each.name,
            each.read,
            each.written,
            list(each.messages),
            [message for message in each.unwritten if message is not None],
            each.n_written + len(each.unwritten),
            len(each.requests),
            each.request_id,
            each.connection.phase,
            each.is_admitted,
        )
        for number, each in recorded.connections.items()
    }
    return {
        "connections": connections,
        "streams": {key: each.number for key, each in recorded.streams.items()},
        "timers": {timer: recorded.timers[timer] for timer in recorded.core.state.timers},
        "to_continue": recorded.to_continue,
        "numbers": (recorded.last_request_id, recorded.last_graph_id, recorded.n_errors),
    }


async def test_capture_equals_what_the_log_leads_to(scheduler: Scheduler, tmp_path: Path) -> None:
    address = scheduler.address
    async with (
        Worker(address, nthreads=2),
        Worker(address, nthreads=1),
        Client(address, asynchronous=True) as client,
    ):
        futures = client.map(slow, range(50))
        await client.gather(futures)
        later = client.submit(slow, 1, 2)
        lock = asyncio.ensure_future(client.run_on_scheduler(asyncio.sleep, 2))
        await asyncio.sleep(0.3)
        recorded = replayed(scheduler, tmp_path)
        assert scheduler._server is not None and scheduler._server.durability is not None
        captured = capture(scheduler._server, scheduler._server.durability.start)
        assert described(captured) == described(recorded)
        await lock
        del later


async def test_log_continues_a_capture(scheduler: Scheduler, tmp_path: Path) -> None:
    """What happens after a capture, repeated on it, leads to the same as the whole log."""
    address = scheduler.address
    async with Worker(address, nthreads=1), Client(address, asynchronous=True) as client:
        futures = client.map(slow, range(10))
        await client.gather(futures)
        recorded = replayed(scheduler, tmp_path)  # as a capture, with a core of its own
        n_before = len(list(Log(tmp_path)))
        more = client.map(slow, range(10, 20))
        await client.gather(more)
        whole = replayed(scheduler, tmp_path)
        continued = replayed(scheduler, tmp_path, recorded, n_before)
        assert described(continued) == described(whole)
        assert list(continued.core.state.tasks) == list(whole.core.state.tasks)


async def test_lost_stream_with_messages_to_handle_is_captured(scheduler: Scheduler) -> None:
    server = scheduler._server
    assert server is not None and server.durability is not None
    async with Worker(scheduler.address) as worker:
        stream = server.driver.worker_streams[worker.address]
        comm = stream.peer.comm
        transport = comm._transport
        transport.set_protocol(asyncio.Protocol())
        stream._defer([m.KeepAlive()])
        comm.connection_lost(None)
        recorded = capture(server, server.durability.start)
        transport.abort()
        found = recorded.streams["worker", worker.address]
        assert found.is_closed and list(found.messages) == [m.KeepAlive()]


async def test_restored_plugins_are_captured(scheduler: Scheduler) -> None:
    server = scheduler._server
    assert server is not None and server.durability is not None
    plugins = {("worker", "one"): b"1", ("nanny", "two"): b"2"}
    await restore_plugins_and_activities(server, plugins)
    assert capture(server, server.durability.start).to_continue == plugins


async def test_removed_log_is_noticed(
    scheduler: Scheduler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    durability = scheduler.server.durability
    assert durability is not None and durability.is_complete
    remove_segments(tmp_path)
    await until(lambda: not durability.is_complete)
    assert "NO LONGER DURABLE" in caplog.text
    assert "the log was removed" in caplog.text


async def test_standby_that_cannot_be_forked_is_logged_once(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    durability = scheduler.server.durability
    assert durability is not None

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(durability, "_fork", fail)
    for _ in range(3):
        durability._fork_standby(scheduler.server)
    assert caplog.text.count("Cannot fork a standby: [Errno 24] Too many open files") == 1
    monkeypatch.setattr(durability, "_fork", lambda *_: None)
    durability._fork_standby(scheduler.server)
    monkeypatch.setattr(durability, "_fork", fail)
    durability._fork_standby(scheduler.server)
    assert caplog.text.count("Cannot fork a standby") == 2


def test_only_files_of_the_process_are_written_to(tmp_path: Path) -> None:
    """Objects that the standby inherits keep their numbers, which are not those of its peers."""
    handler = logging.FileHandler(tmp_path / "log")
    handler.emit(logging.makeLogRecord({"msg": "before"}))
    frame = Spool(0, str(tmp_path)).allocator().allocate(6)
    assert frame is not None
    frame.write(memoryview(b"abc"))
    ours, theirs = socket.socketpair()
    other, comm = socket.socketpair()
    read, write = os.pipe()
    with ours, theirs, other, comm, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads
        pid = os.fork()
        if not pid:
            try:
                begin(theirs, {comm.fileno()})
                handler.emit(logging.makeLogRecord({"msg": "after"}))
                frame.write(memoryview(b"def"))
                fds = [ours.fileno(), theirs.fileno(), other.fileno(), comm.fileno()]
                targets = [target_of(fd) for fd in fds]
                os.write(write, pickle.dumps((bytes(frame.finish()), targets)))
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            content, (null, sock, also_null, closed) = pickle.load(pipe)
        os.waitpid(pid, 0)
    handler.close()
    assert content == b"abcdef" and (tmp_path / "log").read_text() == "before\nafter\n"
    assert null == also_null == os.devnull and sock.startswith("socket:") and closed == ""


def target_of(fd: int) -> str:
    """Return the file that a descriptor of this process belongs to, or "" if it is closed."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


async def test_comm_has_the_descriptor_of_its_socket(scheduler: Scheduler) -> None:
    peer = await Peer.connect(scheduler)
    (comm,) = scheduler.server.transport.comms
    assert isinstance(comm, TcpComm)
    with socket.socket(fileno=os.dup(comm.fd)) as sock:
        assert sock.getpeername() == peer.writer.get_extra_info("sockname")
    peer.writer.close()
    await until(lambda: comm.fd == -1)


async def test_comm_whose_release_fails_is_removed(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def release(channel: KeeperChannel, number: int) -> None:
        raise OSError("no buffer space")

    monkeypatch.setattr(KeeperChannel, "release", release)
    peer = await Peer.connect(scheduler)
    assert len(scheduler.server.transport.comms) == 1
    peer.writer.close()
    await until(lambda: not scheduler.server.transport.comms)


@pytest.mark.parametrize("unread", [b"", b"unread"])
def test_standby_ends_with_its_keeper(unread: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if unread:
        theirs.send(unread)  # the socket is then reset
    ours.close()
    channel = KeeperChannel(theirs, Kept(), Path())
    assert channel.receive_successor(theirs, lambda *_: None) is None
    theirs.close()


def test_records_are_read_from_a_position(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append(1, 1, b"first")
    position = log.position
    log.append(2, 2, b"second")
    assert [bytes(body) for _, _, body in Log(tmp_path, position)] == [b"second"]
    log.forget_old()
    log.append(3, 3, b"third")
    assert [bytes(body) for _, _, body in Log(tmp_path)] == [b"first", b"second", b"third"]


@pytest.mark.parametrize(
    ("accepted", "unsent", "fault"),
    [(100, b"", ""), (97, b"789", ""), (90, b"0123456789", ""), (80, b"", "20 bytes of output")],
)
def test_output_that_the_socket_has_not_accepted(accepted: int, unsent: bytes, fault: str) -> None:
    connection = ConnectionFactory(None).accepted()
    recorded = RecordedConnection(1, None, Transferred(0, 0), connection, written=100)  # type: ignore[arg-type]
    recorded.unsent = bytearray(b"0123456789")
    recorded.attach(Transferred(0, accepted))
    assert recorded.fault.startswith(fault) and bool(recorded.fault) == bool(fault)
    if not fault:
        assert recorded.unsent == unsent


def test_standby_is_woken_after_many_deaths(tmp_path: Path) -> None:
    kept = Kept()
    for kind in (DeathKind.DIED, DeathKind.UPGRADED, DeathKind.RENEWED, DeathKind.DIED):
        for number in range(1_000):
            kept.deaths.add(Death(-9, 1e9 + number, number, 2**31 + number, kind))
    assert [death.connection for death in kept.deaths.last] == [997, 998, 999]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        kept.send(ours, [ours, ours], Template(1, ours))
        found = KeeperChannel(theirs, Kept(), tmp_path).receive_successor(theirs, lambda *_: None)
        assert found is not None
        channel, next_sock = found
        assert channel.kept.deaths == kept.deaths == Deaths(kept.deaths.last, 2_000, 1_000, 1_000)
        next_sock.close()
        channel.close()


@pytest.mark.parametrize("release", [build.description(), "0.0.9 (compiled)"])
def test_standby_of_another_release_gets_no_template(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken, own_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    template, template_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    template_end.send(NUMBER.pack(1234))
    standbys = Standbys(tmp_path, Kept())
    standbys.current = Standby(woken, 1, os.getpid(), release)
    spawned: list[str] = []
    monkeypatch.setattr(child_process, "spawn", lambda module, fds: spawned.append(module))

    def wake() -> None:
        found = KeeperChannel(own_end, Kept(), tmp_path).receive_successor(own_end, lambda *_: None)
        assert found is not None
        channel, next_sock = found
        assert channel.template is not None
        child: Any = channel.template.spawn("module", [])
        assert child is None or child.pid == 1234
        channel.template.stop()
        next_sock.send(greeting(release))
        next_sock.close()

    with own_end, template, template_end, ThreadPoolExecutor(1) as executor:
        waking = executor.submit(wake)
        assert standbys.wake(own_end, Template(os.getpid(), template), None) == os.getpid()
        waking.result()
    standbys.end()
    assert spawned == ([] if release == build.description() else ["module"])


def test_standby_that_ends_before_it_is_ready_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel, scheduler_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    standbys = Standbys(tmp_path, Kept())
    standbys.add(ours, 1)
    theirs.close()
    with channel, scheduler_end:
        standbys.handle([ours], channel, None)
        assert scheduler_end.recv(100) == STANDBY_SOON
    assert "ended before it was ready" in caplog.text
    assert not standbys.socks


def test_buffers_number_their_messages() -> None:
    worker, client = SlowWorkerBuffer(), SlowClientBuffer("c")
    messages = [m.KeyInMemory(key=key) for key in ("a", "b", "c", "b")]
    for buffer in (worker, client):
        buffer.add(messages, 5)
        assert buffer.first == 5
    assert [number for number, _ in worker.numbered()] == [5, 6, 7, 8]
    assert [number for number, _ in client.numbered()] == [5, 7, 8]
    assert (len(worker.take(2)), worker.first) == (2, 7)
    assert (len(client.take(1)), client.first) == (1, 7)
