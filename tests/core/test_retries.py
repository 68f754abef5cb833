"""Retries with policies: after which exceptions, after what delay, and where."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.instructions import MatchError
from paceline.scheduler.core.stimuli import AnnotationSet, ErrorMatched
from paceline.scheduler.core.task_policy import TaskPolicy
from paceline.testing import Env


def cluster(*workers: str, retries: int = 3, **policy: object) -> Env:
    """Return a cluster that processes a task x with this policy on w0."""
    env = Env()
    env.client("alice")
    for address in workers:
        env.join(address)
    annotations = AnnotationSet(retries=retries, policy=TaskPolicy(**policy))
    env.submit({"x": []}, annotations={"x": annotations})
    env.take()
    assert env.where("x") == workers[0]
    return env


def requests(env: Env) -> list[MatchError]:
    """Return the requests to compare exceptions since the last call."""
    found = [i for i in env.outbox.instructions if isinstance(i, MatchError)]
    env.take()
    return found


def answer(env: Env, request: MatchError, matches: bool, **fields: Any) -> None:
    env.feed(ErrorMatched(request.key, request.run_id, matches, **fields))


def test_without_a_delay_it_is_retried_at_once() -> None:
    env = cluster("w0", timeout_seconds=5.0)
    env.fail("x")
    assert env.states("x") == ["processing"]
    assert env.task("x").retries == 2


def test_the_delay_grows_up_to_its_limit() -> None:
    env = cluster(
        "w0",
        retries=4,
        retry_delay_seconds=2.0,
        retry_backoff=3.0,
        retry_delay_max_seconds=10.0,
    )
    for seconds in (2.0, 6.0, 10.0, 10.0):
        env.fail("x")
        assert env.states("x") == ["waiting"]
        env.tick(seconds - 0.1)
        assert env.states("x") == ["waiting"]
        env.tick(0.2)
        assert env.states("x") == ["processing"]
    env.fail("x")
    assert env.states("x") == ["erred"]


def test_a_task_that_is_released_during_its_delay() -> None:
    env = cluster("w0", retry_delay_seconds=2.0)
    env.fail("x")
    env.release("x")
    assert env.states("x") == ["forgotten"]
    env.tick(3.0)


def test_a_dependency_that_is_lost_during_the_delay() -> None:
    env = Env()
    env.client("alice")
    env.join("w0", "w1")
    policy = AnnotationSet(retries=1, policy=TaskPolicy(retry_delay_seconds=2.0))
    env.submit({"d": [], "x": ["d"]}, annotations={"x": policy})
    env.finish("d")
    env.fail("x")
    env.lose("w0")
    assert env.states("d", "x") == ["processing", "waiting"]
    env.tick(3.0)
    assert env.states("d", "x") == ["processing", "waiting"]
    env.finish("d")
    assert env.states("x") == ["processing"]


def test_the_exception_is_compared() -> None:
    env = cluster("w0", "w1", retry_on=["builtins.OSError"])
    env.fail("x")
    (request,) = requests(env)
    assert (request.key, request.names) == ("x", ["builtins.OSError"])
    assert env.states("x") == ["waiting"]
    answer(env, request, True)
    assert env.states("x") == ["processing"]
    env.fail("x")
    (request,) = requests(env)
    answer(env, request, False)
    env.expect("alice: task-erred x: boom x")
    assert env.states("x") == ["erred"]
    assert env.task("x").retries == 2


def test_an_answer_about_an_earlier_run_is_ignored() -> None:
    env = cluster("w0", retry_on=["builtins.OSError"])
    env.fail("x")
    (first,) = requests(env)
    answer(env, first, True)
    answer(env, first, False)
    assert env.states("x") == ["processing"]
    env.fail("x")
    answer(env, first, False)
    assert env.states("x") == ["waiting"]
    env.feed(ErrorMatched("unknown", 1, True))


def test_the_comparison_is_requested_again() -> None:
    env = cluster("w0", retry_on=["builtins.OSError"])
    env.fail("x")
    requests(env)
    env.tick(9.0)
    assert requests(env) == []
    env.tick(2.0)
    (request,) = requests(env)
    answer(env, request, False, problem="it cannot be unpickled")
    assert env.states("x") == ["erred"]
    assert any("it cannot be unpickled; not retrying it" in text for _, text in env.lines)


def test_no_retries_are_left() -> None:
    env = cluster("w0", retries=0, retry_on=["builtins.OSError"])
    env.fail("x")
    assert env.states("x") == ["erred"]
    assert requests(env) == []


def test_elsewhere() -> None:
    env = cluster("w0", "w1", retry_elsewhere=True)
    env.fail("x")
    assert env.where("x") == "w1"
    env.fail("x")
    assert env.where("x") in ("w0", "w1")
    assert "It failed on w0, w1 and runs elsewhere if possible." in words(env)


def test_elsewhere_with_one_worker() -> None:
    env = cluster("w0", retry_elsewhere=True)
    env.fail("x")
    assert env.where("x") == "w0"


@pytest.mark.parametrize(
    ("names", "state"),
    [(None, "processing"), (["builtins.OSError"], "processing"), (["builtins.KeyError"], "erred")],
)
def test_timeouts_are_retried_elsewhere(names: list[str] | None, state: str) -> None:
    env = cluster("w0", "w1", timeout_seconds=5.0, retry_on=names)
    env.heartbeat("w0", executing={"x": 5.0})
    env.now += 5.0
    env.heartbeat("w0", executing={"x": 5.0})
    env.tick()
    assert env.states("x") == [state]
    assert list(env.worker("w0").extra_runs) == ["x"]
    if state == "processing":
        assert env.where("x") == "w1"


def test_a_deadline_is_final() -> None:
    env = cluster("w0", deadline=1005.0, retry_delay_seconds=60.0)
    env.fail("x")
    env.tick(5.0)
    assert env.states("x") == ["erred"]


def test_a_retry_by_the_client_starts_with_the_first_delay() -> None:
    env = cluster("w0", retries=1, retry_delay_seconds=2.0, retry_backoff=10.0)
    env.fail("x")
    env.tick(2.0)
    env.fail("x")
    policies = env.task("x").policies
    assert policies is not None and policies.failed_runs == 1
    env.release("x")
    env.submit({"x": []})


def test_it_avoids_that_worker_while_groups_take_turns() -> None:
    env = cluster("w0", "w1", retry_elsewhere=True)
    env.client("bob")
    env.submit({("b", i): [] for i in range(20)}, client="bob")
    env.fail("x")
    env.finish(*env.processing("w0"))
    assert env.states("x") == ["queued"]
    env.finish(*env.processing("w1"))
    assert env.where("x") == "w1"


def words(env: Env) -> list[str]:
    found: list[str] = explain(env.state, "x", env.now)["words"]
    return found


def test_explain() -> None:
    env = cluster("w0", retry_delay_seconds=60.0, retry_on=["builtins.OSError"])
    env.fail("x")
    assert words(env)[0] == "x failed on w0; its exception is being compared with builtins.OSError."
    (request,) = requests(env)
    answer(env, request, True)
    assert words(env)[0] == "x failed on w0 and is retried in 60.0 s."
    env.submit({"x": [], "y": ["x"]}, want=["y"])
    found = explain(env.state, "y", env.now)["summary"]
    assert "Root cause: x failed on w0 and is retried in 60.0 s." in found
