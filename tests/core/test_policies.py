"""Timeouts and deadlines of tasks, and threads that go on with runs that were given up."""

from __future__ import annotations

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.handlers.reconciliation import unfinished_instructions
from paceline.scheduler.core.inspection.explain import explain, explain_all
from paceline.scheduler.core.inspection.queries import identity
from paceline.scheduler.core.instructions import RestartStuckWorker
from paceline.scheduler.core.state.task_policies import ALARMS_MIN
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    Continue,
    ReleaseAll,
    SetWorkerStatus,
    Tick,
)
from paceline.scheduler.core.task_policy import TaskPolicy
from paceline.testing import Env


def with_policy(**policy: object) -> AnnotationSet:
    return AnnotationSet(policy=TaskPolicy(**policy))


def cluster(*workers: str, **facts: object) -> Env:
    env = Env(**facts)
    env.client("alice")
    for address in workers:
        env.join(address)
    return env


def submit(env: Env, *keys: str, **policy: object) -> None:
    """Submit tasks with a policy."""
    annotations = dict.fromkeys(keys, with_policy(**policy))
    env.submit({key: [] for key in keys}, keys, annotations=annotations)
    env.take()


def beat_until(env: Env, address: str, seconds: float, **executing: float) -> None:
    """Send a heartbeat each second, in which the tasks execute since the given numbers of seconds."""
    for _ in range(int(seconds)):
        env.tick(1.0)
        executing = {key: known + 1.0 for key, known in executing.items()}
        env.heartbeat(address, executing=executing)


def test_a_run_that_takes_too_long() -> None:
    env = cluster("w0", "w1")
    submit(env, "x", timeout_seconds=5.0)
    assert env.where("x") == "w0"
    beat_until(env, "w0", 4, x=0.0)
    assert env.states("x") == ["processing"]
    env.tick(1.0)
    text = "Task 'x' was executing for 5.0 s on w0, longer than its timeout of 5 s"
    env.expect("w0: free-keys x", f"alice: task-erred x: TimeoutError({text})")
    assert env.task("x").erred_on == {"w0": None}
    assert (30, text) in env.lines


def test_time_in_the_queue_of_a_worker_does_not_count() -> None:
    env = cluster("w0")
    submit(env, "x", timeout_seconds=5.0)
    beat_until(env, "w0", 60)
    assert env.states("x") == ["processing"]
    beat_until(env, "w0", 4, x=0.0)
    env.tick()
    assert env.states("x") == ["processing"]
    beat_until(env, "w0", 1, x=4.0)
    env.tick()
    assert env.states("x") == ["erred"]


def test_an_older_run_does_not_count() -> None:
    """The worker resumes a run that it was asked to forget; the timeout counts from the request."""
    env = cluster("w0")
    submit(env, "x", timeout_seconds=5.0)
    beat_until(env, "w0", 3, x=0.0)
    env.feed(m.Reschedule(key="x"), "w0")
    beat_until(env, "w0", 4, x=3.0)
    env.tick()
    assert env.states("x") == ["processing"]
    beat_until(env, "w0", 1, x=7.0)
    env.tick()
    assert env.states("x") == ["erred"]


def test_a_worker_without_heartbeats() -> None:
    """Its first tasks count as executing since its last heartbeat, or since they were sent."""
    env = cluster("w0")
    beat_until(env, "w0", 1)
    submit(env, "x", "y", timeout_seconds=5.0)
    env.tick(4.9)
    assert env.states("x", "y") == ["processing", "processing"]
    env.tick(0.2)
    assert env.states("x", "y") == ["erred", "processing"]


def test_a_task_in_the_thread_has_the_worker_less_a_slot() -> None:
    env = cluster("w0", "w1")
    submit(env, "x", timeout_seconds=5.0)
    beat_until(env, "w0", 5, x=0.0)
    env.submit({"y": []})
    env.tick()
    assert list(env.worker("w0").extra_runs) == ["x"]
    assert list(env.state.running) == [env.worker("w1")]
    env.submit({"z": []})
    assert env.where("y") == env.where("z") == "w1"
    env.heartbeat("w0", executing={"x": 6.0})
    assert list(env.worker("w0").extra_runs) == ["x"]
    env.heartbeat("w0")
    assert env.worker("w0").extra_runs == {}
    env.submit({"a": []})
    assert env.where("a") == "w0"


def test_tasks_behind_a_stuck_run_are_recalled() -> None:
    env = cluster("w0")
    submit(env, "x", timeout_seconds=5.0)
    env.submit({"y": []})
    beat_until(env, "w0", 4, x=0.0)
    env.join("w1")
    env.take()
    env.tick(1.0)
    assert "w0: steal-request y (steal-0)" in env.take()
    env.give_back("y")
    assert env.where("y") == "w1"


