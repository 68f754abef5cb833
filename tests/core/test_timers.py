"""Timers: silent workers, tasks without workers, an idle scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paceline.protocol.messages import HeartbeatClient
from paceline.scheduler.core.stimuli import AnnotationSet, WorkerBackpressured
from paceline.scheduler.core.task_policy import TaskPolicy
from paceline.scheduler.core.text import format_time
from paceline.testing import Env

MakeEnv = Callable[..., Env]


def test_silent_workers_are_restarted_once_per_ttl(make_env: MakeEnv) -> None:
    env = make_env(worker_ttl_seconds=30)
    env.join("w0", "w1")
    env.now += 20
    env.heartbeat("w1")
    env.take()
    env.tick(11)
    env.expect("driver: restart-silent-workers ['w0']")
    env.tick(5)
    env.expect()
    env.tick(26)
    env.expect("driver: restart-silent-workers ['w0','w1']")


def test_a_worker_that_hangs_while_it_closes_is_removed(make_env: MakeEnv) -> None:
    env = make_env(worker_ttl_seconds=30)
    env.join("w0")
    env.status("w0", "closing")
    env.take()
    env.tick(31)
    env.expect("driver: restart-silent-workers ['w0']")


def test_a_short_ttl_allows_ten_heartbeats(make_env: MakeEnv) -> None:
    env = make_env(worker_ttl_seconds=1)
    env.join("w0")
    env.tick(4.9)
    env.expect()
    env.tick(0.2)
    env.expect("driver: restart-silent-workers ['w0']")


def test_without_ttl_no_worker_is_removed(make_env: MakeEnv) -> None:
    env = make_env(worker_ttl_seconds=None)
    env.join("w0")
    env.tick(1e6)
    env.expect()


# ------------------------------------------------------------------ no workers


def test_tasks_without_allowed_worker_fail(make_env: MakeEnv) -> None:
    env = make_env(no_workers_timeout_seconds=10)
    env.join("w0")
    restricted = {"x": AnnotationSet(workers=["elsewhere"])}
    env.submit({"x": [], "y": ["x"]}, annotations=restricted)
    env.tick(9)
    env.expect()
    env.tick(2)
    env.expect("alice: task-erred y: NoValidWorker(x, ['elsewhere'], [], {})")
    assert any(
        "timed out waiting for its restrictions to become satisfied" in t for _, t in env.lines
    )


def test_tasks_without_any_worker_fail(make_env: MakeEnv) -> None:
    """Fail both tasks: the first is queued, the second waits for it."""
    env = make_env(no_workers_timeout_seconds=10)
    env.submit({"x": []})
    env.submit({"y": ["x"]})
    env.tick(0)
    env.tick(11)
    env.expect("alice: task-erred x: NoWorker(x)", "alice: task-erred y: NoWorker(x)")
    assert any("timed out waiting without any running workers" in t for _, t in env.lines)
    assert env.task("x").details.exception_text == "NoWorkerError"


def test_lost_workers_start_the_timeout(make_env: MakeEnv) -> None:
    env = make_env(no_workers_timeout_seconds=10)
    env.join("w0")
    env.submit({"x": []})
    env.tick(100)
    env.lose("w0")
    env.take()
    env.tick(9)
    env.expect()
    env.join("w1")
    env.lose("w1")
    env.take()
    env.tick(9)
    env.expect()
    env.tick(2)
    env.expect("alice: task-erred x: NoWorker(x)")


def test_paused_workers_do_not_count(make_env: MakeEnv) -> None:
    env = make_env(no_workers_timeout_seconds=10)
    env.join("w0")
    env.status("w0", "paused")
    env.submit({"x": []})
    assert env.states("x") == ["no-worker"]
    env.tick(0)
    env.tick(11)
    assert env.states("x") == ["erred"]


def test_a_running_worker_that_accepts_no_tasks_now_counts(make_env: MakeEnv) -> None:
    env = make_env(no_workers_timeout_seconds=10)
    env.join("w0")
    env.feed(WorkerBackpressured("w0", True))
    restricted = {"other": AnnotationSet(workers=["elsewhere"])}
    env.submit({"x": [], "other": []}, annotations=restricted)
    assert env.states("x", "other") == ["no-worker", "no-worker"]
    for _ in range(3):
        env.tick(6)
    assert env.states("x", "other") == ["no-worker", "erred"]
    env.feed(WorkerBackpressured("w0", False))
    assert env.states("x") == ["processing"]


def test_restricted_task_without_any_worker_blames_restrictions(make_env: MakeEnv) -> None:
    """As in stock, if it was restricted before the last worker left."""
    env = make_env(no_workers_timeout_seconds=10)
    env.submit({"x": []}, annotations={"x": AnnotationSet(workers=["elsewhere"])})
    env.tick(0)
    env.tick(11)
    env.expect("alice: task-erred x: NoValidWorker(x, ['elsewhere'], [], {})")


def test_error_names_hosts_and_resources_that_are_missing(make_env: MakeEnv) -> None:
    env = make_env(no_workers_timeout_seconds=10)
    env.join("w0")
    needs = AnnotationSet(workers=["w0", "host-x"], resources={"gpu": 1})
    env.submit({"x": []}, annotations={"x": needs})
    env.tick(11)
    env.expect("alice: task-erred x: NoValidWorker(x, ['host-x'], ['w0'], {'gpu': 1})")


def test_failure_of_one_task_releases_its_dependencies(make_env: MakeEnv) -> None:
    """Dependencies of the failed tasks are released."""
    env = make_env(no_workers_timeout_seconds=10)
    env.join("w0")
    env.submit({"a": [], "x": ["a"]}, annotations={"x": AnnotationSet(workers=["elsewhere"])})
    env.finish("a")
    env.take()
    env.tick(11)
    env.expect("alice: task-erred x: NoValidWorker(x, ['elsewhere'], [], {})", "w0: free-keys a")


# ------------------------------------------------------------------ idle


def test_an_idle_scheduler_closes(make_env: MakeEnv) -> None:
    env = make_env(idle_timeout_seconds=10)
    env.tick()
    env.tick(5)
    env.tick(6)
    env.expect("driver: close-scheduler idle-timeout-exceeded")
    assert (20, "Scheduler closing after being idle for 10.00 s") in env.lines


@pytest.mark.parametrize(
    "what", ["running", "queued", "uncommitted", "no-worker", "waits for its retry"]
)
def test_a_busy_scheduler_does_not_close(make_env: MakeEnv, what: str) -> None:
    env = make_env(idle_timeout_seconds=10, worker_ttl_seconds=None)
    if what == "running":
        env.join("w0")
        env.submit({"x": []})
    elif what == "queued":
        env.submit({"x": []})
    elif what == "no-worker":
        env.submit({"x": []}, annotations={"x": AnnotationSet(workers=["elsewhere"])})
    elif what == "waits for its retry":
        env.join("w0")
        policy = TaskPolicy(retry_delay_seconds=200.0)
        env.submit({"x": []}, annotations={"x": AnnotationSet(retries=1, policy=policy)})
        env.fail("x")
        assert env.states("x") == ["waiting"]
    else:
        env.turn(env.rows({"x": []})[0], "alice")
    env.take()
    for _ in range(5):
        env.tick(20)
    env.expect()


def test_work_restarts_the_idle_timeout(make_env: MakeEnv) -> None:
    env = make_env(idle_timeout_seconds=10, worker_ttl_seconds=None)
    env.join("w0")
    for _ in range(4):
        env.submit({"x": []})
        env.work()
        env.release("x")
        env.take()
        env.tick(6)
        env.expect()
    env.tick(6)
    env.tick(6)
    env.expect()
    env.tick(6)
    env.expect("driver: close-scheduler idle-timeout-exceeded")


def test_without_timeout_it_does_not_close(env: Env) -> None:
    for _ in range(3):
        env.tick(1e6)
    env.expect()
    assert env.state.idle_since is not None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0005, "500.00 us"), (0.5, "500.00 ms"), (2, "2.00 s"), (700, "11m 40s"), (7300, "2hr 1m"),
     (200_000, "2d 7hr")],
)  # fmt: skip
def test_durations_in_log_texts(seconds: Any, words: str) -> None:
    assert format_time(seconds) == words


# ------------------------------------------------------------------ clients that fall silent


def test_a_silent_client_is_logged_once(make_env: MakeEnv) -> None:
    """Missed heartbeats and their return are logged. A client that never sent one misses none."""
    env = make_env()
    env.client("alice", "bob")
    env.feed(HeartbeatClient(), "alice")
    env.tick(30)
    assert not env.state.clients["alice"].heartbeat_overdue
    env.tick(200)
    env.tick(5)
    assert env.state.clients["alice"].heartbeat_overdue
    assert not env.state.clients["bob"].heartbeat_overdue
    env.feed(HeartbeatClient(), "alice")
    assert not env.state.clients["alice"].heartbeat_overdue
    lines = [line for _, line in env.lines if "alice" in line and "heartbeat" in line]
    assert lines == [
        "Client alice did not send a heartbeat for 230 s",
        "Client alice sent a heartbeat again after 235 s",
    ]
