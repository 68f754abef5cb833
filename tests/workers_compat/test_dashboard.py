"""The dashboard's mirror: what pages read is asked for, and shows what the scheduler has."""

from __future__ import annotations

import asyncio
from typing import Any

import distributed
import pytest
from paceline.scheduler import Scheduler
from paceline.workers_compat.dashboard.shapes import layered, placed
from paceline.workers_compat.dashboard.snapshots import STREAM_MAX, Snapshots
from paceline.workers_compat.dashboard.wire import Poll, Splitter, State, pack


def test_circles_and_groups_that_are_gone_have_no_arrows() -> None:
    links = layered({"a": ["b", "gone"], "b": ["c"], "c": ["a"], "d": ["a", "d"]})
    assert links == {"c": [], "b": ["c"], "a": ["b"], "d": ["a"]}
    assert list(links) == ["c", "b", "a", "d"]


def test_groups_stand_right_of_what_they_depend_on_each_in_a_place_of_its_own() -> None:
    many = {f"g{n}": [f"g{n - 1}"] for n in range(2_000, 0, -1)} | {"g0": []}
    where, links = placed({**many, "x": [], "y": ["x", "g0"]})
    assert len(set(where.values())) == len(where)
    assert all(where[other][0] < where[name][0] for name in where for other in links[name])


def test_messages_come_out_as_they_went_in() -> None:
    splitter = Splitter()
    data = pack(Poll({"workers": None})) + pack(State({"base": 1}, 0.5))
    found = [message for i in range(len(data)) for message in splitter.feed(data[i : i + 1])]
    assert found == [Poll({"workers": None}), State({"base": 1}, 0.5)]


@pytest.fixture
def mirror() -> Any:
    pytest.importorskip("bokeh")
    from paceline.workers_compat.dashboard.mirror import MirrorScheduler

    class Loop:
        """As much of tornado's as is read."""

    return MirrorScheduler(lambda what, options: None, Loop(), False, {"address": "tcp://x"})


def look(mirror: Any) -> None:
    """Read as all pages do."""
    _ = mirror.workers, mirror.task_prefixes, mirror.task_groups, len(mirror.tasks), mirror.monitor.recent()
    _ = mirror.plugins["task-stream"].index, mirror.bandwidth_types, mirror.erred_tasks, mirror.spans.spans
    _ = mirror.cumulative_worker_metrics, mirror._broker._topics["all"], mirror.extensions


async def test_the_mirror_shows_what_the_scheduler_has(mirror: Any) -> None:
    assert mirror.wanted() == {}
    look(mirror)
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Worker(scheduler.address, name="alice", nthreads=2, dashboard_address=":0") as worker,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        snapshots = Snapshots(scheduler.facade, lambda: {"cpu": 1.0, "tick_seconds": 0.02})
        mirror.apply(snapshots.news(mirror.wanted()))
        futures = client.map(lambda x: x + 1, range(10), key="inc")
        total = client.submit(sum, futures, key="total")
        erred = client.submit(int, "no number", key="bad")
        await distributed.wait([total, erred])
        mirror.apply(snapshots.news(mirror.wanted()))
        (ws,) = mirror.workers.values()
        assert (ws.address, ws.name, ws.nthreads) == (worker.address, "alice", 2)
        assert ws.status.name == "running" and ws.memory.process >= 0
        assert mirror.task_prefixes["inc"].states["memory"] == 10
        assert mirror.plugins["task-stream"].index == 12
        rectangles = mirror.plugins["task-stream"].rectangles(0)
        assert {"inc", "total", "bad"} <= set(rectangles["name"])
        assert "black" in rectangles["color"]
        assert len(mirror.tasks) == 12
        assert {ts.key for ts in mirror.tasks["total"].dependencies} == {f.key for f in futures}
        assert [e.key for e in mirror.erred_tasks] == ["bad"]
        assert mirror._broker._topics["all"].count > 0
        stored = list(next(iter(mirror.workers.values())).has_what)
        assert sum(ts.key == "inc" for ts in stored) == 10
        assert mirror.task_groups["total"].dependencies[0].name == mirror.tasks[futures[0].key].prefix.name

        del futures, total, erred
        await asyncio.sleep(0)
        while scheduler.server.state.tasks:
            await asyncio.sleep(0.01)
        mirror.apply(snapshots.news(mirror.wanted()))
        assert len(mirror.tasks) == 0 and not list(mirror.tasks)
        assert "feed_batch" in vars(scheduler.server.driver)
        snapshots.stop()
        assert "feed_batch" not in vars(scheduler.server.driver)
        assert scheduler.server.state.plugins is None
        assert not scheduler.server.flows.own_profile.running
    mirror.apply(snapshots.news({"workers": None}))
    assert not mirror.workers


async def test_of_many_tasks_the_mirror_knows_the_number_and_the_stream_the_last(mirror: Any) -> None:
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Worker(scheduler.address, nthreads=2, dashboard_address=":0"),
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        snapshots = Snapshots(scheduler.facade, dict)
        snapshots.news({"stream": None})
        futures = client.map(str, range(STREAM_MAX + 100))
        await distributed.wait(futures)
        news = snapshots.news({"stream": None, "tasks": 50})
        assert news["tasks"] == {"n": STREAM_MAX + 100}
        assert len(news["stream"]) == STREAM_MAX
        assert news["stream"][-1][0] in {f.key for f in futures}
