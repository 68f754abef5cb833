"""Runs of released tasks go on in their threads, which counts for workers, caps and scaling."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.inspection.queries import identity
from paceline.scheduler.core.lifecycle.extra_runs import LONG_SECONDS
from paceline.scheduler.core.policy import scaling
from paceline.scheduler.core.stimuli import AnnotationSet, SizeCluster
from paceline.testing import Env

MakeEnv = Callable[..., Env]


def executing(env: Env, seconds: float = 60.0, nthreads: int = 1) -> Env:
    """Let w0 execute the task x of alice for `seconds`."""
    env.join("w0", nthreads=nthreads)
    env.submit({"x": []})
    env.tick(seconds)
    env.heartbeat("w0", executing={"x": seconds})
    env.take()
    return env


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
    assert list(env.worker("w0").extra_runs) == ["x"]
    env.submit({"y": []})
    assert env.states("y") == ["no-worker"]
    assert "w0: executes only given-up" in str(explain(env.state, "y", env.now)["words"])
    assert identity(env.state)["given_up_runs"] == {"w0": 1}
    env.heartbeat("w0", executing={"x": 61.0})
    assert env.states("y") == ["no-worker"]
    env.heartbeat("w0")
    assert env.where("y") == "w0"


def test_tasks_behind_the_run_go_to_another_worker(make_env: MakeEnv) -> None:
    env = executing(make_env())
    env.submit({"y": []})
    assert env.where("y") == "w0"
    env.cancel("x")
    env.join("w1")
    env.heartbeat("w0", executing={"x": 61.0})
    env.give_back("y")
    assert env.where("y") == "w1"


def test_worker_with_another_thread_gets_a_task_for_it(make_env: MakeEnv) -> None:
    env = executing(make_env(worker_saturation=1.0), nthreads=2)
    env.cancel("x")
    env.submit({("y", i): [] for i in range(5)})
    assert len(env.processing("w0")) == 1


def test_short_runs_and_tasks_that_wait_on_the_worker_do_not_count(make_env: MakeEnv) -> None:
    env = executing(make_env(), seconds=LONG_SECONDS - 0.1)
    env.submit({"y": []})
    env.cancel("x")
    env.cancel("y")
    assert not env.worker("w0").extra_runs
    assert env.worker("w0") in env.state.running


def test_tasks_that_seceded_occupy_no_thread(make_env: MakeEnv) -> None:
    env = executing(make_env())
    env.feed(m.LongRunning(key="x", run_id=env.task("x").run_id), "w0")
    env.cancel("x")
    assert not env.worker("w0").extra_runs


@pytest.mark.parametrize("how", ["reschedule", "error", "other run"])
def test_runs_that_have_ended_do_not_count(make_env: MakeEnv, how: str) -> None:
    env = make_env()
    env.join("w0")
    env.submit({"x": []}, annotations={"x": AnnotationSet(retries=1)})
    env.heartbeat("w0", executing={"x": 60.0})
    if how == "reschedule":
        env.feed(m.Reschedule(key="x"), "w0")
    elif how == "error":
        env.fail("x")
    else:
        env.finish("x", run_id=0)
    assert not env.worker("w0").extra_runs
    assert env.where("x") == "w0"


def test_task_that_is_submitted_again_resumes_its_run(make_env: MakeEnv) -> None:
    env = executing(make_env(), nthreads=2)
    env.cancel("x")
    env.submit({"x": []})
    assert env.where("x") == "w0"
    assert not env.worker("w0").extra_runs


def test_run_counts_for_the_cap_of_its_group_and_is_charged(make_env: MakeEnv) -> None:
    env = executing(make_env(shares_groups={"alice": {"threads": 1}}), nthreads=2)
    account = env.state.shares.account("alice")
    env.cancel("x")
    env.submit({"y": []})
    assert env.states("y") == ["queued"]
    assert account.thread_seconds == 60.0
    env.tick(5.0)
    env.heartbeat("w0", executing={"x": 65.0})
    assert account.thread_seconds == 65.0
    env.heartbeat("w0")
    assert env.states("y") == ["processing"]


def test_adaptive_cluster_may_close_the_worker(make_env: MakeEnv) -> None:
    env = executing(make_env())
    ws = env.worker("w0")
    env.feed(SizeCluster(1.0))
    assert not scaling.may_close(env.state, ws)
    env.cancel("x")
    env.feed(SizeCluster(1.0))
    env.tick(1000.0)
    env.heartbeat("w0", executing={"x": 1060.0})
    assert scaling.may_close(env.state, ws)
