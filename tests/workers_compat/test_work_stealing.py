"""Work stealing as plugins and programs see it: a real scheduler in this process, stock workers and a stock client."""

from __future__ import annotations

import asyncio
import time

import dask
import pytest
from distributed import Client, Event, Worker, wait
from distributed.stealing import WorkStealing as StockStealing
from paceline.scheduler.server.scheduler import Scheduler
from paceline.workers_compat.config.config import ConfigError, scheduler_config


@pytest.fixture
async def world():
    """Start two workers with one thread each; stealing runs only when a test requests it."""
    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Worker(scheduler.address, nthreads=1, name="a") as a,
        Worker(scheduler.address, nthreads=1, name="b") as b,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        facade = scheduler.facade
        facade.periodic_callbacks["stealing"].stop()
        yield facade, client, a, b


def hold(i, event):
    event.wait(timeout=20)
    return i


async def crowd(client, a, n=6):
    """Submit tasks that wait on one worker while another is idle; yield what releases them."""
    event = Event("go-" + str(time.monotonic()))
    futures = client.map(
        hold, range(n), event=event, workers=[a.address], allow_other_workers=True, pure=False
    )
    while len(a.state.tasks) < n:
        await asyncio.sleep(0.01)
    return futures, event


async def test_state_of_the_extension(world):
    facade, client, a, b = world
    stealing = facade.extensions["stealing"]
    futures, event = await crowd(client, a)
    stealable = stealing.stealable
    assert {ts.key for ts in stealable[a.address][0]} == {f.key for f in futures}
    assert not any(stealable[b.address])
    assert stealing.key_stealable[facade.tasks[futures[0].key]] == (a.address, 0)
    assert stealing.steal_time_ratio(facade.tasks[futures[0].key]) == (0, 0)
    stealing.balance()
    asked = stealing.in_flight
    assert asked and stealing.count == 1
    for info in asked.values():
        assert info.keys() == {
            "victim", "thief", "victim_duration", "thief_duration", "stimulus_id",
        }  # fmt: skip
        assert info["victim"] == facade.workers[a.address]
        assert info["thief"] == facade.workers[b.address]
    assert stealing.in_flight_tasks[facade.workers[b.address]] == len(asked)
    assert stealing.in_flight_occupancy[facade.workers[a.address]] < 0
    assert stealing.in_flight_occupancy["nobody"] == 0
    assert sum(stealing.metrics["request_count_total"].values()) == len(asked)
    await stealing.stop()
    assert not stealing.in_flight
    await event.set()
    await wait(futures)
    assert b.state.executed_count == len(asked)
    story = stealing.story(next(iter(asked)), "steal-0")
    assert [entry[0] for entry in story if isinstance(entry[0], str)].count("confirm") >= 1
    assert "stealing" not in facade.periodic_callbacks


async def test_events_have_stocks_shape(world):
    facade, client, a, b = world
    heard = []
    client.subscribe_topic("stealing", heard.append)
    futures, event = await crowd(client, a)
    facade.extensions["stealing"].balance()
    await event.set()
    await wait(futures)
    events = [event for _, event in await client.get_events("stealing")]
    (what, entries), *confirmed = events
    assert what == "request"
    for entry in entries:
        when, level, key, cost, victim, occupancy, thief, _ = entry
        assert time.time() - 20 < when < time.time() and level == 0
        assert key in {f.key for f in futures}
        assert (victim, thief) == (a.address, b.address) and cost == 0.5 and 0 < occupancy <= 3.0
    for i, (what, _, state, *places) in enumerate(confirmed):
        assert (what, state) == ("confirm", "ready")
        assert places == [a.address, b.address, f"steal-{i}"]
    assert len(heard) == len(events)


async def test_stealing_can_be_switched(world):
    facade, _, _, _ = world
    stealing, callback = facade.extensions["stealing"], facade.periodic_callbacks["stealing"]
    assert not callback.is_running() and callback.callback_time == 1000
    callback.callback_time = 20
    assert not callback.is_running() and stealing._callback_time == 0.02
    callback.start()
    callback.start()
    assert callback.is_running()
    with pytest.raises(ValueError, match="positive"):
        callback.callback_time = 0
    await stealing.stop()
    await stealing.stop()
    assert "stealing" not in facade.periodic_callbacks and not callback.is_running()
    await stealing.start()
    await stealing.start()
    assert facade.periodic_callbacks["stealing"].is_running()
    stealing.teardown()
    assert not facade.server.state.stealing.running


async def test_move_one_task_by_hand(world):
    facade, client, a, b = world
    stealing = facade.extensions["stealing"]
    futures, event = await crowd(client, a, 3)
    ts, wa, wb = facade.tasks[futures[2].key], facade.workers[a.address], facade.workers[b.address]
    assert stealing.move_task_request(ts, wa, wb) == "steal-0"
    assert stealing.move_task_request(ts, wa, wb) == "in-flight"
    assert stealing.move_task_request(facade.tasks[futures[1].key], wb, wa) == "not-processing"
    await event.set()
    await wait(futures)
    assert futures[2].key in b.data
    stealing.log(("mine", 1))
    assert (await client.get_events("stealing"))[-1][1] == ("mine", 1)


async def test_a_cluster_with_stealing_off():
    with dask.config.set({"distributed.scheduler.work-stealing": False}):
        async with Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler:
            facade = scheduler.facade
            assert "stealing" not in facade.extensions
            assert "stealing" not in facade.periodic_callbacks


def test_extension_has_the_names_of_stocks():
    from paceline.workers_compat.facade.work_stealing import WorkStealing

    own = {*dir(WorkStealing), "scheduler"}
    of_stock = {name for name in dir(StockStealing) if not name.startswith("_")}
    of_stock |= {name for name in StockStealing.__annotations__ if not name.startswith("_")}
    # stock's internal structures, which do not exist here, and hooks of a plugin
    inner = {
        "add_client", "add_worker", "before_close", "close", "get_task_duration", "idempotent", "log_event",
        "move_task_confirm", "name", "put_key_in_stealable", "recalculate_cost", "remove_client",
        "remove_key_from_stealable", "remove_worker", "restart", "stealing_objective", "transition",
        "unknown_durations", "update_graph", "valid_workers_downscaling",
    }  # fmt: skip
    assert of_stock - own - inner == set()


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), (2, 0.002), (None, 1.0), ("3s", 3.0)]
)
def test_interval(text, seconds):
    with dask.config.set({"distributed.scheduler.work-stealing-interval": text}):
        assert scheduler_config().work_stealing_interval_seconds == seconds


def test_invalid_interval():
    soon = dask.config.set({"distributed.scheduler.work-stealing-interval": "soon"})
    with soon, pytest.raises(ConfigError, match="work-stealing-interval"):
        scheduler_config()
