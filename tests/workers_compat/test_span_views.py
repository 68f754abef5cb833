"""Spans as stock's programs read them: a real scheduler, a stock worker and a stock client in this process."""

from __future__ import annotations

import asyncio
import time

import dask
import pytest
from dask import delayed
from distributed import Client, Event, SchedulerPlugin, Worker, get_client, span
from paceline.scheduler.server.scheduler import Scheduler


class World:
    def __init__(self, scheduler, client, worker):
        self.scheduler, self.client, self.worker = scheduler, client, worker
        self.facade = scheduler.facade
        self.spans = self.facade.extensions["spans"]

    async def in_state(self, key, state):
        while key not in self.facade.tasks or self.facade.tasks[key].state != state:
            await asyncio.sleep(0.005)

    async def empty(self):
        while self.facade.tasks:
            await asyncio.sleep(0.005)


@pytest.fixture
async def world():
    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Worker(scheduler.address, nthreads=2, name="alice") as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        worker.scheduler_delay = 0  # as the worker estimates it, a busy machine shifts its times
        yield World(scheduler, client, worker)


def inc(x):
    return x + 1


async def test_a_tree_of_spans(world):
    x = delayed(inc)(1)
    with span("wf") as wf:
        with span("p1") as p1:
            y = x + 1
        with span("p2") as p2:
            z = y * 2
    assert await world.client.compute(world.client.persist(z)) == 6
    ext = world.spans
    top = ext.spans[wf]
    assert [each.id for each in top.children] == [p2, p1]
    assert ext.spans[p1].parent is ext.spans[p2].parent is top
    assert ext.root_spans == [top, ext.spans_search_by_name["default",][0]]
    assert list(ext.spans_search_by_name) == [("wf",), ("wf", "p2"), ("wf", "p1"), ("default",)]
    assert ext.spans_search_by_tag["wf"] == [top, ext.spans[p2], ext.spans[p1]]
    assert ext.spans[p1].annotation == {"name": ("wf", "p1"), "ids": (wf, p1)}
    for lazy, wanted in ((y, p1), (z, p2)):
        seen, there = world.facade.tasks[lazy.key], world.worker.state.tasks[lazy.key]
        assert seen.group.span_id == there.span_id == wanted
        assert seen.group in ext.spans[wanted].groups
        assert dict(seen.annotations) == there.annotations == {"span": ext.spans[wanted].annotation}
    assert repr(top) == f"Span<name=('wf',), id={wf}>"
    assert top.done
    assert set(top.traverse_spans()) == {top, *top.children}


async def test_times_and_sums(world):
    before = time.time()
    ev = Event()
    x = world.client.submit(ev.wait, key="x")
    await world.in_state("x", "processing")
    (found,) = world.spans.spans.values()
    assert (found.start, found.duration, found.all_durations, found.done) == (0, 0, {}, False)
    assert before < found.enqueued <= found.stop <= time.time()
    await ev.set()
    await x
    assert found.done
    assert found.enqueued <= found.start < found.stop
    assert found.nbytes_total > 0
    assert found.states["memory"] == 1
    assert found.nthreads_intervals == [(found.enqueued, found.stop, 2)]
    assert found.active_cpu_seconds == pytest.approx((found.stop - found.enqueued) * 2)


async def test_default_span_for_each_busy_period(world):
    ev1, ev2 = Event(), Event()
    y = world.client.submit(ev1.wait, key="y")
    z = world.client.submit(inc, 1, key="z")
    assert await z == 2
    await ev1.set()
    await y
    w = world.client.submit(ev2.wait, key="w")
    await world.in_state("w", "processing")
    first, second = world.spans.spans_search_by_name["default",]
    ids = [world.facade.tasks[key].group.span_id for key in "yzw"]
    assert ids == [first.id, first.id, second.id]
    assert (first.done, second.done) == (True, False)
    await ev2.set()
    await w


class Listener(SchedulerPlugin):
    def __init__(self):
        self.heard = []

    def update_graph(self, scheduler, *, annotations, **kwargs):
        self.heard.append(annotations)


@pytest.mark.parametrize("default", [False, True])
async def test_tasks_of_one_group_in_two_spans(world, default):
    listener = Listener()
    world.facade.add_plugin(listener, name="listener")
    first = delayed(inc)(1, dask_key_name=("x", 0))
    if default:
        x0 = world.client.persist(first)
    else:
        with span("p1"):
            x0 = world.client.persist(first)
    await x0
    with span("p2"):
        x1 = world.client.persist(delayed(inc)(2, dask_key_name=("x", 1)))
    await x1
    name = ("default",) if default else ("p1",)
    assert list(world.spans.spans_search_by_name) == [name]
    if default:
        assert listener.heard == [{}, {}]
        return
    (found,) = world.spans.spans.values()
    assert listener.heard == [{"span": {("x", i): found.annotation}} for i in (0, 1)]
    assert world.worker.state.tasks["x", 1].annotations["span"] == found.annotation


