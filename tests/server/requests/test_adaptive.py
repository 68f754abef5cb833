"""``Adaptive`` on clusters that programs start: workers are added under load and removed when idle, without losing results.

The stock workers run in this process, so that executions can be counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import Client, Event, SpecCluster, Worker, get_worker
from paceline.scheduler import LocalCluster
from paceline.scheduler.server.scheduler import Scheduler

from tests.support.fake_peers import until

pytestmark = pytest.mark.timeout(90)

#: Interval of scaling decisions.
INTERVAL = "50ms"
#: Number of tasks that require more than one worker.
N_TASKS = 24


@contextlib.asynccontextmanager
async def spec_cluster(n_workers: int = 0) -> AsyncIterator[tuple[Any, Any]]:
    """A stock ``SpecCluster`` around paceline's scheduler, and a client."""
    worker = {"cls": Worker, "options": {"nthreads": 1, "dashboard": False}}
    options = {"host": "127.0.0.1", "port": 0, "dashboard": False}
    async with (
        SpecCluster(
            workers=dict.fromkeys(range(n_workers), worker),
            scheduler={"cls": Scheduler, "options": options},
            worker=worker,
            asynchronous=True,
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        yield cluster, client


RAN: Counter[int] = Counter()


def hold(i: int) -> int:
    """Count the execution, and wait until it may end."""
    RAN[i] += 1
    Event("go").wait(timeout=30)
    return i


def quick(i: int) -> int:
    RAN[i] += 1
    return i


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


async def test_scale_up_with_load_and_down_when_idle() -> None:
    async with spec_cluster() as (cluster, client):
        cluster.adapt(minimum=0, maximum=4, interval=INTERVAL, wait_count=3, target_duration="1s")
        futures = client.map(hold, range(N_TASKS))
        await until(lambda: len(cluster.scheduler.workers) == 4)
        await Event("go").set()
        assert await client.gather(futures) == list(range(N_TASKS))
        await until(lambda: len(cluster.scheduler.workers) <= 1)
        assert await client.gather(futures) == list(range(N_TASKS))
        assert set(RAN.values()) == {1}, "results were moved without computing them again"
        del futures
        await until(lambda: not cluster.scheduler.workers)
        assert await client.submit(quick, -1) == -1  # scale up again


async def test_scale_down_neither_kills_nor_repeats_running_tasks() -> None:
    async with spec_cluster(3) as (cluster, client):
        await client.wait_for_workers(3)
        done = await client.gather(client.map(quick, range(100, 120)))
        kept = client.map(quick, range(200, 220))
        await client.gather(kept)
        futures = client.map(hold, range(3))
        await until(lambda: len(RAN) == 43)
        cluster.scale(1)
        statuses = lambda: [str(ws.status.name) for ws in cluster.scheduler.workers.values()]  # noqa: E731
        await until(lambda: statuses().count("closing_gracefully") == 2)
        await Event("go").set()
        await until(lambda: len(cluster.scheduler.workers) == 1)
        assert await client.gather(futures) == list(range(3))
        assert await client.gather(kept) == list(range(200, 220))
        assert set(RAN.values()) == {1}
        assert done == list(range(100, 120))


async def test_adaptive_local_cluster() -> None:
    async with LocalCluster(
        n_workers=0,
        processes=False,
        threads_per_worker=1,
        dashboard_address=None,
        asynchronous=True,
    ) as cluster:
        cluster.adapt(minimum=1, maximum=3, interval=INTERVAL, wait_count=3, target_duration="1s")
        async with Client(cluster, asynchronous=True) as client:
            futures = client.map(hold, range(N_TASKS))
            await until(lambda: len(cluster.scheduler.workers) == 3)
            await Event("go").set()
            assert await client.gather(futures) == list(range(N_TASKS))
            await until(lambda: len(cluster.scheduler.workers) == 1)
            assert await client.gather(futures) == list(range(N_TASKS))
            assert set(RAN.values()) == {1}


class SlowWorker(Worker):  # type: ignore[misc]  # distributed is not typed
    """A worker that takes longer to start than the steps of a program."""

    async def start_unsafe(self) -> Any:
        await asyncio.sleep(1.0)
        return await super().start_unsafe()


def step(i: int) -> str:
    time.sleep(0.02)
    return str(get_worker().name)


async def test_short_steps_cancel_no_worker() -> None:
    """Workers that are starting are kept between steps, and none is closed before its first task."""
    worker = {"cls": SlowWorker, "options": {"nthreads": 1, "dashboard": False}}
    options = {"host": "127.0.0.1", "port": 0, "dashboard": False}
    async with SpecCluster(
        scheduler={"cls": Scheduler, "options": options}, worker=worker, asynchronous=True
    ) as cluster:
        cluster.adapt(minimum=0, maximum=4, interval=INTERVAL, wait_count=3, target_duration="1s")
        async with Client(cluster, asynchronous=True) as client:
            requested: set[Any] = set()
            used: set[str] = set()
            while len(used) < 4:
                futures = client.map(step, range(N_TASKS), pure=False)
                used.update(await client.gather(futures))
                requested.update(cluster.worker_spec)
                del futures
                await asyncio.sleep(0.1)
            assert {str(name) for name in requested} == used
