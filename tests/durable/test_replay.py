"""A log leads to the state of the scheduler that wrote it."""

from __future__ import annotations

import asyncio
import pickle
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, Event, Lock, Queue, Variable, Worker
from distributed.diagnostics.plugin import SchedulerPlugin
from paceline.protocol.framing import pack_frames
from paceline.scheduler import Scheduler
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.inspection.invariants import validate_state
from paceline.scheduler.server.build_core import build_core
from paceline.scheduler.server.comm.sockets import PeerFacts
from paceline.scheduler.server.durable.channel.keeper_channel import KeeperChannel
from paceline.scheduler.server.durable.channel.kept import Kept
from paceline.scheduler.server.durable.log import recorder as r
from paceline.scheduler.server.durable.log.durable_comm import DurableComm
from paceline.scheduler.server.durable.log.segments import Log, Record, RecoveryError
from paceline.scheduler.server.durable.recovery.adoption import Adoption
from paceline.scheduler.server.durable.recovery.recorded_connection import (
    NOT_KEPT,
    RecordedConnection,
)
from paceline.scheduler.server.durable.recovery.replay import RecordedState, Replay, RunStart
from paceline.scheduler.server.durable.standby.standby import capture
from paceline.scheduler.server.peers.connection_factory import ConnectionFactory

from tests.support.fake_peers import Peer, until, worker

#: A frame that is not msgpack.
INVALID = b"\xc1"


def new_class() -> type:
    """Return a class that pickle alone cannot find."""

    class Stats:
        n_seen = 1

    return Stats


Stats = new_class()


