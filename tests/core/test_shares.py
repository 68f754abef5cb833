"""Share groups: which tasks are held, and in which order they are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.state.sharing.accounts import ShareGroup, Shares, group_name
from paceline.scheduler.core.state.sharing.fair_queue import FairQueue, ShareQueue
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    BalanceWork,
    Continue,
    DataPlaced,
    ReleaseAll,
    RestrictionsSet,
    SetShare,
    WriteTask,
)
from paceline.scheduler.core.turn import Outbox
from paceline.testing import Env

from tests.support.shares import contended, counts, give_up, restricted, share, tasks

MakeEnv = Callable[..., Env]
ID = "123e4567-e89b-12d3-a456-426614174000"


def sent(env: Env) -> list[Key]:
    """Return the keys sent to workers since the last call."""
    box, env.outbox = env.outbox, Outbox()
    found = [each for messages in box.workers.values() for each in messages]
    return [each.key for each in found if type(each) is m.ComputeTask]


# ------------------------------------------------------------------ groups


def test_group_of_a_client_is_the_name_that_its_user_gave_it() -> None:
    assert group_name(f"Client-{ID}") == f"Client-{ID}"
    assert group_name(f"Client-alice-{ID}") == "alice"
    assert group_name(f"Client-team-a-{ID}") == "team-a"
    assert group_name("alice") == "alice"


def test_patterns_map_clients_to_groups(make_env: MakeEnv) -> None:
    env = make_env(shares_clients={"batch-*": "batch", "Client-*": "guests"})
    assert share(env, f"Client-batch-7-{ID}").name == "batch"
    assert share(env, f"Client-{ID}").name == "guests"
    assert share(env, f"Client-alice-{ID}").name == "alice"
    assert share(env, "fire-and-forget").name == "fire-and-forget"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"weight": 0}, "weight of share group 'a' must be from 1e-06 to 1e[+]06; got 0"),
        ({"weight": 1e-320}, "weight of share group 'a' must be from .*; got 1e-320"),
        ({"threads": float("inf")}, "threads of share group 'a' must be >= 0 and finite"),
        ({"weight": "2"}, "weight of share group 'a' must be a number; got '2'"),
        (
            {"tasks": -2},
            "tasks of share group 'a' must be >= 0 and finite, or .none. for no cap; got -2",
        ),
        ({"threads": 1.5}, "threads of share group 'a' must be a whole number; got 1.5"),
        ({"class": 1.5}, "class of share group 'a' must be an integer .*; got 1.5"),
        ({"class": float("inf")}, "class of share group 'a' must be an integer .*; got inf"),
        ({"cores": 1}, "unknown setting 'cores'"),
        (5, "must be a mapping of settings; got 5"),
    ],
)
def test_invalid_settings_are_refused(settings: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SchedulerConfig(shares_groups={"a": settings}).check()


def test_annotations_name_a_group_if_configured(make_env: MakeEnv) -> None:
    annotations = {"x": AnnotationSet(group="urgent")}
    env = make_env(shares_annotations=True)
    env.submit({"x": [], "y": []}, annotations=annotations)
    assert env.task("x").account.share.name == "urgent"
    assert env.task("y").account.share.name == "alice"
    env = make_env()
    env.submit({"x": [], "y": []}, annotations=annotations)
    assert env.task("x").account.share.name == "alice"
    assert any("paceline.shares.annotations" in text for _, text in env.lines)


def test_tasks_of_a_task_count_for_its_client(four: Env) -> None:
    four.submit({"outer": []}, client="bob")
    name = f"Client-worker-{ID}"
    four.client(name)
    four.submit({"inner": []}, client=name, commit={"submitting_task": "outer"})
    assert four.task("inner").account is four.task("outer").account


def test_key_that_was_desired_first_counts_for_the_client_of_its_graph(four: Env) -> None:
    four.desire("x", client="bob")
    four.submit({"x": []})
    assert four.task("x").account.client == "alice"


# ------------------------------------------------------------------ order


def test_nothing_is_held_while_one_group_has_work(four: Env) -> None:
    four.submit(tasks("a", 8))
    assert sum(counts(four).values()) == 8


def test_slots_are_divided_equally(four: Env) -> None:
    four.submit(tasks("a", 40), client="alice")
    four.submit(tasks("b", 40), client="bob")
    four.finish(*[ts.key for ws in four.state.workers.values() for ts in ws.processing])
    for _ in range(6):
        four.finish(*[ts.key for ws in four.state.workers.values() for ts in ws.processing])
        assert counts(four)["b"] >= 2
    finished = Counter(ts.group.name for ts in four.state.tasks.values() if ts.state == "memory")
    assert abs(finished["a"] - finished["b"]) <= 4


def test_slots_are_divided_by_weight(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0, shares_groups={"b": {"weight": 2}, "c": {"weight": 4}})
    env.client("a", "b", "c")
    env.join(*(f"w{i}" for i in range(7)))
    for name in "abc":
        env.submit(tasks(name, 300), client=name)
    for _ in range(60):
        env.finish(*[ts.key for ws in env.state.workers.values() for ts in ws.processing])
    done = Counter(ts.group.name for ts in env.state.tasks.values() if ts.state == "memory")
    assert [round(done[name] / 60) for name in "abc"] == [1, 2, 4]


def test_light_user_goes_before_heavy_one_until_usage_has_decayed(four: Env) -> None:
    four.tick()
    four.submit(tasks("a", 40), client="alice")
    four.finish(*tasks("a", 4), seconds=100.0)
    four.submit(tasks("b", 40), client="bob")
    four.finish(("a", 4), ("a", 5), seconds=1.0)
    assert counts(four) == {"a": 2, "b": 2}
    before = four.state.shares.recent_usage(share(four, "alice"))
    four.tick(60.0)
    assert four.state.shares.recent_usage(share(four, "alice")) == pytest.approx(before / 2)
    four.tick(1e5)
    assert four.state.shares.recent_usage(share(four, "alice")) < 1e-3
    assert four.state.shares.scale == 1.0  # divided before it overflows


def test_higher_class_goes_first(make_env: MakeEnv) -> None:
    groups = {"bob": {"class": 1}, "carol": {"class": -1}}
    env = make_env(worker_saturation=1.0, shares_groups=groups)
    env.client("bob")
    env.client("carol")
    env.join("w0")
    env.submit(tasks("a", 3))
    env.submit(tasks("c", 2), client="carol")
    env.submit(tasks("b", 3), client="bob")
    sent(env)
    env.work()
    assert "".join(str(key[0]) for key in sent(env)) == "bbbaacc"


@given(
    groups=st.lists(
        st.tuples(st.integers(-1, 1), st.integers(0, 5), st.sampled_from([0.5, 1.0, 2.0])),
        max_size=8,
    ),
    usages=st.lists(st.integers(0, 5), min_size=8, max_size=8),
)
def test_turns_go_by_class_and_usage_for_the_weight(
    groups: list[tuple[int, int, float]], usages: list[int]
) -> None:
    queue = FairQueue(Shares(SchedulerConfig()))
    for number, (priority_class, usage, weight) in enumerate(groups):
        group = ShareGroup(str(number), number, weight, priority_class, usage=float(usage))
        queue.waiting.append(ShareQueue(group))
    before = list(queue.waiting)
    for _ in range(2):
        expected = sorted(before, key=lambda each: turn(each.share))
        before = list(queue.in_turn())
        assert before == expected
        for each, later in zip(before, usages, strict=False):
            each.share.usage = float(later)


def turn(group: ShareGroup) -> tuple[float, float]:
    """Return the order of the turn of `group`."""
    return -group.priority_class, group.usage / group.weight


def test_tasks_that_have_not_begun_are_recalled(four: Env) -> None:
    graph = tasks("a", 8)
    four.submit(graph)
    for address in four.state.workers:
        key = four.processing(address)[0]
        four.heartbeat(address, executing={key: 1.0})
    sent(four)
    four.submit({"b": []}, client="bob")
    assert four.states("b") == ["queued"]
    asked = four.state.stealing.in_flight
    assert sorted(ts.key for ts in asked) == [("a", i) for i in range(4, 8)]
    four.give_back(*[ts.key for ts in asked])
    assert four.states(("a", 4)) == ["queued"]
    four.finish(("a", 0))
    assert four.states("b") == ["processing"]
    four.work()
    assert {ts.state for ts in four.state.tasks.values()} == {"memory"}


def test_tasks_that_were_recalled_before_count_as_gone(four: Env) -> None:
    four.submit(tasks("a", 8))
    four.submit({"b": []}, client="bob")
    asked = set(four.state.stealing.in_flight)
    four.release("b", client="bob")
    four.submit({"c": []})
    assert four.states("c") == ["processing"]
    four.submit({"d": []}, client="bob")
    assert set(four.state.stealing.in_flight) - asked == {four.task("c")}


def test_many_tasks_are_recalled_in_several_turns(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0, turn_tasks_max=3)
    env.client("bob")
    env.join("w0", "w1", "w2", "w3")
    env.submit(tasks("a", 8))
    asked = env.state.stealing.in_flight
    for part in env.rows({"b": []}, client="bob"):
        env.turn(part, "bob")
    n_before = len(asked)
    while env.wants_continue:
        env.turn(Continue())
        assert len(asked) - n_before <= 3
        n_before = len(asked)
    assert n_before == 4
    env.release("b", client="bob")
    env.submit(tasks("c", 8))
    assert len(asked) == 4, "alice is alone again"


def test_tasks_beyond_the_threads_that_given_up_runs_leave_are_recalled(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0)
    env.client("bob")
    env.join("w0", nthreads=2)
    stuck = give_up(env, "w0", 1)
    env.submit(tasks("a", 4))
    env.heartbeat("w0", executing={**dict.fromkeys(stuck, 7.0), ("a", 0): 1.0})
    env.submit({"b": []}, client="bob")
    assert sorted(ts.key for ts in env.state.stealing.in_flight) == [("a", i) for i in (1, 2, 3)]


def test_time_beyond_what_was_expected_is_charged_while_a_task_runs(four: Env) -> None:
    """A task that seceded is not charged, because it occupies no thread of the pool."""
    alice = share(four, "alice")
    four.submit({"x": []})
    here, before = four.where("x"), alice.usage
    four.heartbeat(here, executing={"x": 100.0})
    charged = alice.usage
    assert charged > before + 90 * four.state.shares.scale
    message = m.LongRunning(key="x", run_id=four.task("x").run_id, compute_duration=100.0)
    four.feed(message, here)
    seceded = alice.usage
    four.heartbeat(here, executing={"x": 200.0})
    assert alice.usage == seceded


def test_held_tasks_wait_for_their_resources(four: Env) -> None:
    """A worker is sent one task more than its resources allow, as with threads."""
    contended(four)
    four.join("w4", nthreads=8, resources={"gpu": 1})
    gpu = restricted("w4", resources={"gpu": 1})
    four.submit(tasks("a", 4), annotations=dict.fromkeys(tasks("a", 4), gpu))
    assert counts(four)["a"] == 2
    four.finish(("a", 0))
    assert four.states(("a", 2), ("a", 3)) == ["processing", "queued"]


def test_groups_take_turns_while_memory_is_short(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0)
    env.client("bob")
    env.join("w0", memory_limit=10**9)
    env.submit({"data": []})
    env.finish("data", nbytes=5 * 10**8, seconds=100.0)
    assert env.state.admission.is_short
    env.submit({"busy": []})
    env.submit(tasks("a", 2))
    env.submit(tasks("b", 2), client="bob")
    env.finish("busy")
    assert counts(env) == {"b": 1}


def test_group_that_is_alone_again_is_not_held(four: Env) -> None:
    four.submit(tasks("b", 4), client="bob")
    four.submit(tasks("a", 6))
    assert share(four, "alice").n_held == 6
    four.finish(*tasks("b", 4))
    assert share(four, "alice").n_held == 2
    four.finish(("a", 0), ("a", 1))
    four.submit(tasks("c", 8))
    assert sum(counts(four).values()) == 4 + 8


def test_switched_off(make_env: MakeEnv) -> None:
    groups = {"bob": {"tasks": 0}, "(all)": {"threads": 0}}
    env = make_env(shares_enabled=False, shares_groups=groups)
    env.client("bob")
    env.join("w0")
    env.submit(tasks("a", 2))
    env.feed(SetShare("(all)", {"tasks": 0}))
    assert "cannot change share group '(all)': share groups are disabled" in env.lines[-1][1]
    env.submit(tasks("b", 2), client="bob")
    assert counts(env) == {"a": 2, "b": 2}


# ------------------------------------------------------------------ restrictions


def test_restricted_tasks_do_not_block_others(four: Env) -> None:
    contended(four)
    four.submit({"x": [], "y": []}, annotations={"x": restricted("w0")})
    four.finish(four.processing("w1")[0])
    assert four.states("x", "y") == ["queued", "processing"]
    four.finish(four.processing("w0")[0])
    assert four.where("x") == "w0"


def test_held_task_becomes_unrunnable_without_its_worker(four: Env) -> None:
    contended(four)
    four.submit({"x": [], "y": []}, annotations={"x": restricted("w0"), "y": restricted("w9")})
    assert four.states("x", "y") == ["queued", "no-worker"]
    four.lose("w0", expected=True)
    four.finish(four.processing("w1")[0])
    assert four.states("x") == ["no-worker"]
    four.submit(tasks("c", 9), client="bob")
    four.join("w0", "w9")
    four.work()
    assert four.states("x", "y") == ["memory", "memory"]


def test_held_task_waits_for_resources(four: Env) -> None:
    four.join("gpu", resources={"GPU": 1}, nthreads=8)
    contended(four)
    four.submit(tasks("c", 8), client="bob")
    gpu = AnnotationSet(resources={"GPU": 1})
    graph = tasks("x", 5)
    four.submit(graph, annotations=dict.fromkeys(graph, gpu))
    n = len([key for key in four.processing("gpu") if key in graph])
    four.work()
    assert n <= 2
    assert set(four.states(*graph)) == {"memory"}


def test_actor_is_held_like_a_task(four: Env) -> None:
    contended(four)
    four.submit({"x": []}, commit={"actors": True})
    assert four.states("x") == ["queued"]
    four.finish(four.processing("w2")[0])
    assert four.where("x") == "w2"


def test_restrictions_change_while_a_task_is_held(four: Env) -> None:
    contended(four)
    four.submit({"x": [], "y": []})
    four.feed(RestrictionsSet({"x": ["w2"]}))
    four.feed(WriteTask("y", "worker_restrictions", ["w3"]))
    four.finish(four.processing("w3")[0])
    assert four.where("y") == "w3"
    four.finish(four.processing("w2")[0])
    assert four.where("x") == "w2"


# ------------------------------------------------------------------ user priorities


def test_higher_user_priority_is_not_overtaken_in_the_queue(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0)
    env.join("w0")
    graph = tasks("a", 8)
    env.submit(graph, commit={"user_priority": 5})
    assert env.states(("a", 7)) == ["queued"]
    env.submit({"low": []})
    assert env.states("low") == ["queued"]
    sent(env)
    env.work()
    assert sent(env)[-1] == "low"


def test_higher_user_priority_is_not_overtaken_by_tasks_without_a_worker(env: Env) -> None:
    env.submit(tasks("a", 8), commit={"user_priority": 5})
    env.submit({"low": []}, annotations={"low": AnnotationSet(resources={"GPU": 1})})
    assert env.states(("a", 7), "low") == ["queued", "no-worker"]
    env.join("w0", resources={"GPU": 1})
    assert env.states("low") == ["queued"]
    sent(env)
    env.work()
    assert sent(env)[-1] == "low"


def test_task_of_the_same_user_priority_stays_near_its_data(four: Env) -> None:
    four.submit({"urgent": []}, commit={"user_priority": 5})
    four.work()
    four.feed(DataPlaced({"d": ["w0"]}, {"d": 8}))
    contended(four)
    four.submit({"near": ["d"]})
    four.now += 100.0
    four.submit({"free": []})
    assert four.task("near").priority < four.task("free").priority
    four.finish(four.processing("w3")[0])
    assert four.states("near", "free") == ["queued", "processing"]


def test_higher_user_priority_is_not_overtaken_by_stealing(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0)
    env.join("w0")
    env.feed(DataPlaced({"d": ["w0"]}, {"d": 10**12}))
    high, low = {"busy": [], "high": ["d"]}, tasks("low", 2)
    env.submit(high, commit={"user_priority": 5})
    env.submit(low)
    env.join("w1")
    env.heartbeat("w0", executing={"busy": 1.0})
    env.feed(BalanceWork())
    assert not env.state.stealing.in_flight  # "high" does not pay to move, so "low" stays too
    env.finish("high")
    env.feed(BalanceWork())
    assert env.state.stealing.in_flight


# ------------------------------------------------------------------ ends


def test_held_tasks_leave_the_queue(four: Env) -> None:
    contended(four)
    four.submit({"x": [], "y": ["x"], "z": []}, want=["y", "z"])
    four.release("z")
    assert four.states("z") == ["forgotten"]
    four.cancel("y")
    assert four.states("x", "y") == ["forgotten", "forgotten"]
    assert not share(four, "alice").n_queued


def test_client_leaves_while_its_tasks_are_held(four: Env) -> None:
    contended(four)
    four.submit(tasks("a", 4))
    four.leave("alice")
    assert not len(four.state.queued)
    assert list(four.state.shares.active) == [share(four, "bob")]


def test_restart_forgets_held_tasks(four: Env) -> None:
    contended(four)
    four.submit(tasks("a", 4))
    four.feed(ReleaseAll())
    assert not len(four.state.queued) and not four.state.shares.active
    four.submit(tasks("a", 8))
    assert sum(counts(four).values()) == 8
