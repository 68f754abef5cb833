"""Runs of released tasks go on in their threads, which counts for workers, caps and scaling."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.inspection.queries import identity
from paceline.scheduler.core.policy import scaling
from paceline.scheduler.core.stimuli import AnnotationSet, SizeCluster
from paceline.scheduler.core.task_policy import TaskPolicy
from paceline.scheduler.core.ticks.extra_runs import LONG_SECONDS
from paceline.testing import Env

MakeEnv = Callable[..., Env]


def executing(env: Env, nthreads: int = 1) -> Env:
    """Let w0 execute the task x of alice for a minute."""
    env.join("w0", nthreads=nthreads)
    env.submit({"x": []})
    env.tick(60.0)
    env.heartbeat("w0", executing={"x": 60.0})
    env.take()
    return env


def go_on(env: Env, seconds: float = 61.0) -> None:
    """Let the next heartbeat, a second later, report that x has been executing for `seconds`."""
    env.tick(1.0)
    env.heartbeat("w0", executing={"x": seconds})


def extra_runs(env: Env) -> list[str]:
    return list(map(str, env.worker("w0").extra_runs))


def release(env: Env) -> None:
    env.release("x")


def cancel(env: Env) -> None:
    env.cancel("x")


def disconnect(env: Env) -> None:
    env.leave("alice")
    env.tick(env.state.config.client_grace_seconds + 1.0)
    env.client("alice")


@pytest.mark.parametrize("end", [release, cancel, disconnect])
def test_worker_gets_no_task_until_the_run_ends(
    make_env: MakeEnv, end: Callable[[Env], None]
) -> None:
    env = executing(make_env())
    end(env)
    assert "x" not in env.state.tasks
    go_on(env)
    assert extra_runs(env) == ["x"] and not env.worker("w0").released_runs
    env.submit({"y": []})
    assert env.states("y") == ["no-worker"]
    assert "w0: executes only given-up" in str(explain(env.state, "y", env.now)["words"])
    assert identity(env.state)["given_up_runs"] == {"w0": 1}
    go_on(env, 62.0)
    assert env.states("y") == ["no-worker"]
    env.heartbeat("w0")
    assert env.where("y") == "w0"


def test_tasks_behind_the_run_go_to_another_worker(make_env: MakeEnv) -> None:
    env = executing(make_env())
    env.cancel("x")
    env.submit({"y": []})
    go_on(env)
    assert extra_runs(env) == ["x"]
    assert env.where("y") == "w0" and not env.state.stealing.in_flight
    env.join("w1")
    go_on(env, 62.0)
    env.give_back("y")
    assert env.where("y") == "w1"


def test_worker_with_another_thread_gets_a_task_for_it(make_env: MakeEnv) -> None:
    env = executing(make_env(worker_saturation=1.0), nthreads=2)
    env.cancel("x")
    go_on(env)
    env.submit({("y", i): [] for i in range(5)})
    assert len(env.processing("w0")) == 1


def test_short_runs_do_not_count(make_env: MakeEnv) -> None:
    """Only the next heartbeat will report that they have ended."""
    env = executing(make_env())
    env.cancel("x")
    env.tick(LONG_SECONDS / 2)
    env.heartbeat("w0", executing={"x": LONG_SECONDS - 0.1})
    assert not extra_runs(env)
    env.tick(20.0)
    env.heartbeat("w0", executing={"x": 19.9})
    assert not extra_runs(env)
    env.tick(20.0)
    env.heartbeat("w0", executing={"x": 39.9})
    assert extra_runs(env) == ["x"]


def test_run_that_no_heartbeat_has_reported_before(make_env: MakeEnv) -> None:
    env = make_env()
    env.join("w0")
    env.heartbeat("w0")
    env.submit({"x": []})
    env.cancel("x")
    go_on(env, 1.0)
    assert extra_runs(env) == ["x"]


@pytest.mark.parametrize("how", ["reschedule", "error", "other run", "not begun"])
def test_runs_that_have_ended_do_not_count(make_env: MakeEnv, how: str) -> None:
    env = make_env()
    env.join("w0")
    env.submit({"x": []}, annotations={"x": AnnotationSet(retries=1)})
    env.heartbeat("w0", executing={"x": 60.0})
    if how == "reschedule":
        env.feed(m.Reschedule(key="x"), "w0")
    elif how == "error":
        env.fail("x")
    elif how == "other run":
        env.finish("x", run_id=0)
    else:
        env.cancel("x")
        env.submit({"x": []})
    assert env.where("x") == "w0"
    go_on(env, 1.0)
    assert not extra_runs(env) and not env.worker("w0").released_runs


def test_task_that_is_released_before_it_begins(make_env: MakeEnv) -> None:
    env = executing(make_env())
    env.submit({"y": []})
    env.cancel("y")
    go_on(env)
    assert not extra_runs(env) and not env.worker("w0").released_runs


def test_tasks_that_seceded_occupy_no_thread(make_env: MakeEnv) -> None:
    env = executing(make_env())
    env.feed(m.LongRunning(key="x", run_id=env.task("x").run_id), "w0")
    env.cancel("x")
    go_on(env)
    assert not extra_runs(env)


def test_task_that_submitted_others_may_have_seceded(make_env: MakeEnv) -> None:
    env = executing(make_env())
    env.submit({"inner": []}, commit={"submitting_task": "x"})
    env.cancel("x")
    go_on(env)
    assert not extra_runs(env)


@pytest.mark.parametrize("end", [cancel, "timeout"])
def test_run_that_submits_tasks_after_it_was_given_up(
    make_env: MakeEnv, end: Callable[[Env], None] | str
) -> None:
    """A worker does not report that it secedes. The run may wait for the tasks."""
    env = make_env()
    env.join("w0")
    policy = TaskPolicy(timeout_seconds=60.0) if end == "timeout" else None
    env.submit({"x": []}, annotations={"x": AnnotationSet(policy=policy)})
    env.heartbeat("w0", executing={"x": 0.0})
    env.tick(61.0)
    if not isinstance(end, str):
        end(env)
    go_on(env, 62.0)
    assert extra_runs(env) == ["x"]
    env.submit({"other": []})
    assert env.states("other") == ["no-worker"]
    env.submit({"inner": []}, commit={"submitting_task": "x"})
    assert env.states("other", "inner") == ["processing"] * 2
    go_on(env, 63.0)
    assert not extra_runs(env)


def test_task_that_is_submitted_again_resumes_its_run(make_env: MakeEnv) -> None:
    env = executing(make_env(), nthreads=2)
    env.cancel("x")
    go_on(env)
    env.submit({"x": []})
    assert env.where("x") == "w0"
    assert not extra_runs(env)


def test_run_counts_for_the_cap_of_its_group_and_is_charged(make_env: MakeEnv) -> None:
    env = executing(make_env(shares_groups={"alice": {"threads": 1}}), nthreads=2)
    account = env.state.shares.account("alice")
    env.cancel("x")
    assert account.thread_seconds == 60.0
    go_on(env)
    env.submit({"y": []})
    assert env.states("y") == ["queued"]
    assert account.thread_seconds == 61.0
    env.heartbeat("w0")
    assert env.states("y") == ["processing"]


def test_adaptive_cluster_may_close_the_worker(make_env: MakeEnv) -> None:
    env = executing(make_env())
    env.feed(SizeCluster(1.0))
    assert env.state.scaling.asked == 1
    env.cancel("x")
    go_on(env)
    assert extra_runs(env) == ["x"]
    env.tick(1000.0)
    env.heartbeat("w0", executing={"x": 1061.0})
    env.feed(SizeCluster(1.0))
    assert env.state.scaling.asked == 0
    assert scaling.may_close(env.state, env.worker("w0"))


# ------------------------------------------------------------------ caps


def test_run_counts_for_the_cap_at_once(make_env: MakeEnv) -> None:
    env = executing(make_env(shares_groups={"alice": {"threads": 1}}))
    env.join("w1")
    env.submit({"y": []})
    assert env.states("y") == ["queued"]
    env.cancel("x")
    assert env.states("y") == ["queued"] and extra_runs(env) == ["x"]
    env.heartbeat("w0")
    assert env.states("y") == ["processing"]


def test_task_that_raised_reschedule_occupies_no_thread(make_env: MakeEnv) -> None:
    env = executing(make_env(shares_groups={"alice": {"threads": 1}}))
    env.feed(m.Reschedule(key="x"), "w0")
    assert env.where("x") == "w0" and not extra_runs(env)
    assert env.task("x").account.thread_seconds == 60.0


# ------------------------------------------------------------------ runs that secede or time out


TIMEOUT = {"annotations": {"x": AnnotationSet(policy=TaskPolicy(timeout_seconds=60.0))}}


def timed_out(env: Env, nthreads: int = 1) -> Env:
    """Let x of alice time out on w0, and go on."""
    env.join("w0", nthreads=nthreads, nanny="tcp://nanny")
    env.submit({"x": []}, **TIMEOUT)
    env.heartbeat("w0", executing={"x": 0.0})
    env.tick(61.0)
    env.heartbeat("w0", executing={"x": 61.0})
    env.tick(0.5)
    assert extra_runs(env) == ["x"]
    env.take()
    return env


@pytest.mark.parametrize("begin", [executing, timed_out])
def test_report_that_the_run_seceded_crosses_its_end(
    make_env: MakeEnv, begin: Callable[[Env], Env]
) -> None:
    env = begin(make_env())
    report = m.LongRunning(key="x", run_id=env.task("x").run_id)
    env.cancel("x")
    env.submit({"y": []})
    env.feed(report, "w0")
    go_on(env, 62.0)
    assert not extra_runs(env) and env.where("y") == "w0"


def test_second_run_that_secedes_occupies_no_thread(make_env: MakeEnv) -> None:
    env = make_env(speculation=True)
    env.submit({("x", 0): []})
    env.join("w0", "w1")
    env.finish(("x", 0))
    env.submit({("x", 1): []})
    first = env.where(("x", 1))
    other = "w1" if first == "w0" else "w0"
    env.tick(60.0)
    env.heartbeat(other)
    env.heartbeat(first, executing={("x", 1): 60.0})
    env.tick(1.0)
    assert list(env.worker(other).extra_runs) == [("x", 1)]
    second = env.task(("x", 1)).policies.second
    env.feed(m.LongRunning(key=("x", 1), run_id=second.run_id), other)
    assert not env.worker(other).extra_runs


def end_of_run(env: Env) -> None:
    env.heartbeat("w0", executing={"y": 63.0})


def submits(env: Env) -> None:
    env.submit({"inner": []}, commit={"submitting_task": "x"})


def is_resumed(env: Env) -> None:
    env.release("x")
    env.submit({"x": []})
    assert env.where("x") == "w0"


@pytest.mark.parametrize("end", [end_of_run, submits, is_resumed])
def test_no_restart_for_a_cancelled_run_after_one_that_timed_out(
    make_env: MakeEnv, end: Callable[[Env], None]
) -> None:
    env = make_env(restart_stuck_workers=True)
    env.join("w0", nthreads=3, nanny="tcp://nanny")
    env.submit({"y": []})
    env.submit({"x": []}, **TIMEOUT)
    env.heartbeat("w0", executing={"y": 0.0, "x": 0.0})
    env.cancel("y")
    env.tick(61.0)
    env.heartbeat("w0", executing={"y": 61.0, "x": 61.0})
    env.tick(0.5)
    assert "restart-stuck-worker" in str(env.take()) and len(extra_runs(env)) == 2
    end(env)
    for _ in range(3):
        env.tick(31.0)
    assert "restart-stuck-worker" not in str(env.take()) and "y" in extra_runs(env)


def test_deadline_of_a_run_that_no_heartbeat_has_reported(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=2.0)
    env.join("w0")
    env.submit({"a": []})
    policy = TaskPolicy(deadline=env.now + 10.0)
    env.submit({"x": []}, annotations={"x": AnnotationSet(policy=policy)})
    env.tick(9.0)
    env.heartbeat("w0", executing={"a": 9.0})
    env.finish("a")
    env.tick(1.5)
    assert env.states("x") == ["erred"] and not extra_runs(env)
    go_on(env, 2.0)
    go_on(env, 3.0)
    assert extra_runs(env) == ["x"]


# ------------------------------------------------------------------ charges


def test_run_that_is_cancelled_early_is_charged_from_its_start(make_env: MakeEnv) -> None:
    env = make_env()
    env.join("w0")
    env.submit({"x": []})
    env.heartbeat("w0", executing={})
    env.tick(0.9)
    env.cancel("x")
    for i in range(4):
        go_on(env, 0.9 + i)
    assert env.state.shares.account("alice").thread_seconds == pytest.approx(3.9)


def test_finished_run_is_not_charged_again(make_env: MakeEnv) -> None:
    env = executing(make_env())
    env.finish("x", seconds=60.1)
    env.feed(m.ReleaseWorkerData(key="x"), "w0")
    assert env.states("x") == ["processing"]
    env.cancel("x")
    assert env.state.shares.account("alice").thread_seconds == pytest.approx(60.1)
