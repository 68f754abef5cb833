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
from distributed import Nanny, get_worker

from tests.support import stock_cluster

#: Tasks that wait for this event hang until the test sets it.
RELEASED = threading.Event()


def hang(x: int = 0) -> int:
    RELEASED.wait(60)
    return x


def inc(x: int) -> int:
    return x + 1


@contextlib.asynccontextmanager
async def running(
    n_workers: int = 1, compile_in_threads: bool = True, **config: Any
) -> AsyncIterator[tuple[Any, ...]]:
    """Run a scheduler, a client and workers with a thread each in this process."""
    RELEASED.clear()
    settings = {f"paceline.scheduler.{name}": value for name, value in config.items()}
    options = {"compile_in_threads": compile_in_threads}
    with dask.config.set(settings):
        async with stock_cluster.cluster(n_workers, **options) as (scheduler, client, workers):
            try:
                yield scheduler, client, *workers
            finally:
                RELEASED.set()


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


async def test_a_task_that_hangs_and_is_cancelled() -> None:
    """No task waits behind it on its worker."""
    async with running(n_workers=2) as (scheduler, client, worker, _):
        future = client.submit(hang, workers=[worker.address])
        ws = scheduler.server.state.workers[worker.address]
        while not ws.executing:
            await asyncio.sleep(0.05)
        await client.cancel(future)
        assert await client.gather(client.map(inc, range(10))) == list(range(1, 11))
        while list(ws.extra_runs) != [future.key]:
            await asyncio.sleep(0.05)
        RELEASED.set()
        while ws.extra_runs:
            await asyncio.sleep(0.05)
        assert await client.submit(inc, 10, workers=[worker.address]) == 11


async def test_a_timeout_for_a_prefix() -> None:
    policies = {"ha*": {"timeout": "500 ms"}, "inc": {"timeout": 60}}
    async with running(policies=policies) as (_, client, _):
        with pytest.raises(TimeoutError, match=r"longer than its timeout of 0\.5 s"):
            await client.submit(hang)


async def test_policies_of_a_prefix_that_have_no_effect_or_are_wrong() -> None:
    policies = {"inc": {"retry-on": "missing.Error"}}
    async with running(policies=policies) as (_, client, _):
        assert await client.submit(inc, 1) == 2
        text = r"in `paceline\.scheduler\.policies`, pattern 'inc': .*'missing\.Error'.*\(tasks 'inc'\)"
        with pytest.raises(ValueError, match=text):
            await client.submit(inc, 2, retries=1)


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
        ({"timeout": float("inf")}, ValueError, "'timeout' must be finite, not inf.*'inc'"),
        ({"timeout": True}, TypeError, "'timeout' must be a duration.* not True.*'inc'"),
        ({"timeout": [1]}, TypeError, r"'timeout' must be a duration.* not \[1\].*'inc'"),
        ({"timeout": ""}, ValueError, "'timeout' must be a duration.* not ''"),
        ({"timeout": 10**400}, ValueError, "'timeout' must be a duration.*'inc'"),
        (
            {"deadline": 1_900_000_000},
            ValueError,
            "'deadline' must be .* ten years, or a time, .* not 1",
        ),
        ({"deadline": "2020-01-31"}, TimeoutError, "'deadline'='2020-01-31' had passed.*'inc'"),
        ({"deadline": "-5s"}, ValueError, "'deadline' must be a duration.* not '-5s'"),
        ({"deadline": "tomorrow"}, ValueError, "'deadline' must be .* or a time.* not 'tomorrow'"),
        (
            {"retry_on": OSError},
            ValueError,
            "'retry_on'=<class 'OSError'> needs .*'retries'.*'inc'",
        ),
        ({"retry_on": 5, "retries": 1}, TypeError, "'retry_on' must be an exception class.* not 5"),
        ({"retry_on": "nowhere.Error", "retries": 1}, ValueError, "'nowhere.Error', which.*'inc'"),
        ({"retry_on": (), "retries": 1}, ValueError, r"must name an exception class, not \(\)"),
        ({"retry_delay": -2, "retries": 1}, ValueError, "'retry_delay' must be 0 or more"),
        ({"retry_delay": float("nan"), "retries": 1}, ValueError, "'retry_delay' must be finite"),
        ({"retry_backoff": 2, "retries": 1}, ValueError, "'retry_backoff'=2 needs a 'retry_delay'"),
        (
            {"retry_backoff": 0.5, "retry_delay": 1, "retries": 1},
            ValueError,
            "'retry_backoff' must be from 1 to 1000, not 0.5",
        ),
        (
            {"retry_delay_max": 1, "retry_delay": 2, "retries": 1},
            ValueError,
            "'retry_delay_max'=1 is less than 'retry_delay'=2",
        ),
        (
            {"retry_elsewhere": 1, "retries": 1},
            TypeError,
            "'retry_elsewhere' must be True or False",
        ),
        (
            {"speculative": "yes"},
            TypeError,
            "'speculative' must be True or False, not 'yes'.*'inc'",
        ),
        ({"speculative": True, "pure": False}, ValueError, "'speculative'=True .*'pure'=False"),
        ({"retries": -1}, ValueError, "'retries' must be 0 or more, not -1.*'inc'"),
        ({"retries": 1.5}, TypeError, "'retries' must be an int, not 1.5.*'inc'"),
        ({"retries": 10**30}, ValueError, "'retries' must have at most 64 bits, not 10.*'inc'"),
        ({"priority": 10**400}, ValueError, "'priority' must have at most 64 bits, not 10.*'inc'"),
        ({"priority": float("nan")}, ValueError, "'priority' must not be NaN.*'inc'"),
        ({"resources": {"x": -1}}, ValueError, "'resources' must be numbers from 0, not .*-1.*inc"),
        (
            {"resources": {"x": "y"}},
            TypeError,
            "'resources' must be numbers from 0, not .*'y'.*inc",
        ),
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


