"""Hooks of scheduler plugins: when they are called, and the state that they see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, SchedulerPlugin, Worker
from paceline.scheduler.core.stimuli import Tick
from paceline.scheduler.server.scheduler import Scheduler
from paceline.workers_compat.facade.hook_arguments import annotations_by_type
from paceline.workers_compat.facade.views import task_annotations


def inc(x: int) -> int:
    return x + 1


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    async with Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler:
        yield scheduler


@pytest.fixture
async def client(scheduler: Scheduler) -> AsyncIterator[Client]:
    async with (
        Worker(scheduler.address, nthreads=2, name="alice"),
        Client(scheduler.address, asynchronous=True) as client,
    ):
        yield client


class OnTransition(SchedulerPlugin):
    """Record what `look` returns for the key and final state of each transition."""

    def __init__(self, scheduler: Scheduler, look: Callable[[Any, str], Any]) -> None:
        self.look = look
        self.seen: dict[tuple[Any, str], Any] = {}
        scheduler.add_plugin(self)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        self.seen[key, finish] = self.look(key, finish)


async def test_the_story_of_a_task_includes_the_current_transition(
    scheduler: Scheduler, client: Client
) -> None:
    plugin = OnTransition(scheduler, lambda key, finish: scheduler.story(key)[-1].finish)
    assert await client.submit(inc, 1, key="x") == 2
    states = ("waiting", "processing", "memory")
    assert [plugin.seen["x", finish] for finish in states] == list(states)


async def test_attributes_of_a_forgotten_task_remain_until_its_hooks_have_run(
    scheduler: Scheduler, client: Client
) -> None:
    def look(key: str, finish: str) -> Any:
        ts = scheduler.tasks[key]
        assert list(scheduler.tasks) == [key] and len(scheduler.tasks) == 1
        return ts.worker_restrictions, ts.loose_restrictions

    plugin = OnTransition(scheduler, look)
    future = client.submit(inc, 1, key="x", workers=["alice"], allow_other_workers=True)
    await future
    future.release()
    while "x" in scheduler.tasks:
        await asyncio.sleep(0.01)
    assert plugin.seen["x", "memory"] == (set(scheduler.workers), True)
    assert plugin.seen["x", "forgotten"] == plugin.seen["x", "memory"]


async def test_tasks_that_a_restart_forgets_are_forgotten_in_the_hook(
    scheduler: Scheduler, client: Client
) -> None:
    def look(key: str, finish: str) -> Any:
        ts = scheduler.tasks[key]
        return ts.state, ts.who_has, ts.who_wants, ts.processing_on

    plugin = OnTransition(scheduler, look)
    futures = [client.submit(inc, 1, key="x"), client.submit(time.sleep, 0.3, key="running")]
    await futures[0]
    with pytest.raises(TimeoutError):  # the worker has no nanny
        await client.restart(timeout="100ms")
    for key in ("x", "running"):
        assert plugin.seen[key, "forgotten"] == ("forgotten", set(), set(), None)


async def test_a_worker_gets_no_tasks_before_its_add_worker_hooks_have_ended(
    scheduler: Scheduler,
) -> None:
    release = asyncio.Event()

    class Prepare(SchedulerPlugin):
        async def add_worker(self, scheduler: Any, worker: str) -> None:
            await release.wait()

    async with Client(scheduler.address, asynchronous=True) as client:
        future = client.submit(inc, 1)
        async with Worker(scheduler.address, name="ready") as ready:
            await future
            scheduler.add_plugin(Prepare())
            async with Worker(scheduler.address, name="prepared") as prepared:
                futures = client.map(inc, range(20))
                await client.gather(futures)
                workers = {ws.address for f in futures for ws in scheduler.tasks[f.key].who_has}
                assert workers == {ready.address}
                assert scheduler.workers[prepared.address].status.name == "init"
                release.set()
                assert await client.submit(inc, 1, workers=["prepared"], pure=False) == 2


@pytest.mark.pure
def test_names_and_ids_of_a_span_are_tuples() -> None:
    """Graph compilers send them as lists."""
    names = {"name": ["outer", "inner"], "ids": ["1", "2"]}
    ts: Any = SimpleNamespace(key="x", annotations={"span": names, "custom": [1]})
    expected = {"span": {"name": ("outer", "inner"), "ids": ("1", "2")}, "custom": [1]}
    assert task_annotations(ts) == expected
    found = annotations_by_type([ts])
    assert found == {name: {"x": value} for name, value in expected.items()}
    assert found["missing"] == {}
    assert type(names["name"]) is list  # tasks share their annotations


async def test_the_removal_of_a_worker_waits_for_coroutines_of_hooks(
    scheduler: Scheduler, client: Client
) -> None:
    ended = []

    class CleanUp(SchedulerPlugin):
        async def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
            await asyncio.sleep(0.05)
            ended.append(worker)

    scheduler.add_plugin(CleanUp())
    async with Worker(scheduler.address) as bob, Worker(scheduler.address) as carol:
        await client.retire_workers([bob.address])
        assert ended == [bob.address]
        assert await scheduler.remove_worker(carol.address, stimulus_id="test") == "OK"
        assert ended == [bob.address, carol.address]


async def test_hooks_see_that_a_silent_worker_was_removed(scheduler: Scheduler) -> None:
    seen = []

    class Removals(SchedulerPlugin):
        def remove_worker(
            self, scheduler: Any, worker: str, *, stimulus_id: str, **kwargs: Any
        ) -> None:
            seen.append(stimulus_id.rpartition("-")[0])

    scheduler.add_plugin(Removals())
    async with Worker(scheduler.address) as worker:
        scheduler.server.state.workers[worker.address].last_seen -= 1000
        scheduler.server.send_stimulus(Tick())
        while not seen:
            await asyncio.sleep(0.01)
    assert seen == ["check-worker-ttl"]


class RefusesToAnswer(SchedulerPlugin):
    def valid_workers_downscaling(self, scheduler: Any, workers: list[Any]) -> list[Any]:
        raise LookupError("no answer")


async def test_no_worker_is_closed_without_the_answer_of_a_plugin(
    scheduler: Scheduler, client: Client
) -> None:
    scheduler.add_plugin(RefusesToAnswer(), name="refuses")
    with pytest.raises(LookupError, match="no answer"):
        await client.scheduler.workers_to_close(n=1)
    with pytest.raises(LookupError, match="no answer"):
        await client.retire_workers(n=1)
    scheduler.remove_plugin("refuses")
    assert len(await client.scheduler.workers_to_close(n=1)) == 1
