"""Retirement of busy stock workers: running tasks finish, waiting tasks move, and a worker that stays reports the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import dask
import pytest
from distributed import Event
from paceline.scheduler.server.requests import retire

from tests.support.fake_peers import until
from tests.support.stock_cluster import cluster

pytestmark = pytest.mark.timeout(90)


def hold(i: int) -> int:
    """Report the start, and run until released."""
    Event(f"began-{i}").set()
    Event("go").wait(timeout=30)
    return i


async def crowded(client: Any, worker: Any, n: int) -> list[Any]:
    """Submit tasks to one worker: the first of them runs, the others wait there."""
    futures = [
        client.submit(hold, i, workers=[worker.address], allow_other_workers=True, key=f"hold-{i}")
        for i in range(n)
    ]
    await Event("began-0").wait(timeout=10)
    await until(lambda: len(worker.state.tasks) == n)
    return futures


async def test_running_tasks_finish_and_waiting_tasks_move() -> None:
    async with cluster(2) as (scheduler, client, (w0, w1)):
        scheduler.facade.periodic_callbacks["stealing"].stop()
        futures = await crowded(client, w0, 4)
        retiring = asyncio.ensure_future(client.retire_workers([w0.address], close_workers=True))
        await until(lambda: len(w1.state.tasks) == 3)
        assert list(w0.state.tasks) == ["hold-0"] and not retiring.done()
        await Event("go").set()
        assert list(await retiring) == [w0.address]
        assert await client.gather(futures) == [0, 1, 2, 3]
        story = await client.run_on_scheduler(
            lambda dask_scheduler: [t[1:3] for t in dask_scheduler.story("hold-0")]
        )
        assert story == [
            ("released", "waiting"), ("waiting", "processing"), ("processing", "memory"),
        ]  # fmt: skip
        assert "hold-0" in w1.data


async def test_results_that_finish_during_the_move_are_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retire, "PATIENCE_SECONDS", 3600.0)
    async with cluster(2) as (_, client, (w0, w1)):
        (running,) = await crowded(client, w0, 1)
        first = (await client.scatter({"first": 7}, workers=[w0.address]))["first"]
        give, may_give, asked = w0.handlers["get_data"], asyncio.Event(), asyncio.Event()

        async def late(comm: Any, **message: Any) -> Any:
            asked.set()
            await may_give.wait()
            return await give(comm, **message)

        w0.handlers["get_data"] = late
        retiring = asyncio.ensure_future(client.retire_workers([w0.address], close_workers=True))
        await asked.wait()
        await Event("go").set()
        await until(lambda: running.status == "finished")
        may_give.set()
        assert list(await retiring) == [w0.address]
        assert set(w1.data) == {"first", "hold-0"}
        assert await client.gather([first, running]) == [7, 0]


async def test_long_running_task_restarts_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with dask.config.set({"paceline.scheduler.retire-running": "200 ms"}):
        await long_runner(caplog)


async def long_runner(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(2) as (_, client, (w0, w1)):
        futures = await crowded(client, w0, 1)
        assert list(await client.retire_workers([w0.address], close_workers=True)) == [w0.address]
        await until(lambda: "hold-0" in w1.state.tasks)
        await Event("go").set()
        assert await client.gather(futures) == [0]
    assert "are rescheduled: ['hold-0']" in caplog.text


async def test_pinned_task_waits_for_its_worker() -> None:
    async with cluster(1) as (scheduler, client, (w0,)):
        futures = [client.submit(hold, i, workers=[w0.address], key=f"hold-{i}") for i in (0, 1)]
        await Event("began-0").wait(timeout=10)
        retiring = asyncio.ensure_future(client.retire_workers([w0.address], remove=False))
        await until(lambda: scheduler.server.state.tasks["hold-1"].state == "no-worker")
        await Event("go").set()
        assert await retiring == {}, "its data fits nowhere else"
        assert await client.gather(futures) == [0, 1]


async def test_running_tasks_are_not_waited_for_if_all_workers_retire(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster(2) as (_, client, workers):
        future = client.submit(hold, 0)
        await Event("began-0").wait(timeout=10)
        addresses = [worker.address for worker in workers]
        assert set(await client.retire_workers(addresses)) == set(addresses)
        assert future.status == "pending" and "Retiring worker" not in caplog.text
        await Event("go").set()


async def test_worker_that_cannot_retire_reports_the_reason() -> None:
    class Counter:
        n = 0

    async with cluster(2) as (_, client, (w0, _w1)):
        actor = await client.submit(Counter, actor=True, workers=[w0.address])
        assert await client.retire_workers([w0.address]) == {}
        log = [event for _, event in await client.get_events(w0.address)]
        (kept,) = [event for event in log if event["action"] == "could-not-retire"]
        assert "actor" in kept["reason"] and actor.key in kept["reason"]
        await until(lambda: w0.status.name == "running")


async def test_seceded_tasks_are_waited_for() -> None:
    def seceded() -> int:
        from distributed import secede

        secede()
        return hold(0)

    async with cluster(2) as (_, client, (w0, _w1)):
        future = client.submit(seceded, workers=[w0.address], allow_other_workers=True)
        await Event("began-0").wait(timeout=10)
        retiring = asyncio.ensure_future(client.retire_workers([w0.address]))
        await asyncio.sleep(0.1)
        assert not retiring.done()
        await Event("go").set()
        assert await retiring and await future == 0


async def test_worker_that_is_not_removed_holds_no_data() -> None:
    async with cluster(2) as (scheduler, client, (w0, w1)):
        [x] = await client.scatter([1], workers=[w0.address])
        await client.retire_workers([w0.address], close_workers=False, remove=False)
        await until(lambda: scheduler.get_who_has([x.key]) == {x.key: [w1.address]})
        assert w0.address in scheduler.workers