class Prioritize(SchedulerPlugin):
    """Write an attribute of each task within a hook."""

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "waiting":
            self.scheduler.tasks[key].metadata = {"seen": True, "stats": Stats()}

    async def start(self, scheduler: Any) -> None:
        self.scheduler = scheduler


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[Scheduler]:
    """A scheduler that writes a log. Its keeper is a socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        keeper = KeeperChannel(theirs, Kept(), tmp_path)
        async with Scheduler(
            host="127.0.0.1", dashboard_address=":0", keeper=keeper, compile_in_threads=True
        ) as scheduler:
            yield scheduler


def connected() -> RecordedConnection:
    """Return a connection whose peer has sent its handshake."""
    connection = ConnectionFactory(None).accepted()
    connection.receive_frames(ConnectionFactory(None).outgoing().start())
    return RecordedConnection(1, PeerFacts("", "", False), NOT_KEPT, connection)


def adopt(
    scheduler: Scheduler, known: RecordedConnection, recorded: RecordedState | None = None
) -> DurableComm:
    """Begin to continue the connection `known` of `recorded`. Return its comm."""
    server = scheduler.server
    durability = server.durability
    assert durability is not None
    comm = DurableComm(server.transport, durability.recorder, durability._keeper, known)
    Adoption(server, recorded or RecordedState(durability.start, server.core), known, comm).begin()
    return comm


def replayed(
    scheduler: Scheduler, folder: Path, recorded: RecordedState | None = None, n_before: int = 0
) -> RecordedState:
    """Return the state to which the log leads, once all output was committed.

    It leads there from `recorded`, which is the state after the first `n_before` records.
    """
    scheduler.server.transport.flush()
    scheduler.server.recorder.commit()
    replay = Replay({}, ConnectionFactory(None).accepted, recorded)
    for record in list(Log(folder))[n_before:]:
        replay.record(record)
    return replay.recorded


def described(state: Any) -> dict[str, Any]:
    """Return what is compared of a state."""
    return {
        "tasks": {key: (ts.state, ts.priority, ts.run_id) for key, ts in state.tasks.items()},
        "stories": {key: queries.story(state, key) for key in state.tasks},
        "holders": {
            key: sorted(ws.address for ws in ts.who_has or ()) for key, ts in state.tasks.items()
        },
        "wanted": {
            name: sorted(ts.key for ts in cs.wants_what) for name, cs in state.clients.items()
        },
        "workers": {
            address: (
                ws.nthreads,
                ws.nbytes,
                ws.status,
                ws.last_seen,
                sorted(t.key for t in ws.processing),
            )
            for address, ws in state.workers.items()
        },
        "counter": state.transition_counter,
    }


def slow(x: int, seconds: float = 0.01) -> int:
    import time

    time.sleep(seconds)
    return x + 1


async def work_with_futures(client: Client) -> list[Any]:
    futures = client.map(slow, range(100))
    total = client.submit(sum, futures)
    assert await total == 5050
    failed = client.submit(lambda: 1 / 0)
    await asyncio.wait([asyncio.ensure_future(failed._state.wait())])
    del futures
    return [total, failed, client.submit(slow, 1, 1)]


async def work_with_coordination(client: Client) -> list[Any]:
    variable = Variable("variable", client=client)
    await (await Queue("queue", client=client)).put(1)
    future = client.submit(slow, 5)
    await variable.set(future)
    await Event("event", client=client).set()
    lock = Lock("lock")
    await lock.acquire()
    await client.publish_dataset(data=future)
    return [future, lock, asyncio.ensure_future(Lock("lock").acquire())]


def seen_in_metadata(key: str, dask_scheduler: Any) -> tuple[bool, int]:
    metadata = dask_scheduler.tasks[key].metadata
    return metadata["seen"], metadata["stats"].n_seen


async def work_with_a_plugin(client: Client) -> list[Any]:
    await client.register_plugin(Prioritize(), name="prioritize")
    futures = client.map(slow, range(20), priority=3, retries=1)
    await client.gather(futures)
    await client.scatter({"scattered": [1, 2, 3]})
    assert await client.run_on_scheduler(seen_in_metadata, futures[0].key) == (True, 1)
    return futures


def fail_twice(path: Path) -> int:
    with path.open("a") as file:
        file.write("x")
    if path.stat().st_size < 3:
        raise OSError("fails")
    return path.stat().st_size


async def work_with_policies(client: Client) -> list[Any]:
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.annotate(retries=3, retry_on="OSError", retry_delay="100ms"),
    ):
        assert await client.submit(fail_twice, Path(folder, "runs")) == 3
    with dask.annotate(timeout="200ms"):
        late = client.submit(slow, 1, 1)
    with pytest.raises(TimeoutError):
        await late
    return [await client.gather(client.map(slow, range(10)))]


@pytest.mark.parametrize(
    "work",
    [work_with_futures, work_with_coordination, work_with_a_plugin, work_with_policies],
    ids=lambda f: f.__name__,
)
async def test_log_leads_to_the_same_state(
    work: Callable[[Client], Any], scheduler: Scheduler, tmp_path: Path
) -> None:
    address = scheduler.address
    async with (
        Worker(address, nthreads=2),
        Worker(address, nthreads=1),
        Client(address, asynchronous=True, set_as_default=True) as client,
    ):
        kept = await work(client)
        await asyncio.sleep(0.3)
        recorded = replayed(scheduler, tmp_path)
        live = scheduler.server
        assert described(recorded.core.state) == described(live.state)
        validate_state(recorded.core.state)
        assert recorded.n_errors == 0
        assert recorded.last_request_id == live.driver.last_request_id
        for name, stream in live.driver.worker_streams.items():
            known = recorded.streams["worker", name]
            assert (known.n_written, list(known.unwritten)) == (stream._n_messages, [])
            assert known.number == stream.peer.comm.number
        for name in live.driver.client_streams:
            assert list(recorded.streams["client", name].messages) == []
        waiting = [each for each in recorded.connections.values() if each.request_id]
        assert len(waiting) == (work is work_with_coordination)
        for each in kept:
            if isinstance(each, asyncio.Future):
                each.cancel()


def test_stream_with_a_fault_does_not_end_the_recovery(tmp_path: Path) -> None:
    """Its messages are missing, which only its own peer notices: that is removed."""
    recorded = RecordedState(
        RunStart("", SchedulerConfig(), "", 0.0), build_core(SchedulerConfig())
    )
    recorded.connections[1] = known = connected()
    known.kind, known.name = "client", "c"
    replay = Replay({}, ConnectionFactory(None).accepted, recorded)
    steps = [(r.OTHER, 1, "UpdateGraph"), (r.BATCH, 1, 2, 0.0), (r.WROTE, 1, 3, b"abc")]
    records = [Record(r.STEP, 0, memoryview(pickle.dumps([step]))) for step in steps]
    for record in records:
        with pytest.raises(RecoveryError):
            replay.record(record)
    known.fault, recorded.last_graph_id = "invalid", 0
    for record in records:
        replay.record(record)
    assert (recorded.last_graph_id, known.written, recorded.n_turns) == (1, 6, 0)


may_compile = threading.Event()


def wait_to_compile() -> bool:
    return may_compile.wait(30)


class CompilesSlowly:
    """An argument whose unpickling waits for ``may_compile``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return wait_to_compile, ()


