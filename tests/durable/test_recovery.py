"""A successor continues, in one process with the scheduler whose log it reads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client, SchedulerPlugin, Worker, fire_and_forget
from paceline.protocol import messages as m
from paceline.protocol.framing import pack_frames
from paceline.scheduler import Scheduler
from paceline.scheduler.core.instructions import MatchError
from paceline.scheduler.core.stimuli import WorkerRemoved
from paceline.scheduler.server.comm.sockets import PeerFacts
from paceline.scheduler.server.durable.channel.deaths import Death
from paceline.scheduler.server.durable.channel.keeper_channel import KeeperChannel
from paceline.scheduler.server.durable.channel.kept import Kept
from paceline.scheduler.server.durable.channel.messages import receive
from paceline.scheduler.server.durable.log.durable_comm import DurableBackend
from paceline.scheduler.server.durable.log.recorder import CLOSED
from paceline.scheduler.server.durable.log.segments import Log
from paceline.scheduler.server.durable.recovery.recorded_connection import (
    NOT_KEPT,
    RecordedConnection,
)
from paceline.scheduler.server.durable.recovery.replay import Replay
from paceline.scheduler.server.durable.recovery.tcp_counters import transferred
from paceline.scheduler.server.durable.standby.standby import capture
from paceline.scheduler.server.peers.connection_factory import ConnectionFactory
from paceline.scheduler.server.peers.peer import HandshakeHandler
from paceline.scheduler.server.requests import plugins
from paceline.scheduler.server.requests.restart import restart
from paceline.scheduler.server.runtime.clock import SteadyClock
from paceline.scheduler.server.server import Server
from paceline.workers_compat.security.shared_secret import Secret

from tests.support.fake_peers import Peer, client, until, worker

from .test_replay import adopt, replayed, scheduler

__all__ = ["scheduler"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a durable scheduler needs Linux")


@contextlib.asynccontextmanager
async def succeeded(scheduler: Scheduler, folder: Path) -> AsyncIterator[Scheduler]:
    """Start a scheduler with a copy of the log, as it is now. It has no sockets to continue."""
    copy = folder / "copy"
    copy.mkdir()
    for path in folder.glob("segment-*.log"):
        shutil.copy(path, copy)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert scheduler.server.durability is not None
        kept = Kept()
        kept.progress.clock = scheduler.server.durability._keeper.kept.progress.clock
        kept.deaths.add(Death(-9, time.time()))
        keeper = KeeperChannel(theirs, kept, copy)
        async with Scheduler(
            host="127.0.0.1", dashboard_address=":0", keeper=keeper, compile_in_threads=True
        ) as successor:
            yield successor


def commit(scheduler: Scheduler) -> None:
    scheduler.server.transport.flush()
    scheduler.server.recorder.commit()


async def test_peers_that_disconnected_before_the_death_are_removed(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    one, two = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
    peers: list[Any] = [await worker(scheduler, address=one)]
    peers += [await worker(scheduler, address=two, name="bob"), await client(scheduler, "c")]
    streams = scheduler.server.driver.worker_streams
    commit(scheduler)
    scheduler.server.recorder.closed(streams[one].number)  # type: ignore[attr-defined]
    async with succeeded(scheduler, tmp_path) as successor:
        assert list(successor.server.state.workers) == []
        assert "c" not in successor.server.state.clients
        assert successor.server.driver.worker_streams == {}
    for peer in peers:
        peer.writer.close()


async def test_clock_goes_on_after_a_jump_of_the_wall_clock(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    """Otherwise the heartbeats of all workers would be overdue."""
    driver = scheduler.server.driver
    driver.clock = SteadyClock(lambda: time.time() - 3600)
    peer = await numbered_worker(scheduler, 1)
    assert scheduler.server.durability is not None
    progress = scheduler.server.durability._keeper.kept.progress
    await until(lambda: progress.clock < time.time() - 3500)
    commit(scheduler)
    async with succeeded(scheduler, tmp_path) as successor:
        now = successor.server.driver.clock()
        assert driver.clock() - 1 < now < time.time() - 3500
    peer.writer.close()


async def test_last_messages_of_a_worker_are_handled(scheduler: Scheduler, tmp_path: Path) -> None:
    address = "tcp://127.0.0.1:1"
    peer = await worker(scheduler, address=address)
    commit(scheduler)
    number = scheduler.server.driver.worker_streams[address].number
    recorder: Any = scheduler.server.recorder
    message = peer.connection.send([m.LogEvent(topic="last", msg=1)])
    recorder.read(number, b"".join(pack_frames(message)))  # and not handled
    recorder.closed(number)
    async with succeeded(scheduler, tmp_path) as successor:
        assert [msg for _, msg in successor.get_events("last")] == [1]
        assert address not in successor.server.state.workers
    peer.writer.close()


async def test_policies_of_the_memory_manager_changed(scheduler: Scheduler, tmp_path: Path) -> None:
    assert scheduler.server.core.extensions["amm"].running
    commit(scheduler)
    policies = [{"class": "distributed.active_memory_manager.RetireWorker", "address": "a"}]
    with dask.config.set({"distributed.scheduler.active-memory-manager.policies": policies}):
        async with succeeded(scheduler, tmp_path) as successor:
            assert successor.extensions["amm"].running
            assert not successor.server.core.extensions["amm"].running


async def test_connection_of_a_removed_worker_is_closed(scheduler: Scheduler) -> None:
    """The scheduler leaves it open for some seconds, in which a standby may be forked."""
    address = "tcp://127.0.0.1:1"
    peer = await worker(scheduler, address=address)
    server = scheduler.server
    assert server.durability is not None
    number = server.driver.worker_streams[address].number
    server.send_stimulus(WorkerRemoved(address), address)
    await until(lambda: not server.driver.worker_streams)
    recorded = capture(server, server.durability.start)
    known = recorded.connections[number]
    comm = adopt(scheduler, known, recorded)
    assert comm._reason == "its peer was removed"
    peer.writer.close()


async def test_connection_with_a_wrong_secret_is_not_continued(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    server = scheduler.server
    admitted = await Peer.connect(scheduler)
    await until(lambda: _phases(scheduler) == ["rpc"])
    server.secret = Secret(b"secret" * 8)
    refused = await Peer.connect(scheduler)
    await until(lambda: _phases(scheduler) == ["rpc"])  # the keeper holds the other one
    replay = Replay({}, ConnectionFactory(None).accepted)
    for record in Log(tmp_path):
        if record.kind != CLOSED:  # as if the process had died before
            replay.record(record)
    reasons = []
    for known in replay.recorded.connections.values():
        assert known.connection.phase == "rpc"
        comm = adopt(scheduler, known, replay.recorded)
        reasons.append(comm._reason)
    assert reasons == ["", "the scheduler process died before it had checked its handshake"]
    for peer in (admitted, refused):
        peer.writer.close()


async def test_first_request_of_a_connection_is_repeated(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    server = scheduler.server
    assert server.durability is not None
    started = asyncio.Event()

    async def wait(*_: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    server.handlers[m.Versions] = wait
    peer = await Peer.connect(scheduler)
    peer.send_raw({"op": "versions", "reply": True})
    await started.wait()
    captured = capture(server, server.durability.start)
    for recorded in (captured, replayed(scheduler, tmp_path)):
        (known,) = recorded.connections.values()
        assert (len(known.requests), known.has_replied) == (1, False)
    peer.writer.close()


@pytest.mark.parametrize("n_replies", [0, 1])
def test_output_after_the_handshake_is_a_reply(n_replies: int) -> None:
    connection = ConnectionFactory(None).accepted()
    start = b"".join(pack_frames(connection.start()))
    recorded = RecordedConnection(1, PeerFacts("", "", False), NOT_KEPT, connection)
    recorded.receive(b"".join(pack_frames(ConnectionFactory(None).outgoing().start())))
    recorded.wrote(start, 0)  # recorded after the input of the same wake-up
    for _ in range(n_replies):
        recorded.wrote(b"reply", 0)
    assert recorded.has_replied == (n_replies > 0)


class StartsSlowly(SchedulerPlugin):
    """A plugin whose start ends once it was noted that the event loop runs, or late."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def start(self, scheduler: Any) -> None:
        progress = scheduler.server.durability._keeper.kept.progress
        progress._words[0] = 0
        await until(lambda: progress.idle_seconds() < 100)
        await asyncio.sleep(self.seconds)


