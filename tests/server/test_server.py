"""A scheduler on a real socket, with valid and invalid messages of peers."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cloudpickle
import dask.config
import pytest
from distributed.core import clean_exception
from paceline.protocol import messages as m
from paceline.protocol.payload import Payload, payload_pickle
from paceline.scheduler.core.turn_observer import TurnObserver
from paceline.scheduler.server.cli import run_scheduler
from paceline.scheduler.server.runtime.scheduler_file import SchedulerFile
from paceline.scheduler.server.scheduler import Scheduler

from tests.support.fake_peers import Peer, client, registration, until, worker


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as made:
        yield made


def raised(reply: Any) -> BaseException:
    """Return the exception that a stock peer would raise."""
    assert reply["status"] == "uncaught-error"
    opened = {
        name: value.frames[0] if isinstance(value, Payload) else value
        for name, value in reply.items()
    }
    _, error, _ = clean_exception(
        **{k: bytes(v) if k in ("exception", "traceback") and v else v for k, v in opened.items()}
    )
    assert error is not None
    return error


async def test_requests_and_close(scheduler: Scheduler) -> None:
    peer = await Peer.connect(scheduler)
    identity = await peer.request({"op": "identity"})
    assert identity["type"] == "Scheduler"
    assert identity["address"] == scheduler.address
    peer.send_raw({"op": "echo", "data": 1, "reply": False})
    assert await peer.request({"op": "echo", "data": (1, {"a": None})}) == (1, {"a": None})
    assert await peer.request({"op": "echo", "data": 2, "close": True}) == 2
    assert await peer.ended()
    other = await Peer.connect(scheduler)
    assert await other.request({"op": "close"}) == "OK"
    assert await other.ended()


async def test_performance_report_that_began_before_a_restart(scheduler: Scheduler) -> None:
    """The new process has fewer values of its system monitor than the client has counted."""
    pytest.importorskip("bokeh")
    peer = await Peer.connect(scheduler)
    request = {"op": "performance_report", "start": time.time(), "last_count": 10_000}
    assert "Dask Performance Report" in await peer.request(request)


async def test_queries_resolve_host_names(scheduler: Scheduler) -> None:
    address = "tcp://127.0.0.1:1"
    _connected = await worker(scheduler, address=address)
    peer = await Peer.connect(scheduler)
    for name in ("localhost:1", "tcp://localhost:1"):
        assert await peer.request({"op": "has_what", "workers": [name]}) == {address: ()}
        assert await peer.request({"op": "processing", "workers": [name]}) == {address: ()}
        assert await peer.request({"op": "ncores", "workers": [name]}) == {address: 2}
        assert await peer.request({"op": "ncores_running", "workers": [name]}) == {address: 2}


async def test_workers_with_numbers_as_names(scheduler: Scheduler) -> None:
    """`SpecCluster` names workers by numbers."""
    address = "tcp://127.0.0.1:1"
    _connected = await worker(scheduler, address=address, name=7)
    peer = await Peer.connect(scheduler)
    assert await peer.request({"op": "has_what", "workers": [7]}) == {address: ()}
    assert await peer.request({"op": "processing", "workers": [7]}) == {address: ()}
    assert await peer.request({"op": "ncores", "workers": [7]}) == {address: 2}
    assert await peer.request({"op": "ncores_running", "workers": [7]}) == {address: 2}
    identity = await peer.request({"op": "identity", "n_workers": None})
    assert [info["name"] for info in identity["workers"].values()] == [7]


async def test_time_limits_as_users_write_them(scheduler: Scheduler) -> None:
    """`Client.restart` allows None, and `Client.scatter` sends its time limit unchanged."""
    peer = await Peer.connect(scheduler)
    assert await peer.request({"op": "restart", "timeout": None}) is None
    assert await peer.request({"op": "restart_workers", "workers": [], "timeout": None}) == {}
    reply = await peer.request({"op": "scatter", "data": {"x": 1}, "timeout": "10ms"})
    assert "No valid workers found" in str(raised(reply))


async def test_metadata_under_an_unhashable_name(scheduler: Scheduler) -> None:
    peer = await Peer.connect(scheduler)
    reply = await peer.request({"op": "set_metadata", "keys": [{"a": 1}], "value": 1})
    assert "unhashable" in str(raised(reply))
    assert await peer.request({"op": "get_metadata", "keys": []}) == {}


async def test_invalid_request_keeps_the_connection(scheduler: Scheduler, caplog: Any) -> None:
    peer = await Peer.connect(scheduler)
    assert await peer.request({"op": "nothing_like_it"}) is None
    assert "No handler nothing_like_it found in Scheduler" in caplog.text
    del scheduler.server.handlers[m.Echo]
    assert "serve the op 'echo'" in str(raised(await peer.request({"op": "echo"})))
    assert isinstance(raised(await peer.request({"op": "who_has", "nonsense": 1})), TypeError)
    assert isinstance(raised(await peer.request({"op": "nbytes", "keys": ["no-such"]})), KeyError)
    assert isinstance(raised(await peer.request({"op": "heartbeat_worker"})), TypeError)
    assert await peer.request({"op": "ncores"}) == {}


async def test_unknown_tasks_and_workers(scheduler: Scheduler) -> None:
    peer = await Peer.connect(scheduler)
    for request in (
        {"op": "retry", "keys": ["missing"]},
        {"op": "set_restrictions", "worker": {"missing": ["w"]}},
        {"op": "set_resources", "worker": "missing", "resources": {"A": 1}},
    ):
        assert repr(raised(await peer.request(request))) == "KeyError('missing')"


async def test_pipelined_requests_are_answered_in_order(scheduler: Scheduler) -> None:
    peer = await Peer.connect(scheduler)
    peer.send_raw({"op": "event_wait", "name": "e", "timeout": 0.05})
    for i in range(100):
        peer.send_raw({"op": "echo", "data": i})
    replies = [(await peer.event()).value for _ in range(101)]
    assert replies == [False, *range(100)]


async def test_request_of_disconnected_peer_is_dropped(scheduler: Scheduler) -> None:
    peer = await Peer.connect(scheduler)
    peer.send_raw({"op": "event_wait", "name": "e", "timeout": None})
    await asyncio.sleep(0.05)
    assert len(scheduler.server.driver.replies.futures) == 1
    peer.writer.close()
    async with asyncio.timeout(5):
        while scheduler.server.driver.replies.futures:
            await asyncio.sleep(0.01)


async def test_cancelled_request_closes_its_connection(scheduler: Scheduler) -> None:
    """A client does not expect CancelledError as a reply."""

    async def cancelled() -> None:
        raise asyncio.CancelledError

    peer, waiting = await Peer.connect(scheduler), await Peer.connect(scheduler)
    peer.send_raw({"op": "run_function", "function": cloudpickle.dumps(cancelled)})
    with pytest.raises((EOFError, ConnectionError)):
        await peer.event()
    waiting.send_raw({"op": "event_wait", "name": "e", "timeout": None})
    await until(lambda: scheduler.server.driver.replies.futures)
    await scheduler.close()
    with pytest.raises((EOFError, ConnectionError)):
        await waiting.event()


async def test_workers_register_and_leave(scheduler: Scheduler, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "distributed.scheduler")
    alice = await worker(scheduler)
    assert list(scheduler.workers) == ["tcp://127.0.0.1:1"]
    assert "Register worker addr: tcp://127.0.0.1:1 name: alice" in caplog.text
    twin = await Peer.connect(scheduler)
    reply = await twin.request(registration(address="tcp://127.0.0.1:2"))
    assert (reply["status"], reply["message"]) == ("error", "name taken, alice")
    idler = await Peer.connect(scheduler)
    reply = await idler.request(registration(address="tcp://127.0.0.1:3", name="idler", nthreads=0))
    assert reply["status"] == "error" and "at least one is required" in reply["message"]
    beat = await twin.request(
        {"op": "heartbeat_worker", "address": "tcp://127.0.0.1:9", "metrics": {}}
    )
    assert beat == {"status": "missing"}
    alice.writer.close()
    async with asyncio.timeout(5):
        while scheduler.workers:
            await asyncio.sleep(0.01)
    again = await twin.request(registration(address="tcp://127.0.0.1:2"))
    assert again["status"] == "OK"


async def test_invalid_message_affects_only_its_sender(scheduler: Scheduler, caplog: Any) -> None:
    alice = await worker(scheduler)
    alice.send_raw(
        [
            {"op": "task-finished", "key": "k", "run_id": "many", "stimulus_id": "s"},
            {"op": "no-such-op"},
            {"op": "worker-status-change", "status": "paused", "stimulus_id": "s"},
        ]
    )
    async with asyncio.timeout(5):
        while scheduler.workers["tcp://127.0.0.1:1"].status.name != "paused":
            await asyncio.sleep(0.01)
    assert "task-finished" in caplog.text
    assert "$.run_id" in caplog.text
    assert "no-such-op" in caplog.text


async def test_clients_connect_and_leave(scheduler: Scheduler, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "distributed.scheduler")
    peer = await client(scheduler)
    peer.send([m.HeartbeatClient()])
    (answer,) = await peer.messages()
    assert isinstance(answer, m.AdjustHeartbeatInterval)
    assert "client-1" in scheduler.server.state.clients
    peer.send([m.CloseClient(), m.CloseStream()])
    assert await peer.ended()
    assert "client-1" not in scheduler.server.state.clients
    for line in ("Receive client connection: ", "Remove client ", "Close client connection: "):
        assert f"{line}client-1" in caplog.text


async def test_silent_peer_is_disconnected(
    scheduler: Scheduler, caplog: Any, monkeypatch: Any
) -> None:
    from paceline.scheduler.server.peers import peer

    monkeypatch.setattr(peer, "HANDSHAKE_SECONDS", 0.05)
    reader, _ = await asyncio.open_connection("127.0.0.1", scheduler.port)
    async with asyncio.timeout(5):
        while await reader.read(1000):
            pass
    assert "no handshake" in caplog.text


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64])
async def test_invalid_bytes_close_the_connection(
    scheduler: Scheduler, caplog: Any, junk: bytes
) -> None:
    good = await Peer.connect(scheduler)
    reader, writer = await asyncio.open_connection("127.0.0.1", scheduler.port)
    writer.write(junk)
    async with asyncio.timeout(5):
        while await reader.read(1000):
            pass
    assert caplog.text.count("Dropping connection to") == 1
    assert await good.request({"op": "echo", "data": 1}) == 1


async def test_frame_without_memory_is_no_error_of_the_peer(
    scheduler: Scheduler, caplog: Any, monkeypatch: Any
) -> None:
    scheduler.server.request_state.gather_memory_nbytes = 2**40  # no temporary file
    peer = await Peer.connect(scheduler)
    assert await peer.request({"op": "echo", "data": 1}) == 1

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", fail)
    peer.writer.write(struct.pack("<QQQ", 16, 1, 2**30) + bytes(8))
    assert await peer.ended()
    assert f": no memory for a frame of {2**30} bytes" in caplog.text
    assert "malformed" not in caplog.text


async def test_closing_notifies_workers(scheduler: Scheduler) -> None:
    alice = await worker(scheduler)
    await scheduler.close(timeout=0.2, reason="test")
    said = await alice.messages()
    assert [type(x) for x in said] == [m.Close, m.CloseStream]
    assert said[0].reason == "scheduler-close"
    assert scheduler.status.name == "closed"
    await scheduler.finished()


async def test_graphs_keep_a_clients_order(scheduler: Scheduler) -> None:
    """Messages after an update-graph wait for it; here a release that must follow its graph."""
    import cloudpickle
    from dask._expr import LLGExpr
    from paceline.protocol.payload import serialized_payload

    peer = await client(scheduler)
    alice = await worker(scheduler)
    for i in range(3):
        dsk = {f"x-{i}": (sum, [1, 2])}
        expr = serialized_payload(
            {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(LLGExpr(dsk))]
        )
        peer.send([m.UpdateGraph(expr_ser=expr, keys=[f"x-{i}"])])
    # without this message, graphs that are not compiled yet when the release arrives would be cancelled
    peer.send([m.ClientDesiresKeys(keys=["x-2"])])
    peer.send([m.ClientReleasesKeys(keys=["x-0", "x-1", "x-2"])])
    seen: list[Any] = []
    async with asyncio.timeout(60):
        while not seen or scheduler.server.state.tasks:
            seen += await alice.messages()
    # the last one may be released before it was sent: its release follows at once
    computed = [x.key for x in seen if type(x) is m.ComputeTask]
    assert computed == ["x-0", "x-1", "x-2"][: len(computed)]
    payload_pickle(next(x for x in seen if type(x) is m.ComputeTask).run_spec)


async def test_scheduler_file_and_options(tmp_path: Any) -> None:
    import json

    path = tmp_path / "s.json"
    async with Scheduler(
        host="127.0.0.1", port=0, dashboard_address=":0", scheduler_file=str(path)
    ) as made:
        facts = json.loads(path.read_text())
        assert facts["address"] == made.address
        assert facts["services"] == {"dashboard": made.services["dashboard"].port}
        assert "not-running" not in repr(made)
    assert not path.exists()
    with pytest.raises(ValueError, match="needs certificates"):
        await Scheduler(host="127.0.0.1", protocol="tls", port=0, dashboard=False)
    with pytest.raises(TypeError, match="unexpected keyword"):
        Scheduler(no_such_option=1)


async def test_scheduler_file_that_cannot_be_written(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "absent" / "s.json"
    with pytest.raises(FileNotFoundError):
        await Scheduler(host="127.0.0.1", port=0, dashboard=False, scheduler_file=str(path))
    file = SchedulerFile(str(path))
    with pytest.raises(FileNotFoundError):
        file.write({"address": "tcp://h:1"}, is_successor=False)
    file.write({"address": "tcp://h:1"}, is_successor=True)
    assert f"cannot be written: [Errno 2] No such file or directory: '{path}'" in caplog.text
    path.parent.mkdir()
    file.write({"address": "tcp://h:1"}, is_successor=True)
    assert path.exists()
    file.remove()
    assert not path.exists()


@pytest.mark.parametrize("failing", ["json.dump", "os.replace"])
def test_failed_write_of_the_scheduler_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "s.json"
    monkeypatch.setattr(failing, fail)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'") as raised:
        SchedulerFile(str(path)).write({"address": "tcp://h:1"}, is_successor=False)
    assert not list(tmp_path.iterdir())
    assert "--host" not in run_scheduler.advice(raised.value, {"host": "127.0.0.1"})


@pytest.mark.parametrize(("given", "expected"), [(0, 60.0), ("0", 0.0), ("1 s", 1.0), (None, 60.0)])
async def test_duration_of_zero_is_as_configured(given: Any, expected: float) -> None:
    names = ("worker-ttl", "idle-timeout")
    with dask.config.set({f"distributed.scheduler.{name}": "1 minute" for name in names}):
        config = Scheduler(worker_ttl=given, idle_timeout=given)._config
    assert config.worker_ttl_seconds == config.idle_timeout_seconds == expected


async def test_idle_timeout_closes_the_scheduler() -> None:
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False, idle_timeout="300ms") as made:
        async with asyncio.timeout(5):
            await made.finished()


async def test_flood_does_not_block_others(scheduler: Scheduler, monkeypatch: Any) -> None:
    """Many messages of one peer are handled in parts, in order."""
    flood = await client(scheduler, "flood")
    order: list[Any] = []
    turns: list[int] = []
    handlers = scheduler.server.core.handlers
    handle = handlers[m.ReportKey]

    def noting(turn: Any, message: Any) -> None:
        order.append(message.key)
        handle(turn, message)

    handlers[m.ReportKey] = noting  # the loop's profiler replaces methods that the driver calls

    class Counting(TurnObserver):
        def before_flush(self, outbox: Any) -> None:
            turns.append(len(order))

    scheduler.server.driver.add_observer(Counting())
    for start in range(0, 4000, 2000):
        flood.send([m.ReportKey(key=i) for i in range(start, start + 2000)])
    flood.send([m.ReportKey(key="last")])
    await flood.writer.drain()
    flood.writer.write_eof()  # closing with unread data would make the kernel discard what was sent
    async with asyncio.timeout(10):
        while "flood" in scheduler.server.state.clients:
            await asyncio.sleep(0.01)
    assert order == [*range(4000), "last"]
    assert max(b - a for a, b in itertools.pairwise(turns)) <= 400
