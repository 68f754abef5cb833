"""The transition table: every pair of states is in it, impossible for a reason, or goes through released;
and every transition in it is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.lifecycle.transitions import (
    TRANSITIONS,
    Failure,
    Recs,
    transition,
)
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.task_states import IMPOSSIBLE, TASK_STATES
from paceline.scheduler.core.stimuli import AnnotationSet
from paceline.scheduler.core.turn import Outbox, Turn
from paceline.testing import Env, Graph, fake_error

PAIRS = [(start, finish) for start in TASK_STATES for finish in TASK_STATES if start != finish]
THROUGH_RELEASED = [
    (start, finish)
    for start, finish in PAIRS
    if (start, finish) not in TRANSITIONS and (start, finish) not in IMPOSSIBLE
]


def test_every_pair_is_listed() -> None:
    assert not TRANSITIONS.keys() & IMPOSSIBLE.keys()
    assert TRANSITIONS.keys() | IMPOSSIBLE.keys() <= set(PAIRS)
    for start, finish in THROUGH_RELEASED:
        assert (start, "released") in TRANSITIONS, (start, finish)
        assert ("released", finish) in TRANSITIONS, (start, finish)


def test_functions_are_named_after_their_pair() -> None:
    """Functions that serve several pairs have another name."""
    uses = Counter(TRANSITIONS.values())
    for (start, finish), function in TRANSITIONS.items():
        expected = f"transition_{start}_{finish}".replace("-", "_")
        assert function.__name__ == expected or uses[function] > 1


# ------------------------------------------------------------------ a task in each state


def released(env: Env) -> None:
    """x is known only as the dependency of y, which is in memory."""
    env.join("w0")
    env.submit({"x": [], "y": ["x"]})
    env.work()


def waiting(env: Env) -> None:
    env.join("w0")
    env.submit({"a": [], "x": ["a"], "y": ["x"]}, want=["x", "y"])


def no_worker(env: Env) -> None:
    env.join("w0", status="paused")
    env.submit({"x": [], "y": ["x"]}, want=["x", "y"])


def queued(env: Env) -> None:
    env.submit({"x": [], "y": ["x"]}, want=["x", "y"])


def processing(env: Env) -> None:
    env.join("w0")
    env.submit({"x": [], "y": ["x"]}, want=["x", "y"])


def memory(env: Env) -> None:
    processing(env)
    env.finish("x")


def erred(env: Env) -> None:
    processing(env)
    env.fail("x")


STARTS: dict[str, Callable[[Env], None]] = {
    "released": released,
    "waiting": waiting,
    "no-worker": no_worker,
    "queued": queued,
    "processing": processing,
    "memory": memory,
    "erred": erred,
}


@pytest.mark.parametrize("start", STARTS)
def test_a_task_in_each_state(env: Env, start: str) -> None:
    STARTS[start](env)
    assert env.states("x") == [start]


# ------------------------------------------------------------------ every transition of the table, by stimuli


def lose_data(env: Env) -> None:
    env.feed(m.ReleaseWorkerData(key="x"), "w0")


WAYS: dict[tuple[str, str], Callable[[Env], str]] = {}


def way(start: str, finish: str) -> Callable[[Callable[[Env], str]], Callable[[Env], str]]:
    """Register a function that moves a task from one state directly to another, and returns its key."""

    def mark(function: Callable[[Env], str]) -> Callable[[Env], str]:
        WAYS[start, finish] = function
        return function

    return mark


@way("released", "waiting")
def _(env: Env) -> str:
    queued(env)
    return "x"


@way("released", "erred")
def _(env: Env) -> str:
    env.join("w0")
    env.submit({"bad": []})
    env.fail("bad")
    env.submit({"x": ["bad"]})
    return "x"


@way("released", "forgotten")
def _(env: Env) -> str:
    released(env)
    env.release("y")
    return "x"


@way("waiting", "processing")
def _(env: Env) -> str:
    waiting(env)
    env.finish("a")
    return "x"


@way("waiting", "released")
def _(env: Env) -> str:
    waiting(env)
    env.release("x", "y")
    return "x"


@way("waiting", "erred")
def _(env: Env) -> str:
    waiting(env)
    env.fail("a")
    return "x"


@way("queued", "processing")
def _(env: Env) -> str:
    queued(env)
    env.join("w0")
    return "x"


@way("queued", "released")
def _(env: Env) -> str:
    queued(env)
    env.release("x", "y")
    return "x"


@way("queued", "erred")
def _(env: Env) -> str:
    env.state.config.no_workers_timeout_seconds = 1
    queued(env)
    env.tick(0)
    env.tick(2)
    return "x"


@way("no-worker", "processing")
def _(env: Env) -> str:
    no_worker(env)
    env.status("w0", "running")
    return "x"


@way("no-worker", "released")
def _(env: Env) -> str:
    no_worker(env)
    env.release("x", "y")
    return "x"


@way("no-worker", "erred")
def _(env: Env) -> str:
    env.state.config.no_workers_timeout_seconds = 1
    no_worker(env)
    env.tick(2)
    return "x"


@way("processing", "memory")
def _(env: Env) -> str:
    memory(env)
    return "x"


@way("processing", "released")
def _(env: Env) -> str:
    processing(env)
    env.feed(m.Reschedule(key="x"), "w0")
    return "x"


@way("processing", "erred")
def _(env: Env) -> str:
    erred(env)
    return "x"


@way("memory", "released")
def _(env: Env) -> str:
    memory(env)
    lose_data(env)
    return "x"


@way("memory", "erred")
def _(env: Env) -> str:
    env.join("w0")
    env.submit({"x": []}, commit={"actors": True})
    env.finish("x")
    env.lose("w0")
    return "x"


@way("memory", "forgotten")
def _(env: Env) -> str:
    env.join("w0")
    env.submit({"x": []})
    env.finish("x")
    env.release("x")
    return "x"


@way("erred", "released")
def _(env: Env) -> str:
    erred(env)
    env.release("y", "x")
    return "x"


@pytest.mark.parametrize("pair", TRANSITIONS)
def test_every_listed_transition_is_made(env: Env, pair: tuple[str, str]) -> None:
    key = WAYS[pair](env)
    gone = {(start, finish) for k, start, finish, *_ in env.state.transition_log if k == key}
    # waiting -> processing ends in queued or no-worker if no worker has room
    assert pair in gone


# ------------------------------------------------------------------ the others


def go(env: Env, ts: TaskState, finish: str) -> None:
    """Make one transition without its recommendations."""
    turn = Turn(env.state, Outbox(), env.now, "", "test")
    recs: Recs = {}
    detail = Failure(cause=ts, exception=fake_error("boom")) if finish == "erred" else None
    transition(turn, ts, finish, recs, detail)


@pytest.mark.parametrize(("start", "finish"), THROUGH_RELEASED)
def test_transition_through_released(start: str, finish: str) -> None:
    env = Env()
    env.client("alice")
    STARTS[start](env)
    ts = env.task("x")
    if finish == "forgotten":
        for cs in list(ts.who_wants):
            env.checks = False
            del cs.wants_what[ts]
        ts.who_wants = ()
        ts.has_lost_dependencies = True
    go(env, ts, finish)
    log = [entry[1:3] for entry in env.state.transition_log if entry[0] == "x"]
    assert log[-2] == (start, "released")
    assert log[-1][0] == "released"
    assert ts.state in (finish, "processing", "queued")


@pytest.mark.parametrize("pair", [p for p in IMPOSSIBLE if p[0] != "forgotten"])
def test_impossible_transitions(pair: tuple[str, str]) -> None:
    """Refuse the transition or release the task, which never reaches the requested state."""
    start, finish = pair
    env = Env()
    env.client("alice")
    STARTS[start](env)
    ts = env.task("x")
    env.checks = False
    try:
        go(env, ts, finish)
    except AssertionError:
        return
    assert ts.state != finish


def test_no_transition_leaves_forgotten(env: Env) -> None:
    processing(env)
    ts = env.task("x")
    env.release("x", "y")
    assert ts.state == "forgotten"
    for finish in TASK_STATES:
        go(env, ts, finish)
        assert ts.state == "forgotten"


def test_the_log_is_bounded(env: Env) -> None:
    env.join("w0")
    log = env.state.transition_log
    assert log.maxlen == env.config.low_level_log_length
    assert env.state.transition_counter == 0
    env.submit({"x": []}, annotations={"x": AnnotationSet(retries=1)})
    assert [entry[:3] for entry in log] == [
        ("x", "released", "waiting"),
        ("x", "waiting", "processing"),
    ]


def test_inputs_are_released_with_a_task_that_has_finished_dependents(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"], "done": ["y"]})
    duo.work()
    duo.submit({"x": [], "y": ["x"], "z": ["y"]}, ["z"])
    duo.finish("x")
    assert duo.states("x", "y", "z") == ["memory", "processing", "waiting"]
    duo.release("z")
    assert duo.states("x", "y", "z", "done") == ["released", "released", "forgotten", "memory"]


def test_failure_does_not_reach_finished_dependents(duo: Env) -> None:
    graph: Graph = {"x": [], "y": ["x"], "done": ["y"]}
    duo.submit(graph)
    duo.work()
    duo.client("bob")
    duo.desire("x", client="bob")
    duo.fail("x")
    assert duo.states("x", "y", "done") == ["erred", "released", "memory"]
    duo.submit({**graph, "z": ["y"]}, ["z"])
    assert duo.states("x", "y", "z", "done") == ["erred", "erred", "erred", "memory"]
