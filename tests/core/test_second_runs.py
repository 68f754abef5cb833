"""Second runs of tasks that take long: when they start, and what follows from each end of a run."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.policy.scaling import may_close
from paceline.scheduler.core.policy.surplus_replicas import MemoryPlan, reduce_replicas
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    MoveReplicas,
    RecallTask,
    ReleaseAll,
    SizeCluster,
)
from paceline.scheduler.core.task_policy import TaskPolicy
from paceline.testing import Env, fake_error


def straggling(
    *others: str, speculation: bool = True, is_actor: bool = False, **policy: Any
) -> Env:
    """Return a cluster on which x-1 executes on w0 for 10 s, although others take 1 s."""
    env = Env(speculation=speculation)
    env.client("alice")
    env.join("w0")
    env.submit({"x-0": []})
    env.finish("x-0", seconds=1.0)
    annotations = AnnotationSet(policy=TaskPolicy(**policy)) if policy else AnnotationSet()
    env.submit({"x-1": []}, annotations={"x-1": annotations}, commit={"actors": is_actor})
    for address in others:
        env.join(address)
    env.now += 10.0
    env.heartbeat("w0", executing={"x-1": 10.0})
    env.take()
    env.tick()
    return env


def second(env: Env) -> int:
    """Return the run_id of the second run of x-1, which is on w1."""
    policies = env.task("x-1").policies
    assert policies is not None and policies.second is not None
    assert policies.second.address == "w1"
    return policies.second.run_id


def test_it_starts_on_a_worker_with_a_free_thread() -> None:
    env = straggling("w1")
    env.expect("w1: compute-task x-1")
    assert env.where("x-1") == "w0"
    assert second(env) != env.task("x-1").run_id
    words = explain(env.state, "x-1", env.now)["words"]
    assert "It takes long, so it has a second run on w1." in words
    env.tick(1.0)
    env.expect()


@pytest.mark.parametrize(
    ("speculation", "policy", "starts"),
    [
        (False, {}, False),
        (False, {"speculative": True}, True),
        (True, {"speculative": False}, False),
        (True, {"pure": False}, False),
    ],
)
def test_annotations(speculation: bool, policy: dict[str, Any], starts: bool) -> None:
    env = straggling("w1", speculation=speculation, **policy)
    assert bool(env.take()) is starts


def test_an_adaptive_cluster_keeps_its_worker() -> None:
    env = straggling("w1")
    env.feed(SizeCluster(1.0))
    env.now += 1000.0
    assert not may_close(env.state, env.worker("w1"))
    env.finish("x-1")
    assert may_close(env.state, env.worker("w1"))


def test_loose_restrictions_do_not_prevent_it() -> None:
    env = straggling()
    details = env.task("x-1").ensure_details()
    details.worker_restrictions, details.loose_restrictions = {"w0": None}, True
    env.join("w1")
    env.tick(1.0)
    env.expect("w1: compute-task x-1")


def test_it_starts_only_where_the_memory_suffices() -> None:
    env = straggling()
    env.task("x-1").prefix.memory.add_result(500)
    env.join("w1", memory_limit=1000, metrics={"memory": 10, "managed_bytes": 0})
    env.submit({"big": []}, annotations={"big": AnnotationSet(workers=["w1"])})
    env.finish("big", nbytes=600)
    env.take()
    env.tick(1.0)
    env.expect()
    env.release("big")
    env.take()
    env.tick(1.0)
    env.expect("w1: compute-task x-1")


@pytest.mark.parametrize(("seconds", "expected"), [(0.5, []), (500.0, ["w1: compute-task x-1"])])
def test_it_starts_only_where_the_time_suffices(seconds: float, expected: list[str]) -> None:
    env = straggling()
    env.join("w1", metrics={"ends_in": seconds})
    env.take()
    env.tick()
    env.expect(*expected)


def test_actors_get_none() -> None:
    assert not straggling("w1", is_actor=True, speculative=True).take()


def test_none_without_a_free_thread_or_with_queued_tasks() -> None:
    env = straggling()
    env.expect()
    env.join("w1")
    env.submit({"y": []}, annotations={"y": AnnotationSet(workers=["w1"])})
    env.take()
    env.tick()
    env.expect()


def test_the_second_run_is_first() -> None:
    env = straggling("w1")
    finished = env.finished("x-1", run_id=second(env))
    env.take()
    env.feed(finished, "w1")
    env.expect("w0: free-keys x-1", "alice: key-in-memory x-1")
    assert [ws.address for ws in env.task("x-1").who_has] == ["w1"]
    assert list(env.worker("w0").extra_runs) == ["x-1"]
    assert env.state.task_policies.second_runs_won == 1
    env.heartbeat("w0")
    assert not env.worker("w0").extra_runs and not env.worker("w1").extra_runs


def test_the_first_run_is_first() -> None:
    env = straggling("w1")
    late = env.finished("x-1", run_id=second(env))
    env.heartbeat("w1", executing={"x-1": 3.0})
    env.take()
    env.finish("x-1")
    env.expect("w1: free-keys x-1", "alice: key-in-memory x-1")
    assert list(env.worker("w1").extra_runs) == ["x-1"]
    assert env.state.shares.account("alice").thread_seconds == pytest.approx(1.0 + 0.1 + 3.0)
    env.feed(late, "w1")
    env.expect("w1: free-keys x-1")
    env.heartbeat("w1")
    assert not env.worker("w1").extra_runs


def erred(run_id: int) -> m.TaskErred:
    error = fake_error("boom")
    return m.TaskErred(key="x-1", run_id=run_id, exception=error, traceback=error)


def test_the_second_run_errs() -> None:
    env = straggling("w1", speculative=True)  # so that the number is not limited
    env.take()
    env.feed(erred(second(env)), "w1")
    env.expect("w1: free-keys x-1")
    assert env.where("x-1") == "w0"
    env.heartbeat("w1")
    env.tick(1.0)
    env.expect()


def test_the_first_run_errs() -> None:
    env = straggling("w1")
    run_id = second(env)
    env.take()
    env.feed(erred(env.task("x-1").run_id), "w0")
    env.expect("w0: free-keys x-1")
    assert env.where("x-1") == "w1"
    assert env.task("x-1").run_id == run_id
    env.feed(erred(run_id), "w1")
    assert env.states("x-1") == ["erred"]


def test_the_first_worker_is_lost() -> None:
    env = straggling("w1")
    run_id = second(env)
    env.lose("w0")
    assert env.where("x-1") == "w1"
    assert env.task("x-1").run_id == run_id
    assert env.task("x-1").suspicious == 0


def test_the_second_worker_is_lost() -> None:
    env = straggling("w1")
    env.lose("w1")
    assert env.where("x-1") == "w0"
    assert not env.state.task_policies.second_runs


def test_the_task_is_released() -> None:
    env = straggling("w1")
    env.take()
    env.release("x-1")
    env.expect("w0: free-keys x-1", "w1: free-keys x-1")
    assert not env.state.task_policies.second_runs


def test_a_restart() -> None:
    env = straggling("w1")
    env.take()
    env.feed(ReleaseAll())
    assert "w1: free-keys x-1" in env.take()
    assert not env.state.task_policies.second_runs


def test_the_task_moves() -> None:
    env = straggling("w1")
    env.feed(RecallTask("x-1", "w1"))
    env.take()
    env.give_back("x-1")
    assert not env.state.task_policies.second_runs


def test_a_second_run_that_secedes_or_reschedules_is_dropped() -> None:
    env = straggling("w1")
    env.feed(m.LongRunning(key="x-1", run_id=second(env), compute_duration=1.0), "w1")
    assert not env.state.task_policies.second_runs
    env = straggling("w1")
    env.feed(m.Reschedule(key="x-1"), "w1")
    assert not env.state.task_policies.second_runs
    assert env.where("x-1") == "w0"


def test_its_worker_keeps_the_inputs() -> None:
    """A stock worker closes if it receives a message to drop an input of a task that it executes."""
    env = Env()
    env.client("alice")
    env.join("w0", "w1", "w2")
    env.state.task_policies.has_speculative = True
    env.submit({"d": [], "x-0": []}, annotations={"d": AnnotationSet(workers=["w0"])})
    env.finish("d", "x-0", seconds=1.0)
    policy = AnnotationSet(policy=TaskPolicy(speculative=True))
    env.submit({"x-1": ["d"]}, annotations={"x-1": policy})
    assert env.where("x-1") == "w0"
    env.now += 10.0
    env.heartbeat("w0", executing={"x-1": 10.0})
    env.tick()
    second(env)
    env.fetched("w1", "d")
    env.fetched("w2", "d")
    plan = MemoryPlan("managed")
    reduce_replicas(env.state, plan, 10)
    assert [ws.address for ws in plan.drops] == ["w2"]
    env.take()
    env.feed(MoveReplicas(drop={"w1": ["d"]}))
    env.expect()


@pytest.mark.parametrize(
    ("seconds", "expected"), [((10.0, 12.0), ["w1: compute-task x-2"]), ((1.5, 0.5), [])]
)
def test_only_the_slowest_task_gets_one(seconds: tuple[float, float], expected: list[str]) -> None:
    env = Env(speculation=True)
    env.client("alice")
    env.join("w0", nthreads=2)
    env.submit({"x-0": []})
    env.finish("x-0", seconds=1.0)
    env.submit({"x-1": [], "x-2": []})
    env.join("w1")
    env.heartbeat("w0", executing=dict(zip(("x-1", "x-2"), seconds, strict=True)))
    env.take()
    env.tick()
    env.expect(*expected)


def test_task_of_unknown_duration_gets_none() -> None:
    env = Env(speculation=True)
    env.client("alice")
    env.join("w0")
    env.submit({"x": []})
    env.join("w1")
    env.heartbeat("w0", executing={"x": 100.0})
    env.take()
    env.tick()
    env.expect()


def test_the_number_is_limited() -> None:
    """Without an annotation, one more than 2 % of the tasks sent to workers."""
    env = straggling("w1")
    env.finish("x-1")
    env.heartbeat("w1")
    env.submit({"x-2": []}, annotations={"x-2": AnnotationSet(workers=["w0"])})
    env.now += 10.0
    env.heartbeat("w0", executing={"x-2": 10.0})
    env.take()
    env.tick()
    env.expect()
    assert env.state.task_policies.second_run_count == 1
