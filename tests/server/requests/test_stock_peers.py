"""Requests with stock workers, nannies and clients over real sockets, all in this process (except nannies' workers)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import numpy as np
import pytest
from distributed import Client, Event, Nanny, NannyPlugin, SchedulerPlugin, Worker, WorkerPlugin
from distributed.worker_state_machine import FreeKeysEvent
from paceline.protocol.framing import LARGE_FRAME_NBYTES
from paceline.scheduler.server.peers.pool import SHARED_PER_ADDRESS
from paceline.scheduler.server.requests import gather as gather_module
from paceline.scheduler.server.requests.gather import merge_shards
from paceline.scheduler.server.scheduler import Scheduler

from tests.support.fake_peers import until
from tests.support.stock_cluster import cluster

pytestmark = pytest.mark.timeout(90)


async def test_gather_in_memory_and_in_a_file(tmp_path: Path) -> None:
    async with cluster() as (scheduler, client, _workers):
        state = scheduler.server.request_state
        state.gather_memory_nbytes = 4 * LARGE_FRAME_NBYTES
        state.spool_directory = str(tmp_path)
        values = [np.arange(n) for n in (0, 10, 10_000, 100_000, 300_000)] * 3 + ["text", None]
        futures = await client.scatter(values, hash=False)
        for _ in range(2):
            results = await client.gather(futures, direct=False)
            assert all(np.array_equal(a, b) for a, b in zip(results, values))
        assert not list(tmp_path.iterdir())


async def test_buffer_that_dask_shards_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    mended = []

    def watched(payload: Any, spool: Any) -> Any:
        mended.append(merge_shards(payload, spool))
        return mended[-1]

    monkeypatch.setattr(gather_module, "merge_shards", watched)
    async with cluster(1) as (_scheduler, client, _workers):
        x = client.submit(np.arange, 9_000_000)
        result = await client.gather(x, direct=False)
        assert np.array_equal(result, np.arange(9_000_000)) and result.flags.writeable
        assert [len(payload.frames) for payload in mended] == [1]


async def test_a_gather_while_a_holder_dies() -> None:
    async with cluster(3) as (_, client, workers):
        (x,) = await client.scatter([np.arange(200_000)], broadcast=True)
        y = client.submit(np.arange, 200_000, workers=["w0"], allow_other_workers=True)
        await y
        await workers[0].close()
        a, b = await client.gather([x, y], direct=False)
        assert np.array_equal(a, b)


async def test_worker_that_dropped_its_data_is_detected() -> None:
    async with cluster() as (_, client, workers):
        x = client.submit(np.arange, 10, workers=["w0"])
        await x
        workers[0].handle_stimulus(FreeKeysEvent(keys=[x.key], stimulus_id="test"))
        assert not workers[0].data
        assert len(await client.gather(x, direct=False)) == 10


async def test_scatter_and_replicate() -> None:
    async with cluster(3) as (_, client, workers):
        futures = await client.scatter({"x": 1, ("y", 0): np.arange(3), "z": None})
        assert set(futures) == {"x", ("y", 0), "z"}
        assert (await client.gather(futures["x"], direct=False)) == 1
        assert sorted(len(w.data) for w in workers) == [1, 1, 1]
        await client.replicate(list(futures.values()))
        assert [len(w.data) for w in workers] == [3, 3, 3]
        await client.replicate(list(futures.values()), n=1)
        who_has = await client.who_has(list(futures.values()))
        assert [len(addresses) for addresses in who_has.values()] == [1, 1, 1]
        await until(lambda: sum(len(w.data) for w in workers) == 3)


async def test_run_on_workers_and_its_errors() -> None:
    async with cluster() as (_, client, workers):
        assert await client.run(lambda dask_worker: dask_worker.name) == {
            workers[0].address: "w0",
            workers[1].address: "w1",
        }
        with pytest.raises(ZeroDivisionError):
            await client.run(lambda: 1 / 0)
        errors = await client.run(lambda: 1 / 0, on_error="return")
        assert all(isinstance(e, ZeroDivisionError) for e in errors.values())


async def test_long_functions_do_not_block_other_requests() -> None:
    async def occupy(n: int) -> None:
        await Event(f"started-{n}").set()
        await Event("go").wait()

    async with cluster(1) as (scheduler, client, _workers):
        x = client.submit(int, 3, key="x")
        await x
        running = [asyncio.create_task(client.run(occupy, n)) for n in range(12)]
        for n in range(12):
            await Event(f"started-{n}", client).wait()
        assert await client.gather(x, direct=False) == 3
        await Event("go", client).set()
        await asyncio.gather(*running)
        await until(lambda: scheduler.server.pool.counts == (SHARED_PER_ADDRESS, 0))


async def test_run_on_an_absent_worker() -> None:
    absent = "tcp://127.0.0.1:9"
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        async with cluster() as (_, client, _workers):
            with pytest.raises(OSError, match="Timed out"):
                await client.run(lambda: 1, workers=[absent])
            assert await client.run(lambda: 1, workers=[absent], on_error="ignore") == {}


@pytest.mark.violations  # the scheduler sends a worker an invalid list of keys
async def test_error_of_a_worker_reaches_the_client_unchanged() -> None:
    async with cluster(1) as (_scheduler, client, workers):
        msg = {"op": "get_story", "keys_or_stimuli": 5}
        with pytest.raises(TypeError, match="must be an iterable"):
            await client.scheduler.broadcast(msg=msg)
        with pytest.raises(TypeError, match="must be an iterable"):
            await client.scheduler.proxy(msg=msg, worker=workers[0].address)


async def test_run_on_scheduler() -> None:
    async with cluster() as (_scheduler, client, _workers):
        assert await client.run_on_scheduler(lambda x, y: x + y, 1, y=2) == 3
        names = await client.run_on_scheduler(
            lambda dask_scheduler: [ws.name for ws in dask_scheduler.workers.values()]
        )
        assert sorted(names) == ["w0", "w1"]
        big = await client.run_on_scheduler(lambda: np.arange(100_000))
        assert big[-1] == 99_999
        with pytest.raises(ZeroDivisionError):
            await client.run_on_scheduler(lambda: 1 / 0)

        async def later(x: int) -> int:
            await asyncio.sleep(0.01)
            return x

        assert await client.run_on_scheduler(later, 5) == 5


async def test_serializers_of_the_client() -> None:
    families = ["dask", "msgpack"]
    options = {"serializers": families, "deserializers": families, "asynchronous": True}

    async with (
        cluster(1) as (scheduler, _client, workers),
        Client(scheduler.address, **options) as client,
    ):
        address = workers[0].address
        assert await client.run(lambda: {"a": (1, 2)}) == {address: {"a": (1, 2)}}
        assert await client.run_on_scheduler(lambda: {"a": 1}) == {"a": 1}
        assert await client.run_on_scheduler(lambda: {1}) == {1}
        array = await client.run_on_scheduler(lambda: np.arange(3))
        assert list(array) == [0, 1, 2]
        msg = {"op": "run", "function": cloudpickle.dumps(lambda: {"a": 1})}
        reply = await client.scheduler.proxy(msg=msg, worker=address)
        assert reply["result"] == {"a": 1}


async def test_code_in_the_scheduler_outlives_its_request() -> None:
    async def function(dask_scheduler: Any) -> None:
        dask_scheduler.steps = 1
        await Event("go").wait()
        dask_scheduler.steps = 2

    class Plugin(SchedulerPlugin):
        async def start(self, scheduler: Any) -> None:
            await function(scheduler)

    async with cluster(0) as (scheduler, client, _workers):
        for run in (
            lambda: client.run_on_scheduler(function),
            lambda: client.register_plugin(Plugin(), name="slow"),
        ):
            scheduler.steps = 0
            await Event("go", client).clear()
            asking = asyncio.ensure_future(run())
            await until(lambda: scheduler.steps == 1)
            asking.cancel()
            await Event("go", client).set()
            await until(lambda: scheduler.steps == 2)
        await until(lambda: "slow" in scheduler.plugins)


async def test_a_retired_workers_data_is_kept() -> None:
    async with cluster(3) as (_scheduler, client, workers):
        futures = client.map(lambda i: np.arange(i), range(30))
        await client.gather(futures)
        retired = await client.retire_workers(names=["w1"], close_workers=True)
        assert [facts["name"] for facts in retired.values()] == ["w1"]
        await until(lambda: workers[1].status.name == "closed")
        assert [len(x) for x in await client.gather(futures, direct=False)] == list(range(30))
        log = await client.get_events("all")
        assert any(event["action"] == "retire-workers" for _, event in log)


async def test_worker_that_closes_hands_over_its_data() -> None:
    async with cluster(2) as (_, client, workers):
        x = client.submit(np.arange, 10, workers=["w0"])
        await x
        await workers[0].close_gracefully()
        assert len(await client.gather(x, direct=False)) == 10
        assert workers[1].data


class Marks(WorkerPlugin):
    name = "marks"

    def setup(self, worker: Any) -> None:
        worker.marked = True

    def teardown(self, worker: Any) -> None:
        worker.marked = False


class Fails(WorkerPlugin):
    name = "fails"

    def setup(self, worker: Any) -> None:
        raise RuntimeError("no setup")


class Counts(SchedulerPlugin):
    name = "counts"

    async def start(self, scheduler: Any) -> None:
        scheduler.counted = []

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "memory":
            self.last = key


async def test_plugins_of_workers_and_of_the_scheduler() -> None:
    async with cluster(1) as (scheduler, client, workers):
        await client.register_plugin(Marks())
        assert workers[0].marked
        async with Worker(scheduler.address, dashboard=False) as late:
            assert late.marked
            await client.unregister_worker_plugin("marks")
            assert not late.marked and not workers[0].marked
        with pytest.raises(ValueError, match="does not exist"):
            await client.unregister_worker_plugin("marks")
        with pytest.raises(RuntimeError, match="no setup"):
            await client.register_plugin(Fails())
        await client.register_plugin(Counts())
        x = client.submit(int, 3)
        assert await x == 3
        assert scheduler.server.plugins.by_name["counts"].last == x.key
        await client.unregister_scheduler_plugin("counts")
        with pytest.raises(ValueError, match="Could not find plugin"):
            await client.unregister_scheduler_plugin("counts")


class Environment(NannyPlugin):
    name = "environment"

    def setup(self, nanny: Any) -> None:
        nanny.env["PACELINE_TEST_VARIABLE"] = "set"


async def test_restart_under_a_nanny() -> None:
    async with cluster(0) as (scheduler, client, _):
        await client.register_plugin(Environment())
        async with Nanny(scheduler.address, nthreads=1, dashboard=False, name="n") as nanny:
            (address,) = scheduler.server.state.workers
            env = await client.run(lambda: __import__("os").environ["PACELINE_TEST_VARIABLE"])
            assert env == {address: "set"}
            assert list(await client.get_worker_logs(nanny=True)) == [address]
            pid = nanny.pid
            x = client.submit(int, 3)
            await x
            await client.restart(timeout=60)
            assert x.cancelled()
            assert nanny.pid != pid
            assert await client.submit(int, 4) == 4
            out = await client.restart_workers(list(scheduler.server.state.workers), timeout=60)
            assert set(out.values()) == {"OK"}
            assert await client.submit(int, 5) == 5


async def test_restart_without_nanny_reports_the_reason() -> None:
    async with cluster(1) as (_, client, workers):
        with pytest.raises(TimeoutError, match="worker\\(s\\) not using Nannies were just shut"):
            await client.restart(timeout=0.5)
        assert workers[0].status.name == "closed"


async def test_logs_versions_and_call_stacks() -> None:
    async with cluster() as (_scheduler, client, workers):
        logging.getLogger("distributed.scheduler").warning("a line for the log")
        lines = await client.get_scheduler_logs(n=1)
        assert lines[0][0] == "WARNING" and "a line for the log" in lines[0][1]
        log = client.scheduler.get_logs
        (latest, *_) = await log(n=1, timestamps=True)
        assert latest in await log(start=latest[0], timestamps=True)
        assert await log(start=latest[0] + 100) == ()
        assert list(await client.get_worker_logs(n=1)) == [w.address for w in workers]
        versions = await client.get_versions(check=True)
        assert versions["scheduler"]["host"]["python"]

        def slow() -> int:
            import time

            time.sleep(0.6)
            return 1

        x = client.submit(slow, key="slow")
        await until(lambda: any(w.state.executing_count for w in workers))
        stacks = await client.call_stack(x)
        assert "slow" in str(stacks)
        await x
        assert (await client.profile())["children"] is not None
        metadata = await client.scheduler.get_task_status(keys=["slow", "unknown"])
        assert metadata == {"slow": "memory", "unknown": None}


async def test_cluster_dump_can_be_read(tmp_path: Path) -> None:
    from distributed.cluster_dump import DumpArtefact

    async with cluster() as (_, client, workers):
        x = client.submit(int, 3, key=("x", 0))
        await x
        await client.dump_cluster_state(str(tmp_path / "dump"), exclude=("nbytes",))
        await client.dump_cluster_state(f"file://{tmp_path}/other", format="yaml")
        dump = DumpArtefact.from_url(str(tmp_path / "dump.msgpack.gz"))
        assert set(dump["workers"]) == {w.address for w in workers}
        assert dump["scheduler"]["tasks"]["('x', 0)"]["state"] == "memory"
        assert "nbytes" not in dump["scheduler"]["tasks"]["('x', 0)"]
        (story,) = dump.scheduler_story("('x', 0)").values()
        assert story[-1][1:3] == ("processing", "memory")
        assert dump["scheduler"]["events"]["all"]["count"] > 0
        assert (tmp_path / "other.yaml").exists()


async def test_task_stream_and_task_metadata() -> None:
    from distributed import get_task_metadata
    from distributed.diagnostics.task_stream import get_task_stream

    async with cluster() as (_, client, _workers):
        async with get_task_stream(client=client) as stream:
            x = client.submit(int, 3)
            await x
        (record,) = stream.data
        assert record["key"] == x.key and record["startstops"] and record["thread"]
        async with get_task_metadata() as tasks:
            y = client.submit(int, 4)
            await y
        assert tasks.state == {y.key: "memory"} and y.key in tasks.metadata
        with pytest.raises(ValueError, match="Expected to find exactly one"):
            await client.scheduler.stop_task_metadata(name="unknown")


async def test_watchers_are_notified_of_workers() -> None:
    from distributed.core import connect

    async with cluster(1) as (scheduler, _, workers):
        comm = await connect(scheduler.address)
        await comm.write({"op": "subscribe_worker_status"})
        first = await comm.read()
        assert list(first["workers"]) == [workers[0].address]
        async with Worker(scheduler.address, dashboard=False) as late:
            ((op, told),) = await comm.read()
            assert op == "add" and list(told["workers"]) == [late.address]
        assert await comm.read() == (("remove", late.address),)
        await comm.close()


async def test_terminate() -> None:
    scheduler = await Scheduler(host="127.0.0.1", port=0, dashboard=False)
    async with Client(scheduler.address, asynchronous=True) as client:
        with contextlib.suppress(OSError):
            await client.scheduler.terminate()
        await asyncio.wait_for(scheduler.finished(), 10)


async def test_scaling_requests() -> None:
    async with cluster(2) as (_scheduler, client, workers):
        x = client.submit(int, 3, workers=["w0"], key="x")
        await x
        assert await client.scheduler.adaptive_target() in (0, 1, 2)
        assert await client.scheduler.workers_to_close(n=2, attribute="name") == ("w1", "w0")
        by_name = {"n": 1, "key": lambda ws: ws.name}
        assert await client.scheduler.workers_to_close(**by_name) == (workers[1].address,)
        assert list(await client.retire_workers(**by_name)) == [workers[1].address]
        await client.scheduler.check_idle()
