"""Policies of tasks with stock clients and workers: timeouts, deadlines, and mistakes in annotations."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import dask
import pytest
from distributed import Client, Nanny, Worker
from paceline.scheduler.server.scheduler import Scheduler

#: Tasks that wait for this event hang until the test sets it.
RELEASED = threading.Event()


def hang(x: int = 0) -> int:
    RELEASED.wait(60)
    return x


def inc(x: int) -> int:
    return x + 1


@contextlib.asynccontextmanager
async def running(n_workers: int = 1, **config: Any) -> AsyncIterator[tuple[Any, ...]]:
    """Run a scheduler, a client and workers with a thread each in this process."""
    RELEASED.clear()
    settings = {f"paceline.scheduler.{name}": value for name, value in config.items()}
    options = {"nthreads": 1, "dashboard_address": None}
    with dask.config.set(settings):
        async with contextlib.AsyncExitStack() as stack:
            enter = stack.enter_async_context
            scheduler = await enter(Scheduler(host="127.0.0.1", dashboard=False))
            workers = [await enter(Worker(scheduler.address, **options)) for _ in range(n_workers)]
            client = await enter(Client(scheduler.address, asynchronous=True))
            stack.callback(RELEASED.set)
            yield scheduler, client, *workers


async def test_a_task_that_hangs() -> None:
    """It errs, and the worker runs other tasks when its thread is free again."""
    async with running() as (scheduler, client, worker):
        with dask.annotate(timeout="500ms"):
            future = client.submit(hang)
        with pytest.raises(TimeoutError, match=f"'hang-.*on {worker.address}, longer than .* 0.5"):
            await future
        other = client.submit(inc, 1)
        ws = scheduler.server.state.workers[worker.address]
        assert list(ws.extra_runs) == [future.key]
        await asyncio.sleep(0.1)
        assert other.status == "pending"
        RELEASED.set()
        assert await other == 2
        assert not ws.extra_runs


async def test_a_timeout_for_a_prefix() -> None:
    policies = {"ha*": {"timeout": "500 ms"}, "inc": {"timeout": 60}}
    async with running(policies=policies) as (_, client, _):
        with pytest.raises(TimeoutError, match=r"longer than its timeout of 0\.5 s"):
            await client.submit(hang)


async def test_a_deadline() -> None:
    async with running(n_workers=2) as (_, client, *_):
        with dask.annotate(deadline="500 ms"):
            first = client.submit(hang)
        with dask.annotate(deadline=datetime.now() + timedelta(seconds=0.5)):
            second = client.map(inc, [first])
        with pytest.raises(TimeoutError, match=r"was processing on .* at its deadline, 20"):
            await first
        with pytest.raises(TimeoutError):
            await second[0]


@pytest.mark.parametrize(
    ("annotations", "error", "text"),
    [
        ({"timeout": "soon"}, ValueError, "'timeout' must be a duration.* not 'soon'.*'inc'"),
        ({"timeout": -1}, ValueError, "'timeout' must be more than 0 seconds, not -1.*'inc'"),
        ({"timeout": True}, TypeError, "'timeout' must be a duration.* not True.*'inc'"),
        ({"timeout": [1]}, TypeError, r"'timeout' must be a duration.* not \[1\].*'inc'"),
        ({"deadline": "-5s"}, ValueError, "'deadline' must be a duration.* not '-5s'"),
        ({"deadline": "tomorrow"}, ValueError, "'deadline' must be .* or a time.* not 'tomorrow'"),
        ({"retries": -1}, ValueError, "'retries' must be 0 or more, not -1.*'inc'"),
        ({"retries": 1.5}, TypeError, "'retries' must be an int, not 1.5.*'inc'"),
    ],
)
async def test_mistakes(
    cluster: tuple[Any, ...], annotations: dict[str, Any], error: type[Exception], text: str
) -> None:
    _, client, _ = cluster
    with dask.annotate(**annotations), pytest.raises(error, match=text):
        await client.submit(inc, 1, pure=False)


@pytest.fixture
async def cluster() -> AsyncIterator[tuple[Any, ...]]:
    async with running() as found:
        yield found


async def test_a_worker_that_is_restarted() -> None:
    """Its other results are moved first."""
    async with (
        running(**{"restart-stuck-workers": True}) as (scheduler, client, worker),
        Nanny(scheduler.address, nthreads=1, dashboard_address=None) as nanny,
    ):
        first = nanny.worker_address
        data = client.submit(inc, 1, workers=[first])
        await data
        with dask.annotate(timeout="500ms"):
            future = client.submit(time.sleep, 60, workers=[first])
        with pytest.raises(TimeoutError):
            await future
        state = scheduler.server.state
        while set(state.workers) == {worker.address, first} or len(state.workers) < 2:
            await asyncio.sleep(0.05)
        assert worker.data == {data.key: 2}
        assert await client.submit(inc, 5, workers=[nanny.worker_address]) == 6