def test_tasks_wait_if_all_threads_are_stuck() -> None:
    env = cluster("w0")
    submit(env, "x", timeout_seconds=5.0)
    beat_until(env, "w0", 4, x=0.0)
    env.tick(1.0)
    env.submit({("y", i): [] for i in range(4)})
    assert env.states(("y", 0)) == ["queued"]
    env.submit({"z": []})
    assert env.states("z") == ["no-worker"]
    env.heartbeat("w0")
    assert env.states("z", ("y", 0)) == ["processing", "processing"]


def test_other_threads_go_on() -> None:
    env = cluster()
    env.join("w0", nthreads=2)
    submit(env, "x", timeout_seconds=5.0)
    beat_until(env, "w0", 4, x=0.0)
    env.tick(1.0)
    env.submit({("y", i): [] for i in range(6)})
    assert env.processing("w0") == [("y", 0), ("y", 1)]


def test_a_seceded_run_occupies_no_thread() -> None:
    env = cluster("w0")
    submit(env, "x", timeout_seconds=5.0)
    env.feed(m.LongRunning(key="x", run_id=env.task("x").run_id, compute_duration=1.0), "w0")
    beat_until(env, "w0", 4, x=0.0)
    env.take()
    env.tick(1.0)
    assert "w0: free-keys x" in env.take()
    assert env.worker("w0").extra_runs == {}


def test_the_late_result_is_freed() -> None:
    env = cluster("w0")
    submit(env, "x", timeout_seconds=5.0)
    finished = env.finished("x")
    beat_until(env, "w0", 4, x=0.0)
    env.tick(1.0)
    env.take()
    env.feed(finished, "w0")
    env.expect("w0: free-keys x")


def test_the_duration_of_a_stuck_run_is_not_learned() -> None:
    env = cluster("w0")
    submit(env, "x-1", timeout_seconds=5.0)
    beat_until(env, "w0", 4, **{"x-1": 0.0})
    env.tick(1.0)
    seconds = env.task("x-1").prefix.max_exec_time
    beat_until(env, "w0", 50, **{"x-1": 5.0})
    assert env.task("x-1").prefix.max_exec_time == seconds


def test_a_retry_after_a_timeout_runs_elsewhere() -> None:
    """The first run goes on, so its worker is avoided although it has free threads."""
    env = cluster("w1")
    env.join("w0", nthreads=4)
    other = {key: AnnotationSet(workers=["w1"]) for key in ("a", "b")}
    env.submit({"a": [], "b": []}, annotations=other)
    policy = {"x": AnnotationSet(retries=1, policy=TaskPolicy(timeout_seconds=5.0))}
    env.submit({"x": []}, annotations=policy)
    assert env.where("x") == "w0"
    beat_until(env, "w0", 5, x=0.0)
    env.tick()
    assert env.where("x") == "w1"


@pytest.mark.parametrize("end", ["result", "error", "secede"])
def test_a_retry_resumes_the_run_that_goes_on(end: str) -> None:
    """Its worker reports it with the run_id of the first request."""
    env = cluster()
    env.join("w0", nthreads=2)
    policy = AnnotationSet(retries=1, policy=TaskPolicy(timeout_seconds=5.0))
    env.submit({"x": []}, annotations={"x": policy})
    run_id = env.task("x").run_id
    beat_until(env, "w0", 5, x=0.0)
    env.tick()
    assert env.where("x") == "w0"
    assert env.task("x").run_id != run_id
    if end == "result":
        env.finish("x", run_id=run_id)
        assert env.states("x") == ["memory"]
    elif end == "error":
        env.fail("x", run_id=run_id)
        assert env.states("x") == ["erred"]
    else:
        env.feed(m.LongRunning(key="x", run_id=run_id), "w0")
        assert env.task("x") in env.worker("w0").long_running


@pytest.mark.parametrize(("nanny", "expected"), [("nanny", ["w0"]), (None, [])])
def test_the_worker_is_restarted_if_configured(nanny: str | None, expected: list[str]) -> None:
    """Only a nanny can restart it."""
    env = cluster(restart_stuck_workers=True)
    env.join("w0", nthreads=2, nanny=nanny)
    submit(env, "x", "y", timeout_seconds=5.0)
    beat_until(env, "w0", 4, x=0.0, y=0.0)
    env.outbox.instructions.clear()
    env.tick(1.0)
    found = [i for i in env.outbox.instructions if isinstance(i, RestartStuckWorker)]
    assert [each.address for each in found] == expected


