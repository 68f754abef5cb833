"""Work stealing: requests of a round, their cost, and the levels.

The outcome of requests is tested by ``tests/scenarios/steal*.txt``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.instructions import LogLine
from paceline.scheduler.core.policy import placement
from paceline.scheduler.core.state.workers.stealing import COST_MULTIPLIERS
from paceline.scheduler.core.stealing import balancer
from paceline.scheduler.core.stealing.balancer import balance, cost_level
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    BalanceWork,
    ConfigureStealing,
    RecallTask,
    TimerDue,
)
from paceline.scheduler.core.turn import Outbox, Turn
from paceline.testing import Env

MakeEnv = Callable[..., Env]


def crowd(env: Env, address: str, graph: dict[Any, list[Any]], strictly: bool = False) -> None:
    """Give tasks to a worker; others may steal them unless ``strictly``."""
    where = AnnotationSet(workers=[address], allow_other_workers=not strictly)
    env.submit(graph, list(graph), annotations=dict.fromkeys(graph, where))
    env.take()


def tasks(n: int, name: str = "x") -> dict[Any, list[Any]]:
    return {(name, i): [] for i in range(n)}


def asked(env: Env) -> list[Any]:
    """Return the keys that one round requests back from workers."""
    env.turn(BalanceWork())
    box, env.outbox = env.outbox, Outbox()
    said = [message for messages in box.workers.values() for message in messages]
    return [message.key for message in said if type(message) is m.StealRequest]


@pytest.fixture
def two(make_env: MakeEnv) -> Env:
    """Return an environment with w0 and w1 in which root-ish tasks are not queued."""
    env = make_env(worker_saturation=inf)
    env.join("w0", "w1")
    env.take()
    return env


# ------------------------------------------------------------------ selection


def test_no_stealing_while_all_are_idle_or_busy(two: Env) -> None:
    assert asked(two) == []
    crowd(two, "w0", tasks(4))
    crowd(two, "w1", tasks(4, "y"))
    placement.refresh_idle(two.state)
    assert not len(two.state.loads.idle)
    assert asked(two) == []
    assert two.state.stealing.cursor == 0  # the round was skipped


def test_last_assigned_task_is_stolen_first(two: Env) -> None:
    crowd(two, "w0", tasks(6))
    assert asked(two) == [("x", 5), ("x", 4)]


def test_tasks_in_flight_count_for_the_thief(two: Env) -> None:
    crowd(two, "w0", tasks(6))
    first = asked(two)
    assert asked(two) == []  # the thief has enough on its way
    stealing_state = two.state.stealing
    assert stealing_state.tasks == {two.worker("w0"): -2, two.worker("w1"): 2}
    assert stealing_state.occupancy[two.worker("w1")] == pytest.approx(1.0)
    for key in first:
        two.give_back(key)
    assert (
        not stealing_state.in_flight and not stealing_state.occupancy and not stealing_state.tasks
    )
    assert two.processing("w1") == first


def test_worker_with_one_task_per_thread_keeps_them(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=inf)
    env.join("w0", nthreads=2)
    env.join("w1")
    crowd(env, "w0", tasks(2))
    assert asked(env) == []


def test_short_tasks_are_not_stolen(two: Env) -> None:
    two.submit({"warm": []}, annotations={"warm": AnnotationSet(workers=["w0"])})
    two.finish("warm", seconds=0.001)
    crowd(two, "w0", tasks(20, "warm"))
    assert asked(two) == []


def test_running_tasks_are_not_requested(two: Env) -> None:
    crowd(two, "w0", tasks(4))
    two.heartbeat("w0", executing={("x", 3): 0.1, ("x", 2): 0.1})
    assert asked(two) == [("x", 1)]


def test_task_that_has_its_resources_stays(make_env: MakeEnv) -> None:
    """Only tasks that wait for resources move from a worker with free threads."""
    env = make_env()
    env.join("w0", nthreads=4, resources={"gpu": 2})
    gpu = AnnotationSet(resources={"gpu": 1})
    env.submit({"a": [], "b": []}, annotations=dict.fromkeys("ab", gpu))
    env.join("w1", nthreads=4, resources={"gpu": 2})
    assert asked(env) == []
    env.submit({"c": []}, annotations={"c": AnnotationSet(resources={"gpu": 1}, workers=["w0"])})
    assert asked(env) == ["b"]


def test_cheap_moves_go_first(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=inf)
    env.join("w0", "w1")
    crowd(env, "w0", {"big": [], "small": []}, strictly=True)
    env.finish("big", nbytes=20_000_000)
    env.finish("small", nbytes=100)
    crowd(env, "w0", {("free", i): [] for i in range(3)})
    crowd(env, "w0", {("light", i): ["small"] for i in range(3)})
    crowd(env, "w0", {("heavy", i): ["big"] for i in range(3)})
    assert [key[0] for key in asked(env)] == ["free"] * 3
    levels = [cost_level(env.state, env.task((name, 0))) for name in ("free", "light", "heavy")]
    assert [found and found[1] for found in levels] == [0, 4, 5]


def test_holder_of_the_data_is_the_thief(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=inf)
    env.join("w0", "w1", "w2", "w3")
    crowd(env, "w0", {"data": []}, strictly=True)
    env.finish("data", nbytes=10_000_000)
    env.fetched("w2", "data")
    crowd(env, "w0", {("y", i): ["data"] for i in range(8)})
    assert asked(env)
    gains = {ws.address: n for ws, n in env.state.stealing.tasks.items()}
    first = next(iter(env.state.stealing.in_flight.values()))
    assert first.thief.address == "w2"
    assert gains["w2"] >= max(gains.get("w1", 0), gains.get("w3", 0))


def test_worker_too_small_for_the_inputs_is_no_thief(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=inf)
    env.join("w0", memory_limit=10_000)
    env.join("w1", memory_limit=10)
    crowd(env, "w0", {"data": []}, strictly=True)
    env.finish("data", nbytes=1000)
    crowd(env, "w0", {("y", i): ["data"] for i in range(8)})
    assert asked(env) == []


def test_inputs_of_unknown_size_count_with_the_default(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=inf)
    env.join("w0", memory_limit=10_000)
    env.join("w1", memory_limit=2 * env.state.config.default_data_size_nbytes - 1)
    crowd(env, "w0", {"data": [], "more": []}, strictly=True)
    env.finish("data", "more", nbytes=None)
    crowd(env, "w0", {("y", i): ["data", "more"] for i in range(8)})
    assert asked(env) == []


def test_actor_that_has_not_started_moves(two: Env) -> None:
    where = AnnotationSet(workers=["w0"], allow_other_workers=True)
    graph = {("make", i): [] for i in range(4)}
    two.submit(graph, list(graph), annotations=dict.fromkeys(graph, where), commit={"actors": True})
    key = asked(two)[0]
    two.give_back(key)
    actors = [[ts.key for ts in two.worker(address).actors] for address in ("w0", "w1")]
    assert key not in actors[0] and key in actors[1]


# ------------------------------------------------------------------ replies


def test_reply_for_forgotten_key_is_logged(two: Env) -> None:
    two.turn(m.StealResponse(key="gone", state="released", stimulus_id="s"), "w0")
    assert two.lines == [(10, "Key released between request and confirm: gone")]
    (line,) = [each for each in two.outbox.instructions if isinstance(each, LogLine)]
    assert line.logger == "distributed.stealing"


# ------------------------------------------------------------------ cost of a round


def test_no_task_is_skipped_among_many(two: Env, monkeypatch: Any) -> None:
    monkeypatch.setattr(balancer, "TASKS_MAX", 10)
    crowd(two, "w0", tasks(3))
    crowd(two, "w0", tasks(47, "pinned"), strictly=True)
    found: list[Any] = []
    looks = 0
    while not found:
        found = asked(two)
        looks += 1
        assert looks < 10
    assert looks == 5  # ten of fifty at a time
    assert found[0] == ("x", 2)
    assert asked(two) == []


@pytest.mark.pure
def test_one_round_examines_a_bounded_number_of_tasks(two: Env, monkeypatch: Any) -> None:
    weighed: list[Any] = []
    monkeypatch.setattr(balancer, "TASKS_MAX", 50)
    monkeypatch.setattr(balancer, "cost_level", lambda state, ts: weighed.append(ts))
    crowd(two, "w0", tasks(500))
    asked(two)
    assert len(weighed) == 50
    asked(two)
    assert len({ts.key for ts in weighed}) == 100


def test_dependencies_count(two: Env, monkeypatch: Any) -> None:
    monkeypatch.setattr(balancer, "TASKS_MAX", 30)
    data = tasks(balancer.DEPENDENCIES_PER_TASK * 9, "data")
    crowd(two, "w0", data, strictly=True)
    two.finish(*data)
    crowd(two, "w0", {("y", i): list(data) for i in range(9)})
    assert asked(two) == [("y", 8), ("y", 7), ("y", 6)]
    assert two.state.stealing.offsets == {two.worker("w0"): 3}


def test_very_many_workers_take_turns(make_env: MakeEnv, monkeypatch: Any) -> None:
    monkeypatch.setattr(balancer, "VICTIMS_MAX", 2)
    monkeypatch.setattr(balancer, "THIEVES_MAX", 2)
    env = make_env(worker_saturation=inf)
    busy = [f"b{i}" for i in range(4)]
    env.join(*busy, *[f"i{i}" for i in range(5)])
    for address in busy:
        crowd(env, address, tasks(40, address))
    placement.refresh_idle(env.state)
    assert len(env.state.loads.saturated) == 4
    victims: dict[str, None] = {}
    for _ in range(10):
        for key in asked(env):
            victims[key[0]] = None
            env.give_back(key)
            env.finish(key)
    assert set(victims) == set(busy)


# ------------------------------------------------------------------ levels


def test_levels_equal_stocks() -> None:
    from distributed.stealing import WorkStealing

    assert list(map(str, WorkStealing.cost_multipliers)) == list(map(str, COST_MULTIPLIERS))


@pytest.mark.parametrize(
    ("seconds", "nbytes", "level"),
    [
        (1.0, 100, 3),
        (0.1, 100, 6),
        (0.1, 10**8, 9),
        (0.001, 10**9, None),
        (1e6, 0, 1),
        (0, 0, None),
    ],
)
def test_levels(two: Env, seconds: float, nbytes: int, level: int | None) -> None:
    crowd(two, "w0", {"data": []}, strictly=True)
    two.finish("data", nbytes=nbytes)
    crowd(two, "w0", {"y": ["data"]})
    two.task("y").prefix.duration_average = seconds
    two.checks = False
    found = cost_level(two.state, two.task("y"))
    assert (found and found[1]) == level


def test_fast_tasks_never_move(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=inf, default_task_durations_seconds={"shuffle-split": 1e-6})
    env.join("w0")
    crowd(env, "w0", tasks(3, "shuffle-split"))
    assert cost_level(env.state, env.task(("shuffle-split", 0))) is None


def test_by_worker_and_level(two: Env) -> None:
    crowd(two, "w0", tasks(3))
    levels = balancer.stealable(two.state, two.worker("w0"))
    assert [ts.key for ts in levels[0]] == [("x", 2), ("x", 1), ("x", 0)]
    assert len(levels) == len(COST_MULTIPLIERS) and not any(levels[1:])


# ------------------------------------------------------------------ timer


def due(env: Env, seconds: float = 1.0) -> None:
    """Fire the timer."""
    env.now += seconds
    env.feed(TimerDue(env.state.stealing.timer))


def test_stealing_is_periodic_until_turned_off(two: Env) -> None:
    stealing_state = two.state.stealing
    two.feed(ConfigureStealing(True, 0.2))
    timer = stealing_state.timer
    assert timer and stealing_state.interval_seconds == 0.2
    two.feed(ConfigureStealing(True))
    assert stealing_state.timer != timer  # the old timer is ignored
    due(two)
    assert stealing_state.timer
    crowd(two, "w0", tasks(6))
    due(two)
    assert len(stealing_state.in_flight) == 2 and stealing_state.rounds == 1
    two.feed(ConfigureStealing(False))
    assert stealing_state.timer, "requests in flight still need the timer"
    two.give_back(("x", 5))
    two.finish(("x", 4))
    due(two)
    assert not stealing_state.in_flight and not stealing_state.timer
    crowd(two, "w0", tasks(6, "more"))
    assert stealing_state.rounds == 1


def test_requests_by_recall_expire_too(two: Env) -> None:
    two.feed(ConfigureStealing(True))
    two.feed(ConfigureStealing(False))
    crowd(two, "w0", tasks(2))
    two.feed(RecallTask(("x", 1), "w1"))
    assert two.state.stealing.timer
    two.lose("w0")
    due(two)
    assert not two.state.stealing.in_flight and not two.state.stealing.timer


def test_statistics(two: Env) -> None:
    crowd(two, "w0", tasks(6))
    asked(two)
    stealing_state = two.state.stealing
    assert stealing_state.level_counts == [2] + [0] * 14
    assert stealing_state.level_costs[0] == pytest.approx(1.0)
    (_, (what, entries)), *_ = two.state.events.get("stealing")
    assert what == "request"
    when, level, key, cost, *places = entries[0]
    assert (when, level, key, cost) == (two.now, 0, ("x", 5), 0.5)
    assert places == ["w0", 3.0, "w1", 0.0]


def test_interval_must_be_positive() -> None:
    with pytest.raises(ValueError, match="work-stealing-interval"):
        SchedulerConfig(work_stealing_interval_seconds=0).check()


def test_old_timer_is_ignored(two: Env) -> None:
    balancer.balance_due(Turn(two.state, Outbox(), two.now, "", "timer"))
    assert not two.state.stealing.timer


def moves(env: Env) -> Iterable[Any]:
    turn = Turn(env.state, Outbox(), env.now, "", "look")
    balance(turn)
    return turn.outbox.workers


def test_stealing_without_workers(env: Env) -> None:
    assert not moves(env)


# ------------------------------------------------------------------ resources


def gpu_tasks(env: Env, n: int, name: str = "train") -> list[Any]:
    graph = tasks(n, name)
    env.submit(
        graph, list(graph), annotations=dict.fromkeys(graph, AnnotationSet(resources={"gpu": 1}))
    )
    env.take()
    return list(graph)


def test_tasks_that_wait_for_resources_go_where_these_are_free(make_env: MakeEnv) -> None:
    """The first worker has threads for all of them, but one GPU."""
    env = make_env()
    env.join("w0", nthreads=8, resources={"gpu": 1})
    gpu_tasks(env, 4)
    assert asked(env) == []
    env.join("plain", nthreads=8)
    assert asked(env) == []
    env.join("w1", nthreads=8, resources={"gpu": 1})
    placement.refresh_idle(env.state)
    assert len(env.state.loads.idle) == 3
    keys = asked(env)
    assert keys == [("train", 3), ("train", 2)]
    for key in keys:
        env.give_back(key, state="constrained")
    assert env.processing("w1") == keys
    assert asked(env) == []


def test_loosely_restricted_tasks_go_only_where_the_resources_are(make_env: MakeEnv) -> None:
    env = make_env()
    env.join("w0", nthreads=8, resources={"gpu": 1})
    where = AnnotationSet(workers=["w0"], allow_other_workers=True, resources={"gpu": 1})
    graph = tasks(4)
    env.submit(graph, list(graph), annotations=dict.fromkeys(graph, where))
    env.join("plain", nthreads=8)
    assert asked(env) == []
    env.join("w1", nthreads=8, resources={"gpu": 1})
    for key in asked(env):
        env.give_back(key, state="constrained")
    assert env.processing("w1") == [("x", 3), ("x", 2)]
    assert env.processing("plain") == []


def test_tasks_with_available_resources_stay(make_env: MakeEnv) -> None:
    env = make_env()
    env.join("w0", nthreads=8, resources={"gpu": 1})
    gpu_tasks(env, 2)
    crowd(env, "w0", tasks(3))
    env.join("w1", nthreads=8)
    assert asked(env) == []


def test_tasks_whose_resource_was_removed_are_recalled(make_env: MakeEnv) -> None:
    env = make_env()
    env.join("w0", nthreads=4, resources={"gpu": 2})
    gpu_tasks(env, 3)
    env.feed(m.SetResources(worker="w0", resources={"gpu": 1}))
    env.expect()
    env.feed(m.SetResources(worker="w0", resources={"gpu": 0}))
    assert len(env.take()) == 3
    env.give_back(("train", 0), state="executing")
    env.give_back(("train", 1), state="constrained")
    env.finish(("train", 2))
    assert env.states(*tasks(3, "train")) == ["processing", "no-worker", "memory"]
    env.feed(m.SetResources(worker="w0", resources={"gpu": 1}))
    assert env.states(("train", 1)) == ["processing"]


# ------------------------------------------------------------------ caps and memory


def test_task_of_a_group_with_a_cap_moves_if_none_is_queued(make_env: MakeEnv) -> None:
    env = make_env(shares_groups={"alice": {"threads": 8}})
    env.join("w0", "w1")
    crowd(env, "w0", {"a-0": [], "a-1": []})
    env.finish("a-0", "a-1")
    env.submit({"y-0": ["a-0"], "y-1": ["a-1"]})
    assert env.processing("w0") == ["y-0", "y-1"]
    env.tick(1.0)
    env.heartbeat("w0", executing={"y-0": 1.0})
    assert asked(env) == ["y-1"]
    env.give_back("y-1")
    assert env.where("y-1") == "w1"


def test_task_of_a_group_at_its_cap_does_not_move(make_env: MakeEnv) -> None:
    """Its two tasks share a thread of w0. On w1, one of them would take a third thread."""
    env = make_env(shares_groups={"alice": {"threads": 2}})
    env.join("w0")
    env.submit({("x", 0): []})
    env.finish(("x", 0), seconds=10.0)
    env.submit({("x", 1): [], ("x", 2): []})
    env.join("w1")
    env.submit({"y": []})
    env.join("w2")
    env.heartbeat("w0", executing={("x", 1): 0.1})
    assert not asked(env)
    env.status("w0", "paused")
    env.tick(1.0)
    assert asked(env) == [("x", 2)]
    env.give_back(("x", 2))
    assert env.states(("x", 2)) == ["queued"]


def test_worker_without_tasks_spills_for_the_task_of_one_that_pauses(make_env: MakeEnv) -> None:
    """Otherwise the task would wait for ever: it does not fit beside the results on w1."""
    env = make_env()
    env.join("w0", "w1", memory_limit=4000)
    crowd(env, "w1", {"x-0": [], "x-1": [], "x-2": []})
    env.finish("x-0", "x-1", "x-2", nbytes=850)
    crowd(env, "w0", {"x-3": [], "x-4": []})
    assert env.processing("w0") == ["x-3", "x-4"]
    env.heartbeat("w0", executing={"x-3": 1.0}, metrics={"memory": 3300})
    env.status("w0", "paused")
    env.finish("x-3", nbytes=1000)
    env.tick(1.0)
    assert env.state.admission.is_short
    assert asked(env) == ["x-4"]
    env.give_back("x-4")
    assert env.where("x-4") == "w1"
