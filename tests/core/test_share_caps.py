"""Share groups: caps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.stimuli import ReleaseAll, SetShare
from paceline.testing import Env, Graph

from tests.support.shares import counts, give_up, restricted, tasks

MakeEnv = Callable[..., Env]


@pytest.mark.parametrize(
    ("cap", "n", "expected"), [("tasks", 3, 3), ("threads", 1, 1), ("tasks", 0, 0)]
)
def test_group_at_its_cap_waits(make_env: MakeEnv, cap: str, n: int, expected: int) -> None:
    env = make_env(shares_groups={"alice": {cap: n}})
    env.client("bob")
    env.join("w0", "w1", nthreads=2)
    env.submit(tasks("a", 10))
    assert counts(env)["a"] == expected
    env.submit(tasks("b", 10), client="bob")
    assert counts(env)["a"] == expected  # others get what the group may not use
    assert sum(counts(env).values()) == 6
    if expected:
        env.work()
        assert {ts.state for ts in env.state.tasks.values()} == {"memory"}


def test_cap_holds_while_memory_is_short(make_env: MakeEnv) -> None:
    env = make_env(shares_groups={"alice": {"tasks": 1}})
    env.client("bob")
    env.join("w0", "w1", nthreads=2, memory_limit=10**9)
    env.submit({"data": []}, client="bob")
    env.finish("data", nbytes=5 * 10**8)
    assert env.state.admission.is_short
    env.submit(tasks("a", 4))
    env.submit(tasks("b", 4), client="bob")
    assert counts(env) == {"a": 1, "b": 3}
    env.work()
    assert {ts.state for ts in env.state.tasks.values()} == {"memory"}


def test_cap_changes_at_run_time(four: Env) -> None:
    four.submit(tasks("a", 8))
    four.feed(SetShare("alice", {"tasks": 9}))
    assert not four.state.stealing.in_flight
    four.feed(SetShare("alice", {"tasks": 2}))
    four.give_back(*[ts.key for ts in four.state.stealing.in_flight])
    assert counts(four)["a"] == 2
    four.feed(SetShare("alice", {"tasks": -1, "threads": 3}))
    assert counts(four)["a"] == 3
    four.feed(SetShare("alice", {"threads": -1}))
    assert counts(four)["a"] == 4
    four.feed(SetShare("alice", {"weight": -1}))
    assert "must be from 1e-06 to 1e+06" in four.lines[-1][1]


def test_group_at_its_cap_of_memory_runs_what_can_free_memory(make_env: MakeEnv) -> None:
    env = make_env(shares_groups={"alice": {"memory": 100}})
    env.join("w0", "w1")
    env.submit({"x": [], "y": [], "sum": ["x", "y"], "z": []}, want=["sum", "z"])
    env.finish("z", nbytes=1000)
    env.work()
    assert env.states("sum") == ["memory"]
    env.submit({"more": []})
    assert env.states("more") == ["queued"]
    env.release("z", "sum")
    assert env.states("more") == ["processing"]


def test_tasks_that_can_free_memory_overtake_others_at_a_cap_of_memory(make_env: MakeEnv) -> None:
    env = make_env(shares_groups={"alice": {"memory": 100}})
    env.join("w0")
    env.submit({"big": []})
    env.finish("big", nbytes=1000)
    env.submit(tasks("result", 40))
    env.submit({"x": [], "y": [], "sum": ["x", "y"]})
    for _ in range(3):
        env.tick()
        env.work()
    assert env.states("sum", ("result", 0)) == ["memory", "queued"]


@pytest.mark.parametrize("by", ["restriction", "data"])
def test_tasks_that_overtake_others_go_to_their_worker(make_env: MakeEnv, by: str) -> None:
    env = make_env(shares_groups={"alice": {"memory": 100}})
    env.join("w0", "w1")
    env.submit({"big": []}, annotations={"big": restricted("w1")})
    env.finish("big", nbytes=10**9)
    used = ["big"] if by == "data" else []
    graph: Graph = {**dict.fromkeys(tasks("result", 4), used), "x": used, "sum": ["x"]}
    annotations = dict.fromkeys(graph, restricted("w1")) if by == "restriction" else {}
    env.submit(graph, annotations=annotations)
    for key in ("x", "sum"):
        env.tick()
        assert env.where(key) == "w1"
        env.finish(key)


def test_seceded_task_does_not_count_for_a_cap(make_env: MakeEnv) -> None:
    env = make_env(shares_groups={"alice": {"tasks": 1}})
    env.join("w0")
    env.submit({"outer": []})
    env.submit({"inner": []}, commit={"submitting_task": "outer"})
    assert env.states("inner") == ["queued"]
    env.feed(m.LongRunning(key="outer", run_id=env.task("outer").run_id), "w0")
    assert env.states("inner") == ["processing"]


@pytest.mark.parametrize("cap", ["tasks", "threads"])
@pytest.mark.parametrize("end", ["heartbeat", "loss"])
def test_runs_that_were_given_up_count_for_a_cap(make_env: MakeEnv, cap: str, end: str) -> None:
    """Charge them, too, until they end."""
    env = make_env(shares_groups={"alice": {cap: 1}})
    env.join("w0", "w1", nthreads=2)
    give_up(env, "w0", 1)
    env.submit({"x": []})
    account = env.state.shares.account("alice")
    env.tick(10.0)
    env.heartbeat("w0", executing={("stuck", 0): 16.0})
    assert (env.states("x"), account.thread_seconds) == (["queued"], 16.0)
    env.feed(ReleaseAll())
    env.submit({"x": []})
    assert env.states("x") == ["queued"]
    summary = str(explain(env.state, "x", env.now)["summary"])
    assert f"cap of 1 {cap[:-1]}, with 0 tasks and 1 given-up or second run on workers" in summary
    if end == "heartbeat":
        env.heartbeat("w0")
    else:
        env.lose("w0")
    assert env.states("x") == ["processing"]


def test_a_cap_that_is_lowered_below_the_runs_that_were_given_up(make_env: MakeEnv) -> None:
    env = make_env()
    env.join("w0", nthreads=4)
    stuck = give_up(env, "w0", 2)
    env.feed(SetShare("alice", {"threads": 1, "tasks": 2}))
    env.submit({"x": []})
    assert env.states("x") == ["queued"]
    env.heartbeat("w0", executing=dict.fromkeys(list(stuck)[:1], 7.0))
    assert env.states("x") == ["queued"]
    env.heartbeat("w0")
    assert env.states("x") == ["processing"]


@pytest.mark.parametrize("rows", [10_000, 2])
def test_tasks_of_a_client_that_left_do_not_wait_for_its_cap(make_env: MakeEnv, rows: int) -> None:
    """Another client needs them, directly or for a task of its own."""
    env = make_env(shares_groups={"alice": {"tasks": 0}}, turn_tasks_max=rows)
    env.client("bob")
    env.join("w0")
    env.submit({"x": [], "y": [], "sum": ["x", "y"], "z": []}, want=["sum", "z"])
    env.submit({"x": [], "y": [], "sum": ["x", "y"]}, want=["sum"], client="bob")
    env.desire("z", client="published-z")
    assert env.states("x", "y", "z") == ["queued"] * 3
    env.leave("alice")
    env.run_deferred()
    assert {env.task(key).account.client for key in ("x", "y")} == {"bob"}
    env.work()
    assert env.states("sum", "z") == ["memory", "queued"]


def left_by_alice(make_env: MakeEnv) -> Env:
    """Return a cluster of four threads on which alice leaves tasks to bob, who may run one."""
    env = make_env(shares_groups={"bob": {"tasks": 1}})
    env.client("bob")
    env.join("w0", nthreads=4)
    return env


def test_caps_of_the_remaining_client_hold_for_tasks_that_become_ready(make_env: MakeEnv) -> None:
    env = left_by_alice(make_env)
    graph: dict[Any, list[Any]] = {"a": [], "b": ["a"], "c": ["a"], "d": ["a"]}
    for client in ("alice", "bob"):
        env.submit(graph, ["b", "c", "d"], client=client)
    env.leave("alice")
    env.tick(env.state.config.client_grace_seconds + 1.0)
    env.finish("a")
    assert sorted(env.states("b", "c", "d")) == ["processing", "queued", "queued"]


def test_caps_of_the_remaining_client_hold_for_queued_tasks(make_env: MakeEnv) -> None:
    env = left_by_alice(make_env)
    roots = {("r", i): [] for i in range(30)}
    for client in ("alice", "bob"):
        env.submit(roots, client=client)
    env.leave("alice")
    env.tick(env.state.config.client_grace_seconds + 1.0)
    n_sent = len(env.processing("w0"))
    env.finish(*env.processing("w0"))
    assert (n_sent, len(env.processing("w0"))) == (5, 1)
