"""A program that uses every feature in the catalogue, so that each op is sent at least once.

Steps are independent of each other and do not depend on the scheduler that serves them.
Their results are checked elsewhere (``tests/integration/``).
"""

from __future__ import annotations

import asyncio
import operator
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from distributed import (
    Event,
    Future,
    Lock,
    MultiLock,
    NannyPlugin,
    Queue,
    Reschedule,
    SchedulerPlugin,
    Semaphore,
    Variable,
    WorkerPlugin,
    get_worker,
    performance_report,
    secede,
    wait,
)
from distributed.core import rpc
from distributed.diagnostics import MemorySampler

from tests.wiretap.tapped_cluster import TappedCluster


async def until(condition: Any, seconds: float = 20) -> None:
    """Wait for an action of another peer."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what was waited for did not happen")
        await asyncio.sleep(0.02)


# ------------------------------------------------------------------ functions of tasks


def fail_late() -> None:
    """Fail after a client has received all that was sent to it before."""
    time.sleep(0.1)
    raise ZeroDivisionError


def leave_the_pool(seconds: float) -> int:
    secede()
    time.sleep(seconds)
    return 1


def note(value: int) -> int:
    get_worker().log_event(["features", "more"], {"value": value, "where": ("a", (1, 2))})
    return value


def slow_add(x: int, y: int) -> int:
    time.sleep(0.05)
    return x + y


def elsewhere_once(flag: str) -> int:
    path = Path(flag)
    if not path.exists():
        path.touch()
        raise Reschedule
    return 1


def look_for(name: str) -> int:
    return 1 if Event(name).wait(timeout=10) else 0


class Counter:
    n = 0

    def add(self) -> int:
        self.n += 1
        return self.n


async def nothing(dask_scheduler: Any = None, dask_worker: Any = None) -> None:
    """Return a coroutine to run on a server."""


# ------------------------------------------------------------------ steps


async def tasks(c: TappedCluster) -> None:
    """Run graphs with keys of all types, errors, retries, priorities, resources, seceding, rescheduling."""
    client = c.client
    futures = client.map(operator.add, range(3), range(3), pure=False)
    await client.gather(futures, direct=False)
    await client.gather(futures, direct=True)
    graph = {("part", 0, ("deep", 1)): (operator.add, 1, 2), 7: (operator.neg, 1)}
    graph[("sum", 0)] = (sum, [("part", 0, ("deep", 1))])
    await client.gather(client.get(graph, [("sum", 0), 7], sync=False))
    bad = client.submit(fail_late, retries=1)
    depends = client.submit(operator.neg, bad)
    await bad.exception()
    await depends.exception()
    await client.scheduler.get_error_cause(keys=[depends.key])
    await client.retry([bad])
    await bad.exception()
    await client.submit(leave_the_pool, 0.02)
    await client.submit(elsewhere_once, os.path.join(c.folder, "flag"))
    with dask.annotate(priority=3, workers=[c.workers[0].address], custom={"a": (1, 2)}):
        await client.submit(operator.neg, 1)
    await client.submit(operator.neg, 2, resources={"GPU": 1}, priority=-1, key="neg-2")
    await client.submit(np.arange, 5)
    await client.scheduler.start_task_metadata(name="features")
    await client.submit(operator.neg, 8)
    await client.scheduler.stop_task_metadata(name="features")
    impossible = client.submit(operator.neg, 1, resources={"NONE": 1}, key="impossible")
    await asyncio.sleep(0.1)
    del impossible
    unwanted = client.submit(time.sleep, 0.2)
    await asyncio.sleep(0.05)
    await client.cancel([unwanted], reason="for a reason", msg="no longer wanted")
    actor = await client.submit(Counter, actor=True)
    await actor.add()
    assert await actor.n == 1


async def data(c: TappedCluster) -> None:
    """Scatter, replicate, rebalance, gather and lose data."""
    client, (one, two) = c.client, c.workers[:2]
    spread = await client.scatter({"x": 1, "y": np.arange(2000)})
    await client.scatter([3], direct=False, broadcast=True)
    await client.scatter([4, 5], direct=True)
    await client.replicate([spread["x"]])
    await client.replicate([spread["x"]], n=1)
    await client.rebalance()
    away = client.submit(operator.neg, 9, workers=[one.address], key="away")
    joined = client.submit(operator.add, away, 1, workers=[two.address])
    await joined
    await client.amm.start()
    await until(lambda: not ("away" in one.data and "away" in two.data))
    await client.amm.run_once()
    await client.amm.running()
    await client.amm.stop()
    # its worker denies having the data: the other worker requests its location again and again
    hidden = client.submit(operator.neg, 10, workers=[one.address], key="hidden")
    await wait(hidden)
    value = one.data["hidden"]
    del one.data["hidden"]
    seeking = client.submit(operator.add, hidden, 1, workers=[two.address])
    await until(lambda: c.record.has("worker_to_scheduler", "request-refresh-who-has"))
    one.data["hidden"] = value
    assert await seeking == -9
    client._send_to_scheduler({"op": "report-key", "key": "x"})
    # scattered data is lost with its worker, a result is computed again
    third = await c.add_worker("carol")
    lost = await client.scatter(12, workers=[third.address], hash=False)
    again = client.submit(operator.neg, 13, workers=["carol"], allow_other_workers=True)
    await wait(again)
    await third.close(nanny=False)
    c.workers.remove(third)
    await until(lambda: lost.status in ("lost", "cancelled"))
    assert await again == -13
    await client.scheduler.update_data(
        who_has={"told": [one.address]}, nbytes={"told": 28}, client=client.id
    )
    client._send_to_scheduler(
        {"op": "update-data", "who_has": {"again": [one.address]}, "nbytes": {"again": 28}}
    )
    await client.scheduler.add_keys(worker=one.address, keys=["x"])


async def stealing(c: TappedCluster) -> None:
    """Submit tasks to one worker while the other is idle."""
    many = c.client.map(
        slow_add, range(24), [1] * 24, workers=[c.workers[0].address], allow_other_workers=True, pure=False
    )  # fmt: skip
    await c.client.gather(many, direct=False)


async def coordination(c: TappedCluster) -> None:
    """Use coordination primitives between clients."""
    client = c.client
    scheduler = {"scheduler_rpc": client.scheduler, "loop": client.loop}
    future = client.submit(operator.neg, 20)
    queue = await Queue("q", client=client)
    await queue.put(future)
    await queue.put({"plain": (1, 2)})
    assert isinstance(await queue.get(), Future)
    await queue.get()
    await queue.qsize()
    queue.close()
    variable = Variable("v", client=client)
    await variable.set(future)
    async with c.connect() as other:
        assert await (await Variable("v", client=other).get()) == -20
    await variable.set("plain")
    variable.delete()
    lock = Lock("lock", **scheduler)
    await lock.acquire()
    await lock.release()
    with dask.config.set({"distributed.scheduler.locks.lease-validation-interval": "100ms"}):
        semaphore = await Semaphore(2, name="semaphore", **scheduler)
        await semaphore.acquire()
        await semaphore.get_value()
        await client.scheduler.semaphore_refresh_leases(name="semaphore", lease_ids=["none"])
        await semaphore.release()
        await semaphore.close()
    event = Event("event", client=client)
    waiting = client.submit(look_for, "event")
    await event.set()
    await event.wait()
    await event.is_set()
    assert await waiting == 1
    await event.clear()
    multi = MultiLock(names=["a", "b"], client=client)
    await multi.acquire()
    await multi.release()
    await client.publish_dataset(future, name=("published", 1))
    await client.list_datasets()
    await client.get_dataset(("published", 1))
    await client.unpublish_dataset(("published", 1))


async def topics(c: TappedCluster) -> None:
    """Send events from clients, workers and the scheduler."""
    got: list[Any] = []
    c.client.subscribe_topic("features", got.append)
    await c.client.submit(note, 3)
    await c.client.log_event("features", {"by": "client"})
    await c.client.scheduler.log_event(topic="features", msg={1: ("x",)})
    await until(lambda: len(got) >= 3)
    c.client.unsubscribe_topic("features")
    await c.client.get_events("features")


async def questions(c: TappedCluster) -> None:
    """Send the requests of clients to the scheduler."""
    client = c.client
    future = client.submit(slow_add, 1, 1, key="slow-add-1")
    for ask in (client.who_has, client.has_what, client.nthreads, client.processing):
        await ask()
    await client.call_stack()
    await client.call_stack([future.key])
    await future
    await client.nbytes(summary=False)
    await client.nbytes(summary=True)
    await client.story(future)
    await client.profile()
    await client.profile(scheduler=True)
    await client.get_scheduler_logs()
    await client.get_worker_logs()
    await client.get_versions(packages=["numpy"])
    await client.get_task_stream(count=5)
    await client.set_metadata(["a", "b"], {"c": (1,)})
    await client.get_metadata(["a", "b"])
    await client.dump_cluster_state(os.path.join(c.folder, "dump"), format="yaml")
    await client.dump_cluster_state("file://" + os.path.join(c.folder, "dump"))
    await client.scheduler.get_cluster_state(exclude=[])
    await client.scheduler.get_logs(n=3)
    scheduler = client.scheduler
    for ask in (
        scheduler.identity, scheduler.ncores, scheduler.ncores_running, scheduler.check_idle, scheduler.get_task_prefix_states,
        scheduler.logs, scheduler.dump_state, scheduler.get_task_stream_index, scheduler.adaptive_target,
    ):  # fmt: skip
        await ask()
    await scheduler.get_task_status(keys=[future.key, "none"])
    await scheduler.echo(data={"a": [1, (2, {3})], "closed": operator.itemgetter(1)})
    await scheduler.workers_to_close(n=1)
    await scheduler.workers_to_close(memory_ratio=2, attribute="name")
    await scheduler.set_resources(worker=c.workers[0].address, resources={"GPU": 2})
    await scheduler.set_restrictions(worker={future.key: [c.workers[0].address]})
    await scheduler.get_runspec(key=future.key)
    await scheduler.proxy(msg={"op": "identity"}, worker=c.workers[0].address)
    if not isinstance(c.scheduler, _stock_scheduler()):
        await scheduler.explain(key=future.key)
        await scheduler.shares()
    async with MemorySampler().sample("features", client=client, interval=0.05):
        await client.submit(slow_add, 3, 3)
    async with performance_report(filename=os.path.join(c.folder, "report.html")):
        await client.submit(slow_add, 4, 4)
    benchmark = asyncio.ensure_future(
        client.benchmark_hardware()
    )  # takes a minute; do not wait for it
    await until(lambda: c.record.has("scheduler_rpc", "benchmark_hardware"))
    benchmark.cancel()


def _stock_scheduler() -> type[Any]:
    from distributed import Scheduler

    return Scheduler


class OnScheduler(SchedulerPlugin):
    name = "on-scheduler"


class OnWorker(WorkerPlugin):
    name = "on-worker"


class OnNanny(NannyPlugin):
    name = "on-nanny"


async def code(c: TappedCluster) -> None:
    """Use functions, plugins and files."""
    client = c.client
    await c.add_nanny("dora")
    await client.wait_for_workers(3)
    await client.run(os.getpid)
    await client.run(os.getpid, nanny=True)
    await client.run(nothing)
    await client.run_on_scheduler(operator.add, 1, 2)
    await client.run_on_scheduler(nothing, wait=False)
    for plugin in (OnScheduler(), OnWorker(), OnNanny()):
        await client.register_plugin(plugin)
    await client.unregister_worker_plugin("on-worker")
    await client.unregister_worker_plugin("on-nanny", nanny=True)
    await client.unregister_scheduler_plugin("on-scheduler")
    path = Path(c.folder) / "uploaded_by_features.py"
    path.write_text("x = 1\n")
    await client.upload_file(str(path))
    worker = client.rpc(c.workers[0].address)
    await worker.upload_file(filename="a.txt", data=b"1", load=False)


async def servers(c: TappedCluster) -> None:
    """Send requests directly to workers and nannies."""
    client, one, two = c.client, c.workers[0], c.workers[1]
    future = client.submit(operator.neg, 30, workers=[one.address], key="asked")
    await future
    worker = client.rpc(one.address)
    for ask in (
        worker.ping, worker.identity, worker.keys, worker.versions, worker.profile, worker.profile_metadata,
        worker.get_monitor_info, worker.get_logs, worker.dump_state, worker.call_stack, worker.benchmark_memory,
        worker.benchmark_disk,
    ):  # fmt: skip
        await ask()
    await worker.echo(data=(1, {2: 3}))
    await worker.benchmark_network(address=two.address)
    await worker.get_story(keys_or_stimuli=["asked"])
    await worker.update_data(data={"given": 1}, stimulus_id="features")
    await worker.gather(who_has={"asked": [one.address], "none": [two.address]})
    await worker.free_keys(keys=["given"], stimulus_id="features")
    await worker.run_coroutine(function=_pickled(nothing), wait=True)
    one.periodic_callbacks["keep-alive"].callback()
    one.send_to_worker(two.address, {"op": "free-keys", "keys": [], "stimulus_id": "features"})
    await until(lambda: c.record.has("worker_rpc", "connection_stream"))
    nanny = c.nannies[0]
    asked = client.rpc(nanny.address)
    for ask in (asked.identity, asked.get_logs, asked.dump_state, asked.instantiate):
        await ask()
    await asked.echo(data=1)
    await asked.restart(timeout=60)
    comm = await client.rpc.connect(nanny.address)
    await comm.write({"op": "connection_stream"})
    comm.abort()
    for address in (c.address, one.address, nanny.address):
        async with rpc(address) as once:  # sends "close" at its end
            await once.identity()
    comm = await client.rpc.connect(c.address)
    await comm.write({"op": "connection_stream", "reply": False})
    comm.abort()
    await _followed(c)


def _pickled(function: Any) -> bytes:
    from distributed.protocol import pickle

    return bytes(pickle.dumps(function))


def length(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


async def _followed(c: TappedCluster) -> None:
    """Use requests whose connection the scheduler continues to write to."""
    comm = await c.client.rpc.connect(c.address)
    await comm.write({"op": "subscribe_worker_status"})
    await comm.read()
    third = await c.add_worker("fred")
    assert (await comm.read())[0][0] == "add"
    comm.abort()
    await third.close(nanny=False)
    c.workers.remove(third)
    comm = await c.client.rpc.connect(c.address)
    await comm.write({"op": "feed", "function": _pickled(length), "interval": 0.01})
    for _ in range(3):
        await comm.read()
    comm.abort()
    comm = await c.client.rpc.connect(c.address)
    await comm.write({"op": "register-client", "client": "brief", "reply": False, "versions": {}})
    await comm.read()
    await comm.write([{"op": "close-stream"}])
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(2):
            while True:
                await comm.read()
    comm.abort()


async def shuffles(c: TappedCluster) -> None:
    """Run P2P: a merge of dataframes and a rechunk of an array."""
    import dask.array as da
    import dask.dataframe as dd

    with dask.config.set(
        {"dataframe.shuffle.method": "p2p", "array.rechunk.method": "p2p", "optimization.fuse.active": False}
    ):  # fmt: skip
        frame = dd.from_pandas(pd.DataFrame({"a": range(200), "b": range(200)}), npartitions=6)
        shuffled = frame.shuffle("a", npartitions=5)
        await c.client.compute(shuffled.b.sum())
        merged = frame.merge(frame, on="a", npartitions=4)
        await c.client.compute(merged.a.sum())
        array = da.ones((40, 40), chunks=(40, 4))
        await c.client.compute(array.rechunk((4, 40)).sum())
    await until(lambda: c.record.has("scheduler_to_worker", "shuffle-fail"))


async def leaving(c: TappedCluster) -> None:
    """Retire, restart and close workers; send a graph that cannot be deserialized; shut down."""
    client = c.client
    kept = client.submit(operator.neg, 40, workers=["bob"], key="kept", allow_other_workers=True)
    await kept
    await client.retire_workers(names=["bob"], close_workers=True)
    await until(lambda: c.workers[1].status.name == "closed")
    nanny = c.nannies[0]
    await client.restart_workers([nanny.worker_address], timeout=90)
    # workers without nannies do not restart
    await client.restart(timeout=90, wait_for_workers=False)
    asked = client.rpc(nanny.address)
    await asked.kill(timeout=5)
    # after ``kill``: a nanny that closes gracefully ends by itself when its worker was killed
    await asked.close_gracefully()
    with suppress(OSError):
        await asked.terminate(timeout=5)
    third = await c.add_worker("hugo")
    with suppress(OSError):  # it may close before it replies
        await client.rpc(third.address).terminate(nanny=False)
    fourth = await c.add_worker("ines")
    await client.scheduler.unregister(address=fourth.address, stimulus_id="features")
    await c.add_worker("jack")
    with suppress(OSError):
        await client.scheduler.terminate()
    await asyncio.sleep(0.3)


async def shapes(c: TappedCluster) -> None:
    """Send values with several, empty and compressible frames. Not in ``STEPS``, because it adds no op."""
    client = c.client
    one, two = (worker.address for worker in c.workers)
    frame = pd.DataFrame({"a": range(5), "b": [0.5] * 5, "c": list("vwxyz")})
    values = [
        np.arange(3),
        np.zeros(4000),
        np.zeros(0),
        frame,
        bytes(13_000),
        [np.arange(4), np.arange(5)],
    ]
    for value in values:
        (given,) = await client.scatter([value], workers=[one], hash=False)
        await client.submit(len, given, workers=[two])
        await client.gather(given, direct=False)
    made = [client.submit(type(value), value, workers=[one]) for value in (b"x", 1.5)]
    made += [client.submit(np.zeros, n, workers=[one]) for n in (0, 4000)]
    await client.gather(client.map(id, made, workers=[two]))
    await client.gather(client.map(operator.truediv, range(8), [0, 1] * 4), errors="skip")


STEPS = (tasks, data, stealing, coordination, topics, questions, code, servers, shuffles, leaving)
