"""P2P shuffles by distributed's own plugin, on a real scheduler in this process, with stock workers and a stock client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import dask
import pandas as pd
import pytest
from dask import array as da
from dask import dataframe as dd
from distributed import Client, SchedulerPlugin, Worker
from paceline.scheduler.server.journal.replay import replay
from paceline.scheduler.server.scheduler import Scheduler

pytestmark = pytest.mark.timeout(120)


class World:
    def __init__(self, scheduler, client, workers):
        self.scheduler, self.client, self.workers = scheduler, client, workers
        self.state = scheduler.server.state
        self.plugin = scheduler.facade.plugins["shuffle"]

    def alive(self):
        return [worker for worker in self.workers if worker.status.name == "running"]


@contextlib.asynccontextmanager
async def make_world(**options):
    async with contextlib.AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(
            Scheduler(port=0, host="127.0.0.1", dashboard=False, validate=True, **options)
        )
        workers = [
            await stack.enter_async_context(Worker(scheduler.address, nthreads=1, name=name))
            for name in ("alice", "bob", "carol")
        ]
        client = await stack.enter_async_context(Client(scheduler.address, asynchronous=True))
        yield World(scheduler, client, workers)


@pytest.fixture
async def world():
    async with make_world() as made:
        yield made


def frame(days=20):
    return dask.datasets.timeseries(
        start="2000-01-01", end=f"2000-01-{days + 1:02}", freq="600s", partition_freq="1d", seed=7
    )


def by_p2p(df):
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        return df.shuffle("id").map_partitions(len).sum()


def slow(part):
    time.sleep(0.1)
    return part


async def begun(world):
    while not world.plugin.active_shuffles:
        await asyncio.sleep(0.01)
    (shuffle,) = world.plugin.active_shuffles.values()
    return shuffle


async def test_plugin_is_idle_without_shuffles(world):
    assert world.state.plugins is None
    assert world.scheduler.facade.extensions["shuffle"] is world.plugin
    assert await world.client.submit(sum, [1, 2]) == 3
    assert world.state.plugins is None
    future = world.client.compute(by_p2p(frame().map_partitions(slow)))
    shuffle = await begun(world)
    assert world.state.plugins is not None
    assert shuffle.participating_workers <= set(world.state.workers)
    assert await future == 20 * 144
    assert not world.plugin.active_shuffles
    future.release()
    while world.state.tasks:
        await asyncio.sleep(0.01)
    assert world.state.plugins is None
    for worker in world.workers:
        assert not worker.plugins["shuffle"].shuffle_runs._active_runs


async def test_merge(world):
    ids = pd.DataFrame({"id": range(800, 1200), "n": 1})
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        merged = frame().merge(dd.from_pandas(ids, npartitions=3), on="id", broadcast=False)
        total = merged.n.sum()
    assert await world.client.compute(total) == 20 * 144


async def test_a_worker_is_lost_in_the_middle(world):
    future = world.client.compute(by_p2p(frame().map_partitions(slow)))
    shuffle = await begun(world)
    while len(shuffle.participating_workers) < 3:
        await asyncio.sleep(0.01)
    await world.workers[0].close()
    assert await future == 20 * 144
    (last,) = world.plugin._shuffles.values()
    assert shuffle.archived and len(last) > 1


async def test_shuffle_waits_for_a_worker(world):
    """A shuffle that restarts while no worker runs waits for one (distributed#8088)."""
    future = world.client.compute(by_p2p(frame(5).map_partitions(slow)))
    shuffle = await begun(world)
    while len(shuffle.participating_workers) < 2:
        await asyncio.sleep(0.01)
    for worker in world.workers:
        await worker.close()
    while world.state.workers:
        await asyncio.sleep(0.01)
    async with Worker(world.scheduler.address, nthreads=1):
        assert await future == 5 * 144


async def test_worker_returns_under_its_address(world):
    """Its part of the shuffle is lost with the worker: the shuffle restarts, and no row is missing (distributed#7798)."""
    future = world.client.compute(by_p2p(frame().map_partitions(slow)))
    shuffle = await begun(world)
    while len(shuffle.participating_workers) < 3:
        await asyncio.sleep(0.01)
    gone = world.workers[0]
    await gone.close()
    async with Worker(world.scheduler.address, nthreads=1, host=gone.address) as back:
        assert back.address == gone.address
        assert await future == 20 * 144
        (last,) = world.plugin._shuffles.values()
        assert shuffle.archived and len(last) > 1


@pytest.mark.parametrize(
    ("error", "delay_seconds"),
    [(OSError("timed out"), 0.3), (RuntimeError("ConnectionPool is closed"), 0)],
    ids=["not-reached", "closing"],
)
async def test_barrier_retries_unanswered_workers(world, error, delay_seconds):
    """A worker that is slow to answer the barrier, and then unreachable, fails nothing (distributed#8595).

    The same applies to a worker that is closing: its connections are closed while it is still registered.
    """
    deaf = world.workers[1]
    handler, calls = deaf.handlers["shuffle_inputs_done"], []

    async def answers_late(**message):
        calls.append(message)
        if len(calls) == 1:
            await asyncio.sleep(delay_seconds)
            raise error
        return await handler(**message)

    deaf.handlers["shuffle_inputs_done"] = answers_late
    assert await world.client.compute(by_p2p(frame(9))) == 9 * 144
    assert len(calls) == 2 and len({message["run_id"] for message in calls}) == 1


async def test_tasks_are_stolen_in_the_middle(world):
    """Tasks may run on another worker than the one that the shuffle sent data to, or stay where the shuffle needs them."""
    world.scheduler.facade.periodic_callbacks["stealing"].callback_time = 50
    steals = world.state.stealing
    future = world.client.compute(
        by_p2p(frame(10).map_partitions(slow)),
        workers=[world.workers[0].address],
        allow_other_workers=True,
    )
    assert await future == 10 * 144
    assert steals.rounds
    (runs,) = world.plugin._shuffles.values()
    assert len(runs) == 1, "the shuffle restarted"


async def test_transfers_behind_an_alias_restart(world, monkeypatch):
    """dask fuses a transfer with its input, so the barrier depends on an alias."""
    kind = type(world.workers[0].plugins["shuffle"])
    add_partition, may_end = kind.add_partition, threading.Event()

    def ends_later(*args, **kwargs):
        run_id = add_partition(*args, **kwargs)
        may_end.wait(timeout=60)
        return run_id

    monkeypatch.setattr(kind, "add_partition", ends_later)
    total = da.ones((40, 40), chunks=(20, 40)).rechunk((40, 20), method="p2p").sum()
    future = world.client.compute(total, optimize_graph=True)
    shuffle = await begun(world)
    barrier = world.scheduler.facade.tasks[f"shuffle-barrier-{shuffle.id}"]
    aliases = [ts for ts in barrier.dependencies if len(ts.dependencies) == 1]
    assert aliases, "dask no longer fuses them"
    transfers = {ts.key for alias in aliases for ts in alias.dependencies}
    assert {world.state.tasks[key].state for key in transfers} == {"processing"}
    assert transfers <= set(world.plugin._restart_recommendations(shuffle.id))
    world.plugin._restart_shuffle(shuffle.id, world.scheduler.facade, stimulus_id="test")
    assert {world.state.tasks[key].state for key in transfers} <= {"processing", "waiting"}
    may_end.set()
    assert await future == 1600


@pytest.mark.parametrize("asks", ["shuffle_get", "shuffle_barrier"])
async def test_barrier_without_shuffle(world, asks):
    """All transfers have finished and their shuffle is gone: it restarts once (on stock: an error)."""
    plugin, loop = world.plugin, asyncio.get_running_loop()
    kind = type(world.workers[0].plugins["shuffle"])
    done, gone = kind.barrier, []

    def lose(shuffle_id):
        if asks == "shuffle_get":
            plugin._fail_on_workers(plugin.active_shuffles[shuffle_id], "test")
        plugin._clean_on_scheduler(shuffle_id, "test")

    def loses_it(self, shuffle_id, run_ids):
        """The worker of the barrier requests the run, which it or the scheduler does not have any more."""
        if not gone:
            gone.append(shuffle_id)
            loop.call_soon_threadsafe(lose, shuffle_id)
            time.sleep(0.3)
        return done(self, shuffle_id, run_ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "barrier", loses_it)
        future = world.client.compute(by_p2p(frame(9)))
        assert await future == 9 * 144
    assert gone and plugin._restarts[gone[0]] == 1


async def test_everything_restarts_after_the_barrier(world):
    """Outputs exist, and the worker with the rest of the shuffle is lost: everything is computed again."""
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        shuffled = frame().shuffle("id")
    parts = world.client.persist(shuffled)
    await parts
    await world.workers[1].close()
    total = await world.client.compute(parts.map_partitions(len).sum())
    assert total == 20 * 144


async def test_workers_of_a_shuffle_are_kept(world):
    future = world.client.compute(by_p2p(frame().map_partitions(slow)))
    shuffle = await begun(world)
    while len(shuffle.participating_workers) < 3:
        await asyncio.sleep(0.01)
    assert await world.client.scheduler.workers_to_close(n=3) == ()
    valid = world.scheduler.server.plugins.valid_workers_downscaling(
        list(world.scheduler.facade.workers.values())
    )
    assert valid == []
    assert await future == 20 * 144


async def test_restart_ends_shuffles(world):
    future = world.client.compute(by_p2p(frame().map_partitions(slow)))
    await begun(world)
    with contextlib.suppress(Exception):  # workers without nannies leave at a restart
        await world.client.restart(timeout=3, wait_for_workers=False)
    assert future.cancelled()
    assert not world.plugin.active_shuffles
    assert world.state.plugins is None


async def test_heartbeats_update_progress(world):
    future = world.client.compute(by_p2p(frame().map_partitions(slow)))
    shuffle = await begun(world)
    while not world.workers[0].plugins["shuffle"].shuffle_runs._active_runs:
        await asyncio.sleep(0.01)
    await world.workers[0].heartbeat()
    assert world.workers[0].address in world.plugin.heartbeats[shuffle.id]
    await future


class Writer(SchedulerPlugin):
    """A plugin that writes attributes: before a graph is scheduled, at transitions, when a worker is lost."""

    name = "writer"

    def __init__(self, address):
        self.address = address

    def update_graph(self, scheduler, *, tasks, **kwargs):
        self.scheduler = scheduler
        for key in tasks:
            if str(key).startswith("pinned"):
                ts = scheduler.tasks[key]
                ts.worker_restrictions = {self.address}
                ts.annotations = {**(ts.annotations or {}), "by": "plugin", "odd": {1, 2}}

    def transition(self, key, start, finish, *args, **kwargs):
        if key == "first" and finish == "memory":
            second = self.scheduler.tasks["second"]
            second.annotations = {}
            second.annotations["late"] = True
            self.scheduler.set_restrictions({"second": {self.address}})

    def remove_worker(self, scheduler, worker, **kwargs):
        for key in list(scheduler.tasks):
            scheduler.tasks[key].retries = 5


async def test_writes_of_plugins_are_in_the_journal(tmp_path: Path):
    journal = tmp_path / "run.journal"
    async with make_world(journal=str(journal)) as world:
        bob = world.workers[1].address
        world.scheduler.facade.add_plugin(Writer(bob))
        pinned = world.client.map(lambda x: x, range(6), key=[f"pinned-{i}" for i in range(6)])
        await world.client.gather(pinned)
        assert set(await world.client.has_what()) >= {bob}
        assert len((await world.client.has_what())[bob]) == 6
        first = world.client.submit(time.sleep, 0.3, key="first")
        second = world.client.submit(lambda x: x, first, key="second")
        await second
        assert world.scheduler.facade.tasks["second"].annotations == {"late": True}
        assert world.scheduler.facade.tasks["pinned-0"].annotations == {
            "by": "plugin",
            "odd": {1, 2},
        }
        await world.workers[2].close()
        assert await world.client.compute(by_p2p(frame(8))) == 8 * 144
        assert world.scheduler.facade.tasks["second"].retries == 5
    report = replay(journal)
    assert report.errors == []
    assert report.n_stimuli > 50
    assert report.differs_after is None


async def test_plugin_handles_stream_ops(world):
    seen = []

    def take(worker, what, nested=None):
        seen.append((worker, what, nested))
        raise ValueError("logged, and no more")

    world.scheduler.facade.stream_handlers["tell-me"] = take
    sender = world.workers[0]
    sender.batched_stream.send({"op": "tell-me", "what": 3, "nested": {"a": (1,)}})
    sender.batched_stream.send({"op": "nobody-knows-this"})
    world.client.scheduler_comm.send({"op": "tell-me", "what": 4, "worker": "mine"})
    while len(seen) < 1:
        await asyncio.sleep(0.01)
    assert seen[0] == (sender.address, 3, {"a": (1,)})
    assert await world.client.submit(sum, [1]) == 1
