"""A worker's report of its state is compared with the scheduler's, and differences are repaired."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.stealing.requests import BARRIER_KEY
from paceline.scheduler.core.stimuli import EndComparison, SettleWorker, WorkerReport
from paceline.testing import Env

from tests.support.annotations import on

BARRIER = m.StealResponse(key=BARRIER_KEY, state=None, stimulus_id="barrier")
ASKED = f"w0: steal-request {BARRIER_KEY}"


@pytest.fixture
def env(duo: Env) -> Env:
    """Return an environment with x in memory on w0, and y and z processing on w0."""
    duo.submit({"x": []})
    duo.finish("x", nbytes=100)
    duo.submit({"y": ["x"], "z": ["x"]}, annotations=on("w0", "y", "z"))
    duo.take()
    return duo


def settle(env: Env) -> None:
    """Prepare the comparison of w0."""
    env.turn(SettleWorker("w0"), request_id=7)
    assert [line.partition(" (")[0] for line in env.take()] == [ASKED]
    env.feed(BARRIER, "w0")
    assert env.replies.pop(7) is None


def report(env: Env, tasks: dict[Any, Any], keys: list[Any]) -> None:
    """Report the state of w0; the second barrier has not returned."""
    env.turn(WorkerReport("w0", tasks, keys), request_id=8)
    assert [line.partition(" (")[0] for line in env.take()] == [ASKED]
    assert 8 not in env.replies


def running(env: Env, *keys: str) -> dict[Any, Any]:
    return {key: ("executing", None, env.task(key).run_id) for key in keys}


def test_equal_states_need_no_repair(env: Env) -> None:
    settle(env)
    tasks = running(env, "y") | {"z": ("resumed", "waiting", 3), "x": ("memory", None, 1)}
    report(env, tasks, ["x"])
    env.feed(BARRIER, "w0")
    env.expect()
    assert env.replies.pop(8) is None
    assert env.state.comparisons.repair_counts == {}
    assert env.state.comparisons.by_worker == {}


@pytest.mark.parametrize("lost", [None, "cancelled", "released", "memory", "fetch"])
def test_task_that_the_worker_does_not_run_is_rescheduled(env: Env, lost: str | None) -> None:
    settle(env)
    tasks = running(env, "y") | ({"z": (lost, None, env.task("z").run_id)} if lost else {})
    report(env, tasks, ["x"])
    before = env.task("z").run_id
    env.feed(BARRIER, "w0")
    env.expect("w0: free-keys z", "w0: compute-task z with x@w0")
    assert env.task("z").run_id > before
    assert env.state.comparisons.repair_counts == {"rescheduled": 1}


def test_messages_in_flight_are_no_differences(env: Env) -> None:
    """What changed between the barriers is not compared."""
    settle(env)
    env.submit({"late": []}, annotations=on("w0", "late"))
    env.take()
    report(env, running(env, "z"), ["x", "y"])
    env.finish("y")  # was on its way when the worker made its report
    env.release("x")
    env.take()
    env.feed(BARRIER, "w0")
    env.expect()
    assert env.state.comparisons.repair_counts == {}


def test_result_that_the_worker_does_not_hold_is_computed_again(env: Env) -> None:
    settle(env)
    tasks = running(env, "y", "z") | {"x": ("memory", None, 1)}
    report(env, tasks, [])
    env.feed(BARRIER, "w0")
    assert "w0: free-keys x" in env.take()[0]
    assert env.state.comparisons.repair_counts == {"replica-removed": 1}
    assert env.states("x", "y", "z") == ["processing", "waiting", "waiting"]
    env.work()
    assert env.states("x", "y", "z") == ["memory"] * 3


def test_actor_is_not_among_the_results(env: Env) -> None:
    env.submit({"a": []}, annotations=on("w0", "a"), commit={"actors": True})
    env.finish("a")
    env.take()
    settle(env)
    report(env, running(env, "y", "z"), ["x"])
    env.feed(BARRIER, "w0")
    env.expect()
    assert env.state.comparisons.repair_counts == {}


def test_results_that_the_scheduler_does_not_know(env: Env) -> None:
    env.submit({"other": []}, annotations=on("w1", "other"))
    env.finish("other")
    env.submit({"waits": ["y"]})
    env.take()
    settle(env)
    tasks = running(env, "y", "z") | {
        "computed": ("memory", None, 4),
        "scattered": ("memory", None, -1),
    }
    report(env, tasks, ["x", "other", "waits", "computed", "scattered"])
    env.feed(BARRIER, "w0")
    env.expect("w0: free-keys waits computed")
    assert [(level, text.partition("; ")[2]) for level, text in env.lines[-3:]] == [
        (logging.WARNING, "adding the replica"),
        (logging.INFO, "freeing it"),
        (logging.INFO, "freeing it"),
    ]
    assert sorted(ws.address for ws in env.task("other").who_has) == ["w0", "w1"]
    assert env.state.comparisons.repair_counts == {"replica-added": 1, "freed": 2}


def test_worker_that_does_not_answer(env: Env) -> None:
    settle(env)
    report(env, {}, [])
    env.feed(EndComparison("w0"))
    env.feed(BARRIER, "w0")
    env.expect()
    assert env.state.comparisons.by_worker == {}


def test_worker_that_left(env: Env) -> None:
    settle(env)
    report(env, {}, [])
    env.lose("w0", expected=True)
    env.take()
    env.feed(BARRIER, "w0")
    env.turn(SettleWorker("w0"), request_id=9)
    env.turn(WorkerReport("w0", {}, []), request_id=10)
    assert (env.replies.pop(9), env.replies.pop(10)) == (None, None)
    assert env.state.comparisons.by_worker == {}
    assert env.state.comparisons.repair_counts == {}