def test_a_restart_that_failed_is_repeated() -> None:
    """The data of a worker cannot be moved while the other workers are restarted, too."""
    env = cluster(restart_stuck_workers=True)
    env.join("w0", nanny="nanny")
    submit(env, "x", timeout_seconds=5.0)
    beat_until(env, "w0", 5, x=0.0)
    env.tick()
    env.outbox.instructions.clear()
    beat_until(env, "w0", 29, x=5.0)
    assert not env.outbox.instructions
    env.feed(SetWorkerStatus("w0", "closing_gracefully"))
    env.tick(10.0)
    assert not env.outbox.instructions  # the restart is under way
    env.feed(SetWorkerStatus("w0", "running"))
    env.tick()
    assert env.outbox.instructions == [RestartStuckWorker("w0")]
    env.heartbeat("w0")
    env.outbox.instructions.clear()
    env.tick(60.0)
    assert not env.outbox.instructions


def test_a_restart_that_was_interrupted_is_continued() -> None:
    env = cluster(restart_stuck_workers=True)
    env.join("w0", nthreads=2, nanny="nanny")
    submit(env, "x", timeout_seconds=5.0)
    beat_until(env, "w0", 4, x=0.0)
    env.tick(1.0)
    assert unfinished_instructions(env.state) == []
    env.feed(SetWorkerStatus("w0", "closing_gracefully"))
    assert unfinished_instructions(env.state) == [RestartStuckWorker("w0")]
    env.heartbeat("w0", executing={})
    assert unfinished_instructions(env.state) == []


def test_a_restart_of_the_cluster_keeps_threads_occupied() -> None:
    env = cluster("w0")
    submit(env, "x", timeout_seconds=5.0)
    beat_until(env, "w0", 4, x=0.0)
    env.tick(1.0)
    env.feed(ReleaseAll())
    assert list(env.worker("w0").extra_runs) == ["x"]


def test_a_task_that_is_processing_at_its_deadline() -> None:
    env = cluster("w0")
    submit(env, "x", deadline=1010.0, deadline_text="ten past")
    env.tick(9.0)
    assert env.states("x") == ["processing"]
    env.tick(1.0)
    error = "TimeoutError(Task 'x' was processing on w0 at its deadline, ten past)"
    env.expect("w0: free-keys x", f"alice: task-erred x: {error}")


def test_a_task_that_waits_at_its_deadline() -> None:
    env = cluster()
    env.submit({"x": [], "y": ["x"], "z": ["y"]}, annotations={"y": with_policy(deadline=1010.0)})
    env.tick(10.0)
    assert env.states("x", "y", "z") == ["released", "erred", "erred"]
    assert "was waiting at its deadline" in (env.task("y").exception_text or "")


def test_a_deadline_during_the_commit_of_the_graph() -> None:
    env = Env(turn_tasks_max=3)
    env.client("alice")
    env.join("w0")
    keys = [f"x-{i}" for i in range(20)]
    annotations = {key: with_policy(deadline=1001.0) for key in keys}
    for part in env.rows({key: [] for key in keys}, annotations=annotations):
        env.turn(part, "alice")
    env.turn(Continue())
    assert env.task("x-0").state == "released"
    env.now = 1002.0
    env.turn(Tick())
    env.run_deferred()
    for _ in range(10):  # some tasks in each turn
        env.tick(1)
    assert env.states(*keys) == ["erred"] * 20


def test_a_task_that_is_finished_at_its_deadline() -> None:
    env = cluster("w0")
    submit(env, "x", deadline=1010.0)
    env.finish("x")
    env.take()
    env.tick(20.0)
    env.expect()
    assert env.states("x") == ["memory"]
    assert not env.state.task_policies.alarms


def test_explain() -> None:
    env = cluster("w0")
    submit(env, "x", timeout_seconds=5.0, deadline=1060.0, deadline_text="18:00")
    env.tick(1.0)
    env.heartbeat("w0", executing={"x": 1.0})
    words = explain(env.state, "x", env.now)["words"]
    assert "It fails when it has been executing for 5.0 s, in 4.0 s." in words
    assert "It fails at its deadline, 18:00, in 59.0 s." in words
    env.tick(4.0)
    env.submit({"y": []})
    env.submit({("z", i): [] for i in range(4)})
    found = explain(env.state, ("z", 0), env.now)
    busy = "1 worker busy with given-up or second runs"
    assert f"no worker accepts tasks: {busy}." in found["summary"]
    assert explain_all(env.state, env.now)["cluster"]["given_up"] == {"w0": ["x"]}
    assert identity(env.state)["given_up_runs"] == {"w0": 1}
    found = explain(env.state, "y", env.now)
    assert "1 worker busy with given-up or second runs" in found["summary"]
    assert "w0: executes only given-up and second runs: x." in found["words"]


def test_alarms_of_forgotten_tasks_are_removed() -> None:
    env = cluster()
    env.checks = False
    for i in range(3 * ALARMS_MIN):
        submit(env, f"x-{i}", deadline=1e9)
        env.release(f"x-{i}")
    assert len(env.state.task_policies.alarms) <= ALARMS_MIN
