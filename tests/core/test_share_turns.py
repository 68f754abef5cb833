"""Share groups: ready tasks that are sent at once, although several groups have work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paceline.protocol.keys import Key
from paceline.scheduler.core.policy.fairness import AHEAD_TASKS, EARLY_TASKS
from paceline.scheduler.core.stimuli import AnnotationSet
from paceline.testing import Env, Graph

from tests.support.shares import restricted, share, tasks

MakeEnv = Callable[..., Env]
PAIR: dict[Key, list[Key]] = {("a", 0): [], ("c", 0): [("a", 0)]}


def one_thread(make_env: MakeEnv, **config: Any) -> Env:
    """Return a cluster of one thread, with a slot for one task, and the clients alice and bob."""
    env = make_env(worker_saturation=1.0, **config)
    env.client("bob")
    env.join("w0")
    return env


@pytest.mark.parametrize(
    ("seconds", "groups", "first"),
    [
        (0.001, {}, ("c", 0)),
        (1.0, {}, ("b", 0)),
        (0.001, {"bob": {"class": 1}}, ("b", 0)),
        (1.0, {"alice": {"class": 1}}, ("c", 0)),
        (0.001, {"alice": {"tasks": 5}}, ("b", 0)),
    ],
)
def test_group_goes_on_with_its_data_until_it_is_ahead(
    make_env: MakeEnv, seconds: float, groups: dict[str, Any], first: Key
) -> None:
    env = one_thread(make_env, shares_groups=groups)
    env.submit(PAIR)
    env.submit(tasks("b", 3), client="bob")
    env.finish(("a", 0), seconds=seconds)
    assert env.processing("w0") == [first]


def wide(n: int) -> Graph:
    """Return a graph of `n` tasks of the prefix "c" that use a task, and are not root-ish."""
    return {("a", 0): [], **{(f"c-{i:032x}", 0): [("a", 0)] for i in range(n)}}


def know(env: Env, prefix: str, seconds: float) -> None:
    """Let tasks of `prefix` be expected to take `seconds`."""
    env.submit({f"{prefix}-0": []})
    env.finish(f"{prefix}-0", seconds=seconds)
    env.release(f"{prefix}-0")
    share(env, "alice").usage = 0.0


@pytest.mark.parametrize(("weight", "first"), [(4.0, ("c", 0)), (3.9, ("b", 0))])
def test_lead_is_counted_beyond_the_part_for_the_weight(
    make_env: MakeEnv, weight: float, first: Key
) -> None:
    env = one_thread(make_env, shares_groups={"alice": {"weight": weight}})
    env.submit({"x": []}, client="bob")
    env.finish("x", seconds=0.1)
    env.submit(PAIR)
    env.submit(tasks("b", 3), client="bob")
    env.finish(("a", 0), seconds=0.405)
    assert env.processing("w0") == [first]


def test_lead_grows_with_the_cluster_and_the_scale_of_usage(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    env.join("w1", nthreads=2)
    know(env, "b", 0.0)
    env.tick()
    env.tick(env.state.config.shares_half_life_seconds)
    env.submit(PAIR)
    env.submit(tasks("b", 10), client="bob")
    env.finish(("a", 0), seconds=0.029)
    assert env.state.shares.scale == pytest.approx(2.0)
    assert share(env, "alice").usage > 0.055
    assert env.states(("c", 0)) == ["processing"]


@pytest.mark.parametrize(
    "options",
    [
        {"commit": {"actors": True}},
        {"annotations": {("c", 0): AnnotationSet(priority=1)}},
        {"annotations": {("c", 0): restricted("w0")}},
    ],
)
def test_special_tasks_are_held(make_env: MakeEnv, options: dict[str, Any]) -> None:
    env = one_thread(make_env)
    env.submit(PAIR, **options)
    env.submit(tasks("b", 3), client="bob")
    env.finish(("a", 0), seconds=0.001)
    assert env.processing("w0") == [("b", 0)]


def test_tasks_are_held_while_memory_is_short(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    env.submit(PAIR)
    env.submit(tasks("b", 3), client="bob")
    env.state.admission.is_short = True
    env.finish(("a", 0), seconds=0.001)
    assert env.processing("w0") == [("b", 0)]


def test_tasks_are_held_while_a_worker_ends(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    for prefix in ("b", "c"):
        know(env, prefix, 0.0001)
    env.join("w1", metrics={"ends_in": 50.0})
    env.submit(PAIR)
    env.submit(tasks("b", 9), client="bob")
    env.finish(("a", 0), seconds=0.001)
    assert env.states(("c", 0)) == ["queued"]


def test_rootish_tasks_are_sent_to_free_slots_only(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    know(env, "c", 0.0001)
    env.submit({("a", 0): [], **{("c", i): [("a", 0)] for i in range(9)}})
    env.submit(tasks("b", 3), client="bob")
    env.finish(("a", 0), seconds=0.0001)
    assert len(env.processing("w0")) == 1


def test_task_of_a_departed_client_counts_for_another_one(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    env.client("carol")
    env.submit({"z": []}, client="carol")
    env.finish("z")
    env.submit(PAIR)
    env.desire(("c", 0), client="carol")
    env.submit(tasks("b", 3), client="bob")
    env.leave("alice")
    env.finish(("a", 0), seconds=0.001)
    assert env.task(("c", 0)).account.client == "carol"


def test_task_is_held_behind_restricted_tasks_of_its_group(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    env.submit(PAIR)
    env.submit(tasks("b", 3), client="bob")
    env.submit({"r": []}, annotations={"r": restricted("w0")})
    env.finish(("a", 0), seconds=0.001)
    assert env.processing("w0") == [("b", 0)]


def test_task_is_held_while_root_tasks_of_its_group_follow_siblings(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    env.submit(PAIR)
    env.submit(tasks("root", 3))
    env.state.queued.claim(env.task(("root", 0)), env.worker("w0"))
    env.submit(tasks("b", 3), client="bob")
    env.finish(("a", 0), seconds=0.001)
    assert env.processing("w0") == [("b", 0)]


@pytest.mark.parametrize("seconds", [0.0, 0.0001])
def test_other_groups_wait_for_a_limited_number_of_tasks(make_env: MakeEnv, seconds: float) -> None:
    """Usage does not grow with tasks that take no time, and little on a part of the cluster."""
    env = one_thread(make_env)
    env.join("w1", nthreads=100)
    for prefix in ("a", "c"):
        know(env, prefix, seconds)
    chains: Graph = {("a", i): [] for i in range(2)}
    for i in range(2):
        for j in range(EARLY_TASKS):
            last = (f"c-{i:016x}{j - 1:016x}", 0) if j else ("a", i)
            chains[f"c-{i:016x}{j:016x}", 0] = [last]
    env.submit(chains, annotations={("a", i): restricted("w0") for i in range(2)})
    later = {key: restricted("w0") for key in ("b", "b2")}
    env.submit({"b": [], "b2": []}, client="bob", annotations=later)
    env.give_back(("a", 1), state="executing")
    n = 0
    while env.states("b") == ["queued"]:
        env.finish(env.processing("w0")[0], seconds=seconds)
        n += 1
    assert EARLY_TASKS < n <= EARLY_TASKS + 4
    assert env.states("b2") == ["queued"] and not env.state.queued.early


def test_worker_gets_a_limited_number_of_tasks_at_once_even_if_none_waits(
    make_env: MakeEnv,
) -> None:
    env = one_thread(make_env)
    env.join("w1")
    for prefix in ("a", "c"):
        know(env, prefix, 0.0)
    graph = wide(AHEAD_TASKS + 2)
    env.submit(graph, annotations={("a", 0): restricted("w0")})
    env.submit({"b": []}, client="bob")
    assert env.processing("w1") == ["b"] and not env.state.queued
    env.finish(("a", 0), seconds=0.0)
    assert len(env.processing("w0")) == AHEAD_TASKS


def test_long_task_is_not_sent_behind_short_ones(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    know(env, "c", 0.0001)
    know(env, "long", 10.0)
    env.submit({**wide(1), "long-1": [("a", 0)]})
    env.submit(tasks("b", 3), client="bob")
    env.finish(("a", 0), seconds=0.0001)
    assert env.states("long-1") == ["queued"]


def test_tasks_behind_one_that_takes_unexpectedly_long_are_recalled(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    know(env, "c", 0.0001)
    env.submit(wide(5))
    env.submit(tasks("b", 3), client="bob")
    env.finish(("a", 0), seconds=0.0001)
    first, *behind = env.processing("w0")
    env.heartbeat("w0", executing={first: 0.05})
    assert not env.state.stealing.in_flight
    env.heartbeat("w0", executing={first: 1.0})
    assert {ts.key for ts in env.state.stealing.in_flight} == set(behind)
    env.give_back(*reversed(behind))
    assert env.processing("w0") == [first]
    env.finish(first, seconds=60.0)
    assert env.processing("w0") == [("b", 0)]


def test_recalled_tasks_are_not_sent_back_out_of_order(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    know(env, "c", 0.0001)
    env.submit(wide(9))
    env.finish(("a", 0), seconds=0.0001)
    before = env.processing("w0")
    env.submit(tasks("b", 3), client="bob")
    recalled = [ts.key for ts in env.state.stealing.in_flight]
    assert recalled == before[:0:-1]
    env.give_back(*recalled)
    assert env.processing("w0") == before[:2]


def test_task_of_a_higher_class_moves_at_once(make_env: MakeEnv) -> None:
    env = one_thread(make_env, shares_groups={"bob": {"class": 1}})
    know(env, "c", 10.0)
    env.submit(wide(1), annotations={("a", 0): restricted("w0")})
    first, second = ((f"c-{i:032x}", 0) for i in (1, 2))
    graph: Graph = {("d", 0): [], first: [("d", 0)], second: [("d", 0)]}
    env.submit(graph, client="bob", annotations={("d", 0): restricted("w0")})
    env.finish(("a", 0), ("d", 0))
    held = (f"c-{0:032x}", 0)
    assert env.states(held, first, second) == ["queued", "processing", "queued"]
    assert all(queue.has_only_near() for queue in env.state.queued.waiting)
    env.state.queued.may_move = False
    env.join("w1")
    assert env.where(second) == "w1"


@pytest.mark.parametrize("n_used", [1, 2])
def test_root_tasks_that_wait_for_a_thread_alone_take_turns(make_env: MakeEnv, n_used: int) -> None:
    env = make_env()
    env.client("bob")
    env.join("w0")
    for prefix in ("a", "b"):
        know(env, prefix, 1.0)
    roots: Graph = dict(tasks("a", 40))
    used = {("c", i): [("a", n_used * i + j) for j in range(n_used)] for i in range(40 // n_used)}
    env.submit(roots | used)
    env.submit(tasks("b", 40), client="bob")
    ended: list[Any] = []
    for _ in range(40):
        ended += env.processing("w0")[:1]
        env.finish(ended[-1], seconds=1.0)
    assert 18 <= sum(key[0] == "b" for key in ended) <= 22


def test_task_does_not_overtake_earlier_tasks_of_its_group(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    env.submit(PAIR)
    env.submit(tasks("b", 3), client="bob")
    env.submit(tasks("earlier", 1))
    assert env.state.tasks["earlier", 0].priority < env.state.tasks["c", 0].priority
    env.finish(("a", 0), seconds=0.001)
    assert env.states(("c", 0), ("earlier", 0)) == ["queued", "queued"]


@pytest.mark.parametrize(("seconds", "n_sent"), [(0.0001, AHEAD_TASKS), (0.1, 1)])
def test_worker_gets_several_short_tasks_at_once(
    make_env: MakeEnv, seconds: float, n_sent: int
) -> None:
    env = one_thread(make_env)
    know(env, "c", seconds)
    graph = wide(AHEAD_TASKS + 2)
    env.submit(graph)
    env.submit(tasks("b", 3), client="bob")
    env.finish(("a", 0), seconds=0.0001)
    states = env.states(*list(graph)[1:])
    assert states == ["processing"] * n_sent + ["queued"] * (len(states) - n_sent)