async def test_heartbeats_update_metrics(world):
    with span("foo") as foo:
        await world.client.submit(inc, 1, key="x-1")
        with span("bar") as bar:
            await world.client.submit(inc, 1, key="y-1")
    await world.worker.heartbeat()
    above, below = world.spans.spans[foo], world.spans.spans[bar]
    own = above._cumulative_worker_metrics
    assert {name[1] for name in own} == {"x"}
    assert ("execute", "y", "thread-cpu", "seconds") in below.cumulative_worker_metrics
    for name, value in above.cumulative_worker_metrics.items():
        if name[1] != "N/A":
            assert world.facade.cumulative_worker_metrics[name] == pytest.approx(value)
    idle = above.cumulative_worker_metrics["execute", "N/A", "idle or other spans", "seconds"]
    assert 0 <= idle <= above.active_cpu_seconds


async def test_sums_of_spans(world):
    with pytest.raises(ValueError, match="Nothing to merge"):
        world.spans.merge_all()
    with span("foo") as foo:
        await world.client.submit(inc, 1, key="x1")
        with span("bar") as bar1:
            await world.client.submit(inc, 2, key="x2")
    with span("bar") as bar2:
        await world.client.submit(inc, 3, key="x3")

    def found(*tags):
        return [each.id for each in world.spans.find_by_tags(*tags)]

    assert found("foo") == [foo]
    assert set(found("bar")) == {bar1, bar2}
    assert set(found("foo", "bar")) == {foo, bar2}
    merged = world.spans.merge_by_tags("bar")
    assert [group.name for group in merged.traverse_groups()] == ["x3", "x2"]
    assert merged.enqueued == world.spans.spans[bar1].enqueued
    assert merged.nthreads_intervals[0][0] == merged.enqueued
    assert [group.name for group in world.spans.merge_all().traverse_groups()] == ["x1", "x2", "x3"]
    await world.empty()
    assert world.spans.merge_all().states["forgotten"] == 3


async def test_code_and_collections(world):
    with dask.config.set({"distributed.diagnostics.computations.nframes": 3}), span("foo") as foo:
        for i in range(2):
            await world.client.submit(inc, 1, key=f"x-{i}")
    found = world.spans.spans[foo]
    assert len(found.code) == 1
    assert "world.client.submit(inc, 1" in found.code[0][-1].code
    assert found.metadata == {"collections": [{"type": "Future"}] * 2}
    last = world.facade.computations[-1]
    assert "world.client.submit(inc, 1" in last.code[0][-1].code
    assert repr(last).startswith("<Computation ")
    assert last._repr_html_()


async def test_no_code_by_default(world):
    with span("foo") as foo:
        await world.client.submit(inc, 1, key="x")
    assert world.spans.spans[foo].code == []
    assert list(world.facade.computations[-1].code) == []


async def test_spans_in_tasks(world):
    def f():
        with span("bar"):
            return get_client().submit(inc, 1).result()

    with span("foo"):
        assert await world.client.submit(f) == 2
    assert list(world.spans.spans_search_by_name) == [("foo",), ("foo", "bar")]


async def test_the_cluster_over_time(world):
    ev = Event()
    x = world.client.submit(ev.wait, key="x", workers=[world.worker.address])
    await world.in_state("x", "processing")
    async with Worker(world.scheduler.address, nthreads=4):
        await asyncio.sleep(0.01)
    await ev.set()
    await x
    (found,) = world.spans.spans.values()
    assert [n for _, _, n in found.nthreads_intervals] == [2, 6, 2]
    assert [n for _, n in world.facade.total_nthreads_history] == [0, 2, 6, 2]


async def test_views_are_removed_with_their_spans(world):
    for i in range(5):
        with span(f"s{i}"):
            await world.client.submit(inc, i, key="abcde"[i])
    tree = world.scheduler.server.state.spans
    kept = world.spans.root_spans[-1]
    for name in list(tree.spans)[:4]:
        del tree.spans[name]
    with span("late"):
        await world.client.submit(inc, 9, key="late-1")
    assert world.spans.root_spans[0] is kept
    assert len(world.spans._views) == 2
