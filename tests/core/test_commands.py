"""Writes of plugins: attributes of tasks, restrictions, states."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from paceline.scheduler.core.handlers.commands import WRITABLE, check_setting, write_task
from paceline.scheduler.core.stimuli import (
    Configure,
    Continue,
    IdleCheck,
    MakeTransitions,
    RestrictionsSet,
    WorkerRemoved,
    WriteTask,
)
from paceline.testing import Env

MakeEnv = Callable[..., Env]

WRITES: dict[str, tuple[Any, Any]] = {
    "annotations": ({"a": 1}, {"a": 1}),
    "host_restrictions": (["h1"], {"h1": None}),
    "loose_restrictions": (True, True),
    "metadata": ({"m": 2}, {"m": 2}),
    "priority": ([1, 2, 3], (1, 2, 3)),
    "queueable": (False, False),
    "resource_restrictions": ({"gpu": 1.0}, {"gpu": 1.0}),
    "retries": (3, 3),
    "worker_restrictions": (["w1"], {"w1": None}),
}


@pytest.mark.parametrize("field", WRITABLE)
def test_writable_fields(duo: Env, field: str) -> None:
    duo.submit({"x": []})
    duo.take()
    value, kept = WRITES[field]
    duo.feed(WriteTask("x", field, value))
    assert getattr(duo.task("x"), field) == kept
    duo.expect()


def test_an_unknown_key_is_ignored(duo: Env) -> None:
    duo.feed(WriteTask("x", "retries", 1))
    duo.expect()


def test_other_fields_raise(duo: Env) -> None:
    duo.submit({"x": []})
    with pytest.raises(AssertionError, match="state"):
        write_task(duo.state, WriteTask("x", "state", "memory"))


def test_a_queued_task_moves_in_the_queue(make_env: MakeEnv) -> None:
    env = make_env()
    env.join("w0")
    env.submit({f"x-{i}": [] for i in range(8)})
    env.take()
    last = max(env.state.queued, key=lambda ts: ts.priority)
    env.feed(WriteTask(last.key, "priority", (-1.0, 0.0, 0.0)))
    assert next(iter(env.state.queued)) is last


def test_restrictions_let_an_unrunnable_task_run(duo: Env) -> None:
    duo.submit({"x": []})
    duo.take()
    duo.feed(RestrictionsSet({"x": ["w9"]}))
    duo.feed(WorkerRemoved(duo.where("x"), expected=True))
    duo.take()
    assert duo.states("x") == ["no-worker"]
    duo.feed(RestrictionsSet({"x": None}))
    duo.expect("w1: compute-task x")


def test_released_tasks_that_are_desired_run_again(duo: Env) -> None:
    """As when a shuffle restarts: finished tasks are computed again, in order."""
    duo.submit({"a": [], "b": ["a"], "c": ["b"]}, ["c"])
    duo.finish("a", "b")
    duo.take()
    assert duo.states("a", "b", "c") == ["released", "memory", "processing"]
    duo.feed(MakeTransitions({"c": "released", "b": "released", "a": "released"}))
    assert duo.states("a", "b", "c") == ["processing", "waiting", "waiting"]
    duo.take()
    duo.work()
    assert duo.states("c") == ["memory"]


@pytest.mark.parametrize("turn_tasks_max", [1, 3, 1000])
def test_turn_size_does_not_change_the_result(make_env: MakeEnv, turn_tasks_max: int) -> None:
    env = make_env(turn_tasks_max=turn_tasks_max)
    env.join("w0", "w1", nthreads=4)
    keys = [f"t-{i}" for i in range(6)]
    outputs = {f"o-{i}": ["barrier"] for i in range(6)}
    env.submit({**{key: [] for key in keys}, "barrier": keys, **outputs}, list(outputs))
    env.run_deferred()
    env.finish(*keys)
    env.run_deferred()
    env.finish("barrier")
    env.run_deferred()
    env.take()
    recs = dict.fromkeys((*outputs, "barrier", *keys), "released")
    for key in reversed(recs):
        env.feed(MakeTransitions({key: recs[key]}))
    env.feed(Continue())
    env.run_deferred()
    assert set(env.states(*keys)) == {"processing"}
    assert set(env.states("barrier", *outputs)) == {"waiting"}
    env.work()
    assert set(env.states(*outputs)) == {"memory"}


def test_an_impossible_transition_is_logged(duo: Env) -> None:
    duo.submit({"x": []})
    duo.take()
    duo.feed(MakeTransitions({"x": "memory", "y": "released"}))
    assert duo.states("x") == ["processing"]
    assert "Ignoring the transition of 'x' from processing to memory" in duo.lines[-1][1]


# ------------------------------------------------------------------ settings


def test_saturation_applies_to_all_workers_at_once(duo: Env) -> None:
    duo.submit({f"x-{i}": [] for i in range(20)})
    assert len(duo.state.queued) > 0
    duo.feed(Configure("worker_saturation", math.inf))
    assert not len(duo.state.queued)
    assert sum(len(ws.processing) for ws in duo.state.workers.values()) == 20
    duo.feed(Configure("worker_saturation", 1.0))
    assert all(ws.task_slots == ws.nthreads for ws in duo.state.workers.values())


def test_unknown_duration_changes_occupancy(duo: Env) -> None:
    duo.submit({f"x-{i}": [] for i in range(4)})
    before = duo.state.compute_occupancy
    assert before > 0
    duo.feed(
        Configure(
            "unknown_task_duration_seconds", 2 * duo.state.config.unknown_task_duration_seconds
        )
    )
    assert duo.state.compute_occupancy == pytest.approx(2 * before)


def test_validation_can_be_switched(duo: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    monkeypatch.setattr(
        "paceline.scheduler.core.inspection.invariants.validate_state", looks.append
    )
    duo.feed(Configure("validate", False))
    duo.feed(Continue())
    assert not looks
    duo.feed(Configure("validate", True))
    duo.feed(Continue())
    assert looks == [duo.state] * 2


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("turn_tasks_max", 5, AttributeError),
        ("worker_saturation", 0, ValueError),
        ("rebalance_measure", "x", ValueError),
    ],
)
def test_invalid_settings_are_refused(
    duo: Env, field: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        check_setting(duo.state, field, value)


def test_idle_requires_two_checks_in_a_row(duo: Env) -> None:
    duo.submit({"x": []})
    duo.feed(IdleCheck())
    assert duo.state.idle_since is None
    duo.finish("x")
    for since in (False, True, True):
        duo.feed(IdleCheck())
        assert (duo.state.idle_since is not None) == since
    duo.feed(IdleCheck(active=True))
    assert duo.state.idle_since is None
