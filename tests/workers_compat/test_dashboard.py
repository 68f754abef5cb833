"""The dashboard's proxy of the scheduler: the topics that pages read are requested and shown."""

from __future__ import annotations

import asyncio
from typing import Any

import dask
import distributed
import pytest
from paceline.scheduler import Scheduler
from paceline.workers_compat.dashboard.group_layout import acyclic_links, layout
from paceline.workers_compat.dashboard.state_deltas import STREAM_MAX, StateDeltas
from paceline.workers_compat.dashboard.wire import MessageReader, Poll, Updates, pack


def test_layout_ignores_cycles_and_forgotten_groups() -> None:
    links = acyclic_links({"a": ["b", "gone"], "b": ["c"], "c": ["a"], "d": ["a", "d"]})
    assert links == {"c": [], "b": ["c"], "a": ["b"], "d": ["a"]}
    assert list(links) == ["c", "b", "a", "d"]


def test_layout_places_groups_right_of_their_dependencies() -> None:
    many = {f"g{n}": [f"g{n - 1}"] for n in range(2_000, 0, -1)} | {"g0": []}
    where, links = layout({**many, "x": [], "y": ["x", "g0"]})
    assert len(set(where.values())) == len(where)
    assert all(where[other][0] < where[name][0] for name in where for other in links[name])


def test_messages_round_trip() -> None:
    reader = MessageReader()
    data = pack(Poll({"workers": None})) + pack(Updates({"base": 1}, 0.5))
    found = [message for i in range(len(data)) for message in reader.feed(data[i : i + 1])]
    assert found == [Poll({"workers": None}), Updates({"base": 1}, 0.5)]


@pytest.fixture
def proxy() -> Any:
    pytest.importorskip("bokeh")
    from paceline.workers_compat.dashboard.scheduler_proxy import SchedulerProxy

    class Loop:
        """The tornado loop; no attribute is read."""

    return SchedulerProxy(lambda what, options: None, Loop(), False)


def read_all(proxy: Any) -> None:
    """Read what all pages read."""
    _ = (
        proxy.workers,
        proxy.task_prefixes,
        proxy.task_groups,
        len(proxy.tasks),
        proxy.monitor.recent(),
    )
    _ = (
        proxy.plugins["task-stream"].index,
        proxy.bandwidth_types,
        proxy.erred_tasks,
        proxy.spans.spans,
    )
    _ = proxy.cumulative_worker_metrics, proxy._broker._topics["all"], proxy.extensions


async def test_proxy_matches_the_scheduler(proxy: Any) -> None:
    assert proxy.wanted() == {}
    read_all(proxy)
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Worker(
            scheduler.address, name="alice", nthreads=2, dashboard_address=":0"
        ) as worker,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        deltas = StateDeltas(scheduler.server, lambda: {"cpu": 1.0, "tick_seconds": 0.02})
        proxy.apply(deltas.updates(proxy.wanted()))
        futures = client.map(lambda x: x + 1, range(10), key="inc")
        total = client.submit(sum, futures, key="total")
        erred = client.submit(int, "no number", key="bad")
        await distributed.wait([total, erred])
        proxy.apply(deltas.updates(proxy.wanted()))
        (ws,) = proxy.workers.values()
        assert (ws.address, ws.name, ws.nthreads) == (worker.address, "alice", 2)
        assert ws.status.name == "running" and ws.memory.process >= 0
        assert proxy.task_prefixes["inc"].states["memory"] == 10
        assert proxy.plugins["task-stream"].index == 12
        rectangles = proxy.plugins["task-stream"].rectangles(0)
        assert {"inc", "total", "bad"} <= set(rectangles["name"])
        assert "black" in rectangles["color"]
        assert len(proxy.tasks) == 12
        assert {ts.key for ts in proxy.tasks["total"].dependencies} == {f.key for f in futures}
        assert [e.key for e in proxy.erred_tasks] == ["bad"]
        assert proxy._broker._topics["all"].count > 0
        assert not stored(proxy)
        proxy.apply(deltas.updates(proxy.wanted()))
        assert stored(proxy)["inc"] == sum(worker.state.tasks[f.key].nbytes for f in futures)
        assert (
            proxy.task_groups["total"].dependencies[0].name
            == proxy.tasks[futures[0].key].prefix.name
        )

        del futures, total, erred
        await asyncio.sleep(0)
        while scheduler.server.state.tasks:
            await asyncio.sleep(0.01)
        proxy.apply(deltas.updates(proxy.wanted()))
        assert len(proxy.tasks) == 0 and not list(proxy.tasks)
        assert deltas in scheduler.server.driver.observers
        deltas.stop()
        assert deltas not in scheduler.server.driver.observers
        assert scheduler.server.state.plugins is None
        assert not scheduler.server.request_state.loop_profile.running
    proxy.apply(deltas.updates({"workers": None}))
    assert not proxy.workers