async def test_graph_that_is_compiled_keeps_the_time_of_its_arrival(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    """Its deadline counts from there."""
    server = scheduler.server
    assert server.durability is not None
    async with Client(scheduler.address, asynchronous=True, set_as_default=False) as client:
        future = client.submit(type, CompilesSlowly(), pure=False)
        stream: Any = server.driver.client_streams[client.id]
        await until(lambda: stream.pending_graphs)
        received_at = stream.pending_graphs[0].received_at
        await asyncio.sleep(1)
        captured = capture(server, server.durability.start)
        (graph,) = captured.streams["client", client.id].messages
        assert graph.received_at == received_at
        (graph,) = replayed(scheduler, tmp_path).streams["client", client.id].messages
        assert received_at - 0.5 < graph.received_at <= received_at
        stream.pending_graphs.clear()
        stream.continue_from([graph], [], 0)
        assert stream.pending_graphs[0].received_at == graph.received_at
        may_compile.set()
        future.release()


async def test_stream_that_ends_at_once_is_replayed(scheduler: Scheduler, tmp_path: Path) -> None:
    peer = await Peer.connect(scheduler)
    peer.send_raw({"op": "connection_stream"})
    peer.writer.close()
    await until(lambda: not scheduler.server.transport.comms)
    assert replayed(scheduler, tmp_path).connections == {}


def test_request_that_is_read_with_invalid_data_is_not_lost() -> None:
    connection = ConnectionFactory(None).accepted()
    known = RecordedConnection(1, PeerFacts("", "", False), NOT_KEPT, connection)
    messages = [ConnectionFactory(None).outgoing().start(), [b"request"]]
    known.receive(b"".join(b"".join(pack_frames(each)) for each in messages) + bytes(16))
    assert list(known.requests) == [[b"request"]]
    assert "less than the lengths" in known.fault


async def test_invalid_message_behind_a_registration_is_replayed(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    peer = await Peer.connect(scheduler)
    codec = peer.connection.codec
    request = {"op": "register-client", "client": "c", "reply": False, "versions": {}}
    pieces = [*pack_frames(codec.encode(request)), *pack_frames([INVALID])]
    peer.writer.write(b"".join(pieces))
    await until(lambda: not scheduler.server.transport.comms)
    recorded = replayed(scheduler, tmp_path)
    assert recorded.n_turns > 0
    assert recorded.connections == {} and "c" not in recorded.core.state.clients


@pytest.mark.parametrize("n_valid", [0, 1])
async def test_invalid_request_that_waits_closes_its_connection(
    n_valid: int, scheduler: Scheduler
) -> None:
    known = connected()
    request = {"op": "register-client", "client": "c", "reply": False, "versions": {}}
    known.requests += [list(known.connection.codec.encode(request))] * n_valid + [[INVALID]]
    assert adopt(scheduler, known)._closing


@pytest.mark.parametrize(
    ("request_", "is_repeated"),
    [
        ({"op": "broadcast", "msg": {"op": "versions"}}, True),
        ({"op": "broadcast", "msg": {"op": "run", "function": b""}}, False),
        ({"op": "proxy", "msg": {"op": "get_logs"}, "worker": "tcp://127.0.0.1:1"}, True),
        ({"op": "proxy", "msg": {"op": "run"}, "worker": "tcp://127.0.0.1:1"}, False),
        ({"op": "run_function", "function": b""}, False),
        ({"op": "feed", "function": b""}, True),
        ({"op": "ncores"}, True),
    ],
)
async def test_requests_that_may_have_effects_are_not_repeated(
    request_: dict[str, Any], is_repeated: bool, scheduler: Scheduler
) -> None:
    known = connected()
    known.requests.append(list(known.connection.codec.encode(request_)))
    comm = adopt(scheduler, known)
    assert comm._closing is not is_repeated
    comm.abort("the test has ended")


async def test_replaced_handler_of_the_core_is_replayed(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    address = "tcp://127.0.0.1:1"
    peer = await worker(scheduler, address=address)
    handled: list[Any] = []
    handlers = scheduler.server.plugins.facade.stream_handlers
    handlers["log-event"] = lambda **message: handled.append(message["msg"])
    peer.send_raw([{"op": "log-event", "topic": "topic", "msg": 1}, {"op": "unknown"}])
    await until(lambda: handled)
    recorded = replayed(scheduler, tmp_path)
    assert list(recorded.streams["worker", address].messages) == []
    peer.writer.close()