class FlakyError(ConnectionError):
    """An error of a class that is pickled by value, as those of notebooks are."""


def fail_until(n: int, name: str, error: str) -> int:
    """Raise an error up to run n. Return the number of the run."""
    with RUNS_LOCK:
        RUNS.append((name, time.monotonic(), get_worker().address))
        count = sum(1 for each in RUNS if each[0] == name)
    if count < n:
        raise {"flaky": FlakyError, "key": KeyError}[error](name)
    return count


#: Name of a task, time and worker, for each run of ``fail_until``.
RUNS: list[tuple[str, float, str]] = []
RUNS_LOCK = threading.Lock()


def runs_of(name: str) -> list[tuple[float, str]]:
    return [run[1:] for run in RUNS if run[0] == name]


@pytest.mark.parametrize("compile_in_threads", [True, False])
async def test_retries_after_some_exceptions(compile_in_threads: bool) -> None:
    RUNS.clear()
    async with running(compile_in_threads=compile_in_threads) as (_, client, _):
        with dask.annotate(retry_on=(FlakyError, "builtins.TimeoutError"), retries=3):
            flaky = client.submit(fail_until, 3, "flaky", "flaky")
            other = client.submit(fail_until, 3, "other", "key")
        with dask.annotate(retry_on="OSError", retries=3):
            base = client.submit(fail_until, 2, "base", "flaky")
        assert await flaky == 3
        assert await base == 2
        with pytest.raises(KeyError):
            await other
        assert len(runs_of("other")) == 1


async def test_delayed_retries_elsewhere() -> None:
    RUNS.clear()
    async with running(n_workers=2) as (_, client, *_):
        with dask.annotate(retry_delay="300ms", retry_backoff=2, retry_elsewhere=True):
            assert await client.submit(fail_until, 3, "x", "key", retries=5) == 3
    (first, a), (second, b), (third, _) = runs_of("x")
    assert second - first >= 0.3
    assert third - second >= 0.6
    assert a != b


def first_run_hangs(name: str) -> str:
    """Return at once, except in the first run of the task "slow"."""
    RUNS.append((name, time.monotonic(), get_worker().address))
    if name == "slow" and len(runs_of(name)) == 1:
        RELEASED.wait(60)
    return get_worker().address


async def test_a_second_run() -> None:
    """Its result is used, and the first run does not replace it when it ends."""
    RUNS.clear()
    async with running(n_workers=2) as (scheduler, client, *_):
        await client.gather(client.map(first_run_hangs, ["a", "b", "c"]))
        with dask.annotate(speculative=True):
            future = client.submit(first_run_hangs, "slow")
        used = await future
        (_, first), (_, second) = runs_of("slow")
        assert used == second != first
        RELEASED.set()
        ws = scheduler.server.state.workers[first]
        while ws.extra_runs:
            await asyncio.sleep(0.05)
        assert await client.who_has(future) == {future.key: (second,)}


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
        (restarted,) = set(state.workers) - {worker.address}  # the nanny notes it later
        assert await client.submit(inc, 5, workers=[restarted]) == 6