async def test_plugins_that_start_slowly(
    scheduler: Scheduler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, seconds in (("soon", 0.0), ("late", 10.0)):
        plugin = pickle.dumps(StartsSlowly(seconds))
        scheduler.server.recorder.continued("scheduler", name, plugin)
    commit(scheduler)
    monkeypatch.setattr(plugins, "START_SECONDS", 1.0)
    async with succeeded(scheduler, tmp_path) as successor:
        assert {"soon", "late"} & set(successor.plugins) == {"soon"}
    assert "The scheduler plugin late did not start within 1 s" in caplog.text


async def test_work_stealing_stays_off(scheduler: Scheduler, tmp_path: Path) -> None:
    scheduler.periodic_callbacks["stealing"].stop()
    commit(scheduler)
    async with succeeded(scheduler, tmp_path) as successor:
        assert not successor.server.state.stealing.running
        callback = successor.periodic_callbacks["stealing"]
        assert not callback.is_running()
        callback.start()
        assert successor.server.state.stealing.running


async def test_configured_worker_plugin_that_was_removed_stays_away(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    name = "paceline-worker-end"
    await plugins.unregister_worker_plugin(scheduler.server, name)
    commit(scheduler)
    async with succeeded(scheduler, tmp_path) as successor:
        assert name not in successor.server.request_state.worker_plugins
        commit(successor)
        async with succeeded(successor, tmp_path / "copy") as next_one:
            assert name not in next_one.server.request_state.worker_plugins
            await plugins.register_worker_plugin(next_one.server, b"pickle", name)
            assert next_one.server.recorder.to_continue["worker", name] == b"pickle"


def add(dask_scheduler: Any) -> None:
    dask_scheduler.add_plugin(SchedulerPlugin(), name="lost")


async def add_later(dask_scheduler: Any) -> None:
    plugin = pickle.dumps(SchedulerPlugin())
    await dask_scheduler.register_scheduler_plugin(plugin=plugin, name="kept too")
    dask_scheduler.add_plugin(SchedulerPlugin(), name="lost")


@pytest.mark.parametrize(("function", "wait"), [(add, True), (add_later, True), (add_later, False)])
async def test_plugins_added_by_functions_are_warned_of(
    function: Any, wait: bool, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        return [each.message for each in caplog.records if "are lost" in each.message]

    async with Client(scheduler.address, asynchronous=True, set_as_default=False) as stock:
        await stock.register_plugin(SchedulerPlugin(), name="kept")
        await stock.run_on_scheduler(function, wait=wait)
        await until(warnings)
    (warning,) = warnings()
    name = function.__name__
    assert warning.startswith(f"Function '{name}' has added the scheduler plugins lost, which")


async def numbered_worker(scheduler: Scheduler, number: int) -> Peer:
    return await worker(scheduler, address=f"tcp://127.0.0.1:{number}", name=f"worker-{number}")


async def test_listeners_keep_their_ports(scheduler: Scheduler, tmp_path: Path) -> None:
    kept, ports = Kept(), []
    for _ in range(2):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            keeper = KeeperChannel(theirs, kept, tmp_path)
            backend = DurableBackend(scheduler.server.recorder, keeper)  # type: ignore[arg-type]
            listening = [backend.sockets("127.0.0.1", 0)[0] for _ in range(3)]
            ports.append([sock.getsockname()[1] for sock in listening])
            kept = Kept()
            for sock in listening:
                kept.handle(*receive(ours))
                sock.close()
    assert ports[0] == ports[1]
    KeeperChannel(theirs, kept, tmp_path).close()


async def test_restart_that_is_repeated_waits_for_all_workers(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    peers = [await numbered_worker(scheduler, number) for number in (1, 2)]
    task = asyncio.ensure_future(restart(scheduler.server, stimulus_id="restart", timeout=60))
    await until(lambda: not scheduler.server.state.workers)
    commit(scheduler)
    async with succeeded(scheduler, tmp_path) as successor:
        server = successor.server
        repeated = asyncio.ensure_future(restart(server, stimulus_id="restart", timeout=60))
        for number in (3, 4):
            await asyncio.sleep(0.05)
            assert not repeated.done()
            peers.append(await numbered_worker(successor, number))
        await repeated
        assert server.request_state.restarts == {}
    task.cancel()
    for peer in peers:
        peer.writer.close()


async def test_shuffles_are_continued(scheduler: Scheduler, tmp_path: Path) -> None:
    recorder: Any = scheduler.server.recorder
    recorder.shuffles._restarts["barrier"] = 3
    peer = await numbered_worker(scheduler, 1)
    commit(scheduler)
    async with succeeded(scheduler, tmp_path) as successor:
        continued: Any = successor.server.recorder
        assert continued.shuffles._restarts == {"barrier": 3}
    peer.writer.close()


async def test_exceptions_that_were_being_compared_are_compared_again(
    scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[MatchError] = []
    scheduler.server.driver.instructions[MatchError] = requests.append
    async with Worker(scheduler.address), Client(scheduler.address, asynchronous=True) as stock:
        with dask.annotate(retries=1, retry_on="OSError"):
            fire_and_forget(stock.submit(os.stat, "/nonexistent", key="x"))
        await until(lambda: requests)
        commit(scheduler)
        monkeypatch.setattr(Server, "_match_error", lambda self, found: requests.append(found))
        async with succeeded(scheduler, tmp_path):
            assert [request.key for request in requests] == ["x", "x"]


async def test_handshake_that_was_refused_is_captured(scheduler: Scheduler) -> None:
    server = scheduler.server
    assert server.durability is not None
    for is_admitted in (True, False):
        peer = await Peer.connect(scheduler)
        await until(lambda: _phases(scheduler) == ["rpc"])
        (comm,) = server.transport.comms
        if not is_admitted:
            comm.events.handler = HandshakeHandler(comm.events)  # type: ignore
        (known,) = capture(server, server.durability.start).connections.values()
        assert known.is_admitted is is_admitted
        peer.writer.close()
        await until(lambda: not server.transport.comms)


async def test_output_that_the_socket_has_not_accepted_is_captured(scheduler: Scheduler) -> None:
    server = scheduler.server
    assert server.durability is not None
    peer = await Peer.connect(scheduler)
    await until(lambda: _phases(scheduler) == ["rpc"])
    comms: set[Any] = server.transport.comms
    (comm,) = comms
    for _ in range(8):  # the peer does not read
        comm.collect([bytes(4 * 2**20)])
        comm.flush()
    with socket.socket(fileno=os.dup(comm._transport.get_extra_info("socket").fileno())) as sock:
        counters = transferred(sock)
    assert counters.written < comm.written_nbytes
    (known,) = capture(server, server.durability.start).connections.values()
    known.attach(counters)
    assert known.fault == ""
    assert counters.written + len(known.unsent) == comm.written_nbytes
    peer.writer.close()


def _phases(scheduler: Scheduler) -> list[str]:
    comms: set[Any] = scheduler.server.transport.comms
    return [comm.events.connection.phase for comm in comms]


@pytest.mark.parametrize("kind", ["worker", "nanny"])
async def test_plugins_are_recorded_once_all_peers_have_them(
    kind: str, scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, received = asyncio.Event(), asyncio.Event()

    async def broadcast(*_: Any, **options: Any) -> dict[str, Any]:
        sent.set()
        await received.wait()
        raise OSError("one of them has ended")

    monkeypatch.setattr(plugins, "broadcast", broadcast)
    register = getattr(plugins, f"register_{kind}_plugin")
    server = scheduler.server
    for name in ("kept", "removed"):
        sent.clear()
        received.clear()
        adding = asyncio.ensure_future(register(server, b"pickle", name, idempotent=True))
        await sent.wait()
        commit(scheduler)
        assert (kind, name) not in replayed(scheduler, tmp_path).to_continue
        if name == "removed":
            del getattr(server.request_state, f"{kind}_plugins")[name]
        received.set()
        with pytest.raises(OSError, match="has ended"):
            await adding
    commit(scheduler)
    assert replayed(scheduler, tmp_path).to_continue == {(kind, "kept"): b"pickle"}


async def test_plugins_wait_for_nannies_that_are_continued(scheduler: Scheduler) -> None:
    server = scheduler.server
    reported = asyncio.Event()
    nanny: Any = SimpleNamespace(read=reported.wait)
    adding = asyncio.ensure_future(plugins.register_nanny_plugin(server, b"pickle", "name"))
    waiting = asyncio.ensure_future(plugins.nanny_started(server, "tcp://127.0.0.1:1", nanny))
    await asyncio.sleep(0.05)
    assert not adding.done()
    reported.set()
    await asyncio.gather(waiting, adding)


async def test_message_is_continued_in_its_file(scheduler: Scheduler) -> None:
    server = scheduler.server
    assert server.durability is not None
    server.request_state.gather_memory_nbytes = 0
    peer = await Peer.connect(scheduler)
    await until(lambda: _phases(scheduler) == ["rpc"])
    frames = [bytes([number]) * 100_000 for number in range(3)]
    data = b"".join(pack_frames(frames))
    peer.writer.write(data[:150_000])
    comms: set[Any] = server.transport.comms
    (comm,) = comms
    await until(lambda: comm.read_nbytes > 150_000)
    (known,) = capture(server, server.durability.start).connections.values()
    assert known.receive_spool is not None
    spool = known.receive_spool._spool
    successor: Any = adopt(scheduler, known)
    successor._transport = comm._transport
    successor.events.admit()
    known.receive(data[150_000:])
    assert spool is not None and spool._segments and not spool.sealed
    assert [list(map(bytes, each)) for each in known.requests] == [frames]
    successor.events.messages_received([])
    assert spool.sealed, "its file would stay on the disk"
    peer.writer.close()
