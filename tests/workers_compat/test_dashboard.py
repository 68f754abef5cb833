"""The dashboard's mirror: what pages read is asked for, and shows what the scheduler has."""

from __future__ import annotations

import asyncio
from typing import Any

import dask
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
        assert not stored(mirror)
        mirror.apply(snapshots.news(mirror.wanted()))
        assert stored(mirror)["inc"] == sum(worker.state.tasks[f.key].nbytes for f in futures)
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


def stored(mirror: Any) -> dict[str, int]:
    """As the plot of memory by key adds up: prefix -> bytes."""
    found: dict[str, int] = {}
    for ws in mirror.workers.values():
        for ts in ws.has_what:
            found[ts.key] = found.get(ts.key, 0) + ts.nbytes
    return found


async def test_memory_by_key_is_what_is_there_now_not_all_that_ever_was(
    mirror: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.workers_compat.dashboard.snapshots.REPLICAS_MAX", 4)
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Worker(scheduler.address, dashboard_address=":0"),
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        kept = client.submit(bytes, 10, key="part-99")
        await kept
        snapshots = Snapshots(scheduler.facade, dict)
        for turn in range(3):
            futures = [client.submit(bytes, 1_000, key=f"part-{turn}-{i}") for i in range(9)]
            await distributed.wait(futures)
            for _ in range(8):  # looks at four replicas each: what was begun ends, and all are seen anew
                mirror.apply(snapshots.news({"workers": None, "stored": None}))
            assert stored(mirror)["part"] == 9_010
            del futures
            while len(scheduler.server.state.tasks) > 1:
                await asyncio.sleep(0.01)
        assert "stored" in mirror.wanted()


async def test_the_page_of_the_event_loops_profile_draws_what_was_sampled_since_it_was_opened(
    mirror: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bokeh.document import Document
    from paceline.workers_compat.dashboard.applications import pages

    monkeypatch.setattr("paceline.workers_compat.own_profile.SAFE", True)
    document = Document()
    with dask.config.set({"distributed.worker.profile.cycle": "20ms"}):
        async with Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler:
            pages()["/profile-server"](mirror, {}, document)
            times = document.roots[0].children[-1].renderers[0].data_source.data
            assert list(times["time"]) == []
            snapshots = Snapshots(scheduler.facade, dict)
            while not mirror.io_loop.profile:
                mirror.apply(snapshots.news(mirror.wanted()))
                await asyncio.sleep(0.01)
            (look,) = document.session_callbacks
            look.callback()
            assert len(times["time"]) == len(mirror.io_loop.profile)
            assert document.title == "Dask: Profile of Event Loop"


async def test_in_a_program_the_profile_is_the_schedulers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bokeh")
    from paceline.workers_compat.dashboard.embedded import DashboardScheduler

    monkeypatch.setattr("paceline.workers_compat.own_profile.SAFE", True)
    for _ in range(2):  # one after another in the same loop
        with dask.config.set({"distributed.worker.profile.cycle": "20ms"}):
            async with Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as it:
                shown = DashboardScheduler(it.facade)
                assert shown.io_loop.asyncio_loop is asyncio.get_running_loop()
                assert not it.server.flows.own_profile.running
                while not len(shown.io_loop.profile):
                    await asyncio.sleep(0.01)


async def test_requests_are_counted_by_op(mirror: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mirror.counters == {}
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        snapshots = Snapshots(scheduler.facade, dict)
        for n in (1, 2):
            await client.scheduler.versions()
            mirror.apply(snapshots.news(mirror.wanted()))
            assert mirror.counters["op"].components[0]["versions"] == n
        before = mirror.counters["op"].size()
        monkeypatch.setattr("paceline.workers_compat.dashboard.mirror.SHIFT_SECONDS", 0.0)
        mirror.apply(snapshots.news(mirror.wanted()))
        (now, later, _) = mirror.counters["op"].components
        assert 0 < now["versions"] < 2 and later["versions"] > 0
        assert mirror.counters["op"].size() == pytest.approx(before)


def test_spans_that_are_chosen_show_all_spans_until_there_is_news_of_them(mirror: Any) -> None:
    mirror.apply({"spans": {"tags": ["a"], "metrics": {(): {"all": 3.0}}}})
    assert mirror.extensions["spans"].spans_search_by_tag == ["a"]
    assert mirror.spans.merge_by_tags("a").cumulative_worker_metrics == {"all": 3.0}
    assert mirror.wanted()["spans"] == [("a",)]
    mirror.apply({"spans": {"tags": ["a"], "metrics": {(): {"all": 3.0}, ("a",): {"some": 1.0}}}})
    assert mirror.spans.merge_by_tags("a").cumulative_worker_metrics == {"some": 1.0}


def test_seconds_of_progress_are_kept_for_so_long(mirror: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.workers_compat.dashboard.mirror.TIMING_MAX", 10)
    timing = mirror.plugins["group-timing"]
    timing.time = [when - 50 for when in timing.time]
    timing.grew({"inc": 1.5})
    assert len(timing.time) == len(timing.nthreads) == len(timing.compute["inc"]) == 10
    assert timing.compute["inc"][-1] == 1.5


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