def stored(proxy: Any) -> dict[str, int]:
    """Sum bytes by prefix, as the plot of memory by key does."""
    found: dict[str, int] = {}
    for ws in proxy.workers.values():
        for ts in ws.has_what:
            found[ts.key] = found.get(ts.key, 0) + ts.nbytes
    return found


async def test_memory_by_key_is_current(proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.workers_compat.dashboard.state_deltas.REPLICAS_MAX", 4)
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Worker(scheduler.address, dashboard_address=":0"),
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        kept = client.submit(bytes, 10, key="part-99")
        await kept
        deltas = StateDeltas(scheduler.server, dict)
        for turn in range(3):
            futures = [client.submit(bytes, 1_000, key=f"part-{turn}-{i}") for i in range(9)]
            await distributed.wait(futures)
            for _ in range(8):  # four replicas each: finish the current pass, then a complete one
                proxy.apply(deltas.updates({"workers": None, "stored": None}))
            assert stored(proxy)["part"] == 9_010
            del futures
            while len(scheduler.server.state.tasks) > 1:
                await asyncio.sleep(0.01)
        assert "stored" in proxy.wanted()


async def test_loop_profile_page_draws_samples_taken_after_it_was_opened(
    proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bokeh.document import Document
    from paceline.workers_compat.dashboard.applications import pages

    monkeypatch.setattr("paceline.workers_compat.loop_profile.SAFE", True)
    document = Document()
    with dask.config.set({"distributed.worker.profile.cycle": "20ms"}):
        async with Scheduler(
            host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False
        ) as scheduler:
            pages()["/profile-server"](proxy, {}, document)
            times = document.roots[0].children[-1].renderers[0].data_source.data
            assert list(times["time"]) == []
            deltas = StateDeltas(scheduler.server, dict)
            while not proxy.io_loop.profile:
                proxy.apply(deltas.updates(proxy.wanted()))
                await asyncio.sleep(0.01)
            (redraw,) = document.session_callbacks
            redraw.callback()
            assert len(times["time"]) == len(proxy.io_loop.profile)
            assert document.title == "Dask: Profile of Event Loop"


async def test_embedded_dashboard_shows_the_schedulers_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("bokeh")
    from paceline.workers_compat.dashboard.embedded import DashboardScheduler

    monkeypatch.setattr("paceline.workers_compat.loop_profile.SAFE", True)
    for _ in range(2):  # one after another in the same loop
        with dask.config.set({"distributed.worker.profile.cycle": "20ms"}):
            async with Scheduler(
                host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False
            ) as it:
                shown = DashboardScheduler(it.facade, it.server)
                assert shown.io_loop.asyncio_loop is asyncio.get_running_loop()
                assert not it.server.request_state.loop_profile.running
                while not len(shown.io_loop.profile):
                    await asyncio.sleep(0.01)


async def test_requests_are_counted_by_op(proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy.counters == {}
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        deltas = StateDeltas(scheduler.server, dict)
        for n in (1, 2):
            await client.scheduler.versions()
            proxy.apply(deltas.updates(proxy.wanted()))
            assert proxy.counters["op"].components[0]["versions"] == n
        before = proxy.counters["op"].size()
        monkeypatch.setattr("paceline.workers_compat.dashboard.proxy_parts.SHIFT_SECONDS", 0.0)
        proxy.apply(deltas.updates(proxy.wanted()))
        (now, later, _) = proxy.counters["op"].components
        assert 0 < now["versions"] < 2 and later["versions"] > 0
        assert proxy.counters["op"].size() == pytest.approx(before)


def test_selected_spans_show_all_spans_until_the_next_update(proxy: Any) -> None:
    proxy.apply({"spans": {"tags": ["a"], "metrics": {(): {"all": 3.0}}}})
    assert proxy.extensions["spans"].spans_search_by_tag == ["a"]
    assert proxy.spans.merge_by_tags("a").cumulative_worker_metrics == {"all": 3.0}
    assert proxy.wanted()["spans"] == [("a",)]
    proxy.apply({"spans": {"tags": ["a"], "metrics": {(): {"all": 3.0}, ("a",): {"some": 1.0}}}})
    assert proxy.spans.merge_by_tags("a").cumulative_worker_metrics == {"some": 1.0}


def test_progress_is_limited_to_timing_max_seconds(
    proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.workers_compat.dashboard.proxy_parts.TIMING_MAX", 10)
    timing = proxy.plugins["group-timing"]
    timing.time = [when - 50 for when in timing.time]
    timing.update_sums({"inc": 1.5})
    assert len(timing.time) == len(timing.nthreads) == len(timing.compute["inc"]) == 10
    assert timing.compute["inc"][-1] == 1.5


async def test_many_tasks_are_counted_and_the_stream_keeps_the_last(
    proxy: Any,
) -> None:
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Worker(scheduler.address, nthreads=2, dashboard_address=":0"),
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        deltas = StateDeltas(scheduler.server, dict)
        deltas.updates({"stream": None})
        futures = client.map(str, range(STREAM_MAX + 100))
        await distributed.wait(futures)
        updates = deltas.updates({"stream": None, "tasks": 50})
        assert updates["tasks"] == {"n": STREAM_MAX + 100}
        assert len(updates["stream"]) == STREAM_MAX
        assert updates["stream"][-1][0] in {f.key for f in futures}


@pytest.mark.parametrize("embedded", [False, True])
async def test_shares_page_shows_groups_clients_and_why_they_wait(
    proxy: Any, embedded: bool
) -> None:
    from bokeh.document import Document
    from paceline.workers_compat.dashboard.applications import pages
    from paceline.workers_compat.dashboard.embedded import DashboardScheduler

    groups = {"batch": {"tasks": 0, "memory": "10 GiB"}, "alice": {"weight": 3, "class": 1}}
    with dask.config.set({"paceline.shares.groups": groups}):
        running = Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False)
    async with (
        running as scheduler,
        distributed.Worker(scheduler.address, nthreads=1, dashboard_address=":0"),
        distributed.Client(scheduler.address, name="batch", asynchronous=True) as batch,
        distributed.Client(scheduler.address, name="alice", asynchronous=True) as alice,
    ):
        capped = batch.submit(int, key="capped")
        result = alice.submit(bytes, 1_000, key="result")
        await result
        while not scheduler.server.state.shares.groups["batch"].n_queued:
            await asyncio.sleep(0.01)
        shown = DashboardScheduler(scheduler.facade, scheduler.server) if embedded else proxy
        documents = [Document(), Document()]  # of two browsers
        for document in documents:
            pages()["/shares"](shown, {}, document)
        if not embedded:
            assert document.roots[0].children[1].source.data["group"] == []
            deltas = StateDeltas(scheduler.server, dict)
            proxy.apply(deltas.updates(proxy.wanted()))
            (update,) = document.session_callbacks
            update.callback()
        assert document.title == "Dask: Shares"
        heading, shares, clients = document.roots[0].children
        assert heading.text == "2 groups, 1 with queued tasks. Recent use halves every 60 s."
        assert [each.field for each in shares.columns] == list(shares.source.data)
        rows = {row["group"]: row for row in records(shares.source.data)}
        assert list(rows) == ["batch", "alice"]
        assert rows["batch"]["waits_for"] == "cap of tasks" and rows["batch"]["queued"] == 1
        assert rows["batch"]["caps"] == "tasks 0, memory 10.00 GiB"
        assert [rows["alice"][name] for name in ("weight", "class", "caps")] == [3, 1, ""]
        assert rows["alice"]["share"] == 1 and rows["batch"]["share"] == 0
        assert rows["alice"]["nbytes"] >= 1_000 and rows["alice"]["waits_for"] == ""
        found = {(row["group"], row["client"]): row for row in records(clients.source.data)}
        assert set(found) == {("batch", batch.id), ("alice", alice.id)}
        assert found["alice", alice.id]["finished"] == 1
        del capped


@pytest.mark.parametrize("embedded", [False, True])
async def test_memory_page_shows_what_tasks_take_and_what_workers_have_left(
    proxy: Any, embedded: bool
) -> None:
    from bokeh.document import Document
    from paceline.workers_compat.dashboard.applications import pages
    from paceline.workers_compat.dashboard.embedded import DashboardScheduler

    limit = 10_000_000_000
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Worker(
            scheduler.address, nthreads=1, memory_limit=limit, name="w", dashboard_address=":0"
        ),
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        result = client.submit(bytes, 1_000_000)
        await result
        shown = DashboardScheduler(scheduler.facade, scheduler.server) if embedded else proxy
        document = Document()
        pages()["/memory"](shown, {}, document)
        heading, prefixes, workers = document.roots[0].children
        if not embedded:
            assert heading.text == "" and prefixes.source.data["name"] == []
            deltas = StateDeltas(scheduler.server, dict)
            proxy.apply(deltas.updates(proxy.wanted()))
            (update,) = document.session_callbacks
            update.callback()
        assert document.title == "Dask: Memory"
        assert heading.text.startswith("No worker is short of memory. Workers are sent tasks up to")
        (row,) = records(prefixes.source.data)
        assert (row["name"], row["memory"], row["queued"]) == ("bytes", 1, 0)
        assert 1_000_000 <= row["result_nbytes"] <= row["task_nbytes"]
        (row,) = records(workers.source.data)
        assert (row["name"], row["status"]) == ("w", "running")
        assert (row["limit_nbytes"], row["allowed_nbytes"]) == (limit, 0.7 * limit)
        assert row["results_nbytes"] >= 1_000_000 and row["idle_nbytes"] > 0
        parts = sum(row[f"{name}_nbytes"] for name in ("idle", "results", "tasks"))
        assert parts == row["expected_nbytes"] == row["allowed_nbytes"] - row["free_nbytes"]
        assert row["used"] == row["expected_nbytes"] / row["allowed_nbytes"]


def test_heading_of_the_memory_page() -> None:
    pytest.importorskip("bokeh")
    from paceline.workers_compat.dashboard.memory_tables import ADMISSION_OFF, heading

    report: dict[str, Any] = {
        **{"share": 0.7, "is_short": True, "waiting": 3, "recalled": 1, "prefixes": [{}]},
        **{"n_prefixes": 2, "workers": [], "n_workers": 0},
    }
    assert heading(report) == (
        "3 queued tasks wait for memory of workers. Workers are sent tasks up to 70% of their "
        "memory limit; 1 were asked back. 1 of 2 prefixes are shown."
    )
    assert heading({**report, "waiting": 0}).startswith("Workers may run short of memory")
    assert heading({**report, "share": 0.0}) == ADMISSION_OFF


def records(data: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    return [dict(zip(data, values)) for values in zip(*data.values(), strict=True)]


def test_share_of_use_is_relative_to_the_thread_seconds_of_all_groups() -> None:
    pytest.importorskip("bokeh")
    from paceline.workers_compat.dashboard.share_tables import group_rows

    sums = dict.fromkeys(
        ("tasks", "finished", "thread_seconds", "nbytes", "byte_seconds", "moved_nbytes"), 0
    )
    caps = {"class": 0, "threads": 4, "tasks": None, "memory": None}
    work = {"processing": 0, "queued": 0, "waits_for": "", **sums}
    groups = [
        {"name": name, "usage": usage, "settings": {"weight": weight, **caps}, **work}
        for name, usage, weight in (("a", 10.0, 1.0), ("b", 30.0, 6.0))
    ]
    rows = group_rows(groups)
    assert [(row["recent_seconds"], row["share"]) for row in rows] == [(10, 0.25), (30, 0.75)]
    assert rows[0]["caps"] == "threads 4"
    assert group_rows([{**groups[0], "usage": 0.0}])[0]["share"] == 0


def test_menu_has_the_pages_that_distributed_lacks(proxy: Any) -> None:
    from paceline.workers_compat.dashboard.applications import menu, pages, template_variables
    from paceline.workers_compat.facade.pages import dashboard_paths

    stock = template_variables(proxy)
    shown = menu(stock)
    assert shown["pages"][-3:] == ["shares", "memory", "info"]
    assert "shares" not in stock["pages"] and "memory" not in stock["pages"]
    assert {"url": "individual-shares", "name": "Shares"} in shown["plots"]
    assert set(dashboard_paths()) == set(pages())
