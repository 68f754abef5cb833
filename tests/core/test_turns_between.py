"""Messages that arrive while the removal of a worker, of a client, or of all tasks is processed in turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.lifecycle import transitions
from paceline.scheduler.core.stimuli import (
    ClientJoined,
    ClientRemoved,
    Continue,
    ReleaseAll,
    RetryKeys,
    SetShare,
    WorkerJoined,
    WorkerRemoved,
)
from paceline.testing import Env

WIDTH = 36
KEYS: list[Any] = [("x", i) for i in range(WIDTH)]


def wide() -> dict[Any, list[Any]]:
    """Return many tasks, and one that depends on all of them."""
    return {**{key: [] for key in KEYS}, "total": list(KEYS)}


def crowd(**config: Any) -> Env:
    """Return an environment without queuing that handles three tasks per turn."""
    env = Env(turn_tasks_max=3, worker_saturation=float("inf"), **config)
    env.client("alice", "bob")
    env.join("w0", "w1", nthreads=2)
    return env


def turns(env: Env, count: int) -> None:
    for _ in range(count):
        if env.wants_continue:
            env.turn(Continue())


def join(env: Env, address: str) -> None:
    message = m.RegisterWorker(address=address, name=address, nthreads=2)
    env.turn(WorkerJoined(address, f"host-{address}", message), address)


def outcome(env: Env) -> dict[Any, str]:
    env.run_deferred()
    env.work()
    return {key: ts.state for key, ts in env.state.tasks.items()}


Between = Callable[[Env], None]

BETWEEN: dict[str, Between] = {
    "nothing": lambda env: None,
    "worker dies": lambda env: env.turn(WorkerRemoved("w1")),
    "worker leaves": lambda env: env.turn(WorkerRemoved("w1", expected=True)),
    "worker comes back": lambda env: join(env, "w0"),
    "client goes": lambda env: env.turn(ClientRemoved("alice"), "alice"),
    "client comes back": lambda env: env.turn(ClientJoined("alice"), "alice"),
    "cancel": lambda env: env.turn(m.CancelKeys(keys=["total", *KEYS[:9]], client="alice", force=True), "alice"),
    "release": lambda env: env.turn(m.ClientReleasesKeys(keys=["total"], client="alice"), "alice"),
    "desire": lambda env: env.turn(m.ClientDesiresKeys(keys=["total"], client="bob"), "bob"),
    "restart": lambda env: env.turn(ReleaseAll()),
}  # fmt: skip


def between(env: Env, what: str) -> None:
    if what.startswith("worker") and what != "worker comes back":
        if "w1" not in env.state.workers:
            return
    elif (what == "worker comes back" and "w0" in env.state.workers) or (
        what in ("cancel", "release") and "alice" not in env.state.clients
    ):
        return
    BETWEEN[what](env)


def everybody_leaves(env: Env) -> None:
    """Remove all clients, and check that no state is left."""
    for name in ("alice", "bob"):
        env.turn(ClientRemoved(name), name)
    env.feed(ClientRemoved("fire-and-forget"))
    assert not env.state.tasks and not env.state.task_groups
    assert not env.state.deferred
    assert all(not ws.processing and not ws.has_what for ws in env.state.workers.values())


@pytest.mark.parametrize("what", BETWEEN)
@pytest.mark.parametrize("turn", [0, 2, 7, 15])
@pytest.mark.parametrize("begun", ["processing", "memory"])
def test_while_a_worker_is_removed(what: str, turn: int, begun: str) -> None:
    env = crowd(allowed_failures=10)
    env.submit(wide(), want=["total", *KEYS[:9]])
    if begun == "memory":
        env.work()
    join(env, "w2")
    env.run_deferred()
    env.turn(WorkerRemoved("w0"))
    turns(env, turn)
    between(env, what)
    found = outcome(env)
    if what not in ("client goes", "cancel", "restart", "release", "desire"):
        assert found["total"] == "memory"
    elif what in ("client goes", "restart"):
        assert not found
    everybody_leaves(env)


@pytest.mark.parametrize("what", BETWEEN)
@pytest.mark.parametrize("turn", [0, 2, 7, 15])
@pytest.mark.parametrize("begun", ["processing", "memory"])
def test_while_a_client_is_removed(what: str, turn: int, begun: str) -> None:
    env = crowd()
    env.submit(wide(), want=["total", *KEYS])
    if begun == "memory":
        env.work()
    env.turn(ClientRemoved("alice"), "alice")
    assert "alice" not in env.state.clients
    turns(env, turn)
    between(env, what)
    found = outcome(env)
    if what == "desire":
        assert set(found) <= {"total", *KEYS}
    else:
        assert not found
    everybody_leaves(env)


@pytest.mark.parametrize("what", BETWEEN)
@pytest.mark.parametrize("turn", [0, 2, 7])
def test_while_many_dependencies_are_released(what: str, turn: int) -> None:
    env = crowd()
    env.submit(wide())
    for address in ("w0", "w1"):
        for key in env.processing(address):
            env.finish(key)
    key = "total"
    env.turn(env.finished(key), env.where(key))
    assert env.state.deferred.releases
    turns(env, turn)
    between(env, what)
    found = outcome(env)
    if what in ("nothing", "desire", "worker comes back", "client comes back"):
        assert found["total"] == "memory"
        assert set(found.values()) <= {"memory", "released"}
        assert list(found.values()).count("memory") == 1
    everybody_leaves(env)


@pytest.mark.parametrize("turn", [0, 1, 3, 8])
def test_restart_forgets_everything_before_the_next_graph(turn: int) -> None:
    env = crowd()
    env.submit(wide(), want=["total", *KEYS])
    old = env.task("total")
    env.take()
    env.turn(ReleaseAll())
    assert not env.state.tasks
    sent = env.take()
    assert "alice: restart" in sent
    freed = [line for line in sent if "free-keys" in line]
    assert len(freed) == 2
    turns(env, turn)
    for part in env.rows(wide(), client="bob"):
        env.turn(part, "bob")
    assert outcome(env)["total"] == "memory"
    assert old.state == "forgotten" and not old.dependencies
    everybody_leaves(env)


def test_all_tasks_of_a_crowded_worker_count_its_loss() -> None:
    env = crowd(allowed_failures=0)
    env.submit({key: [] for key in KEYS}, want=KEYS)
    for round_ in range(3):
        for address in list(env.state.workers):
            env.turn(WorkerRemoved(address))
        env.run_deferred()
        if round_ < 2:
            assert {ts.state for ts in env.state.tasks.values()} <= {"no-worker", "queued", "erred"}
        env.join(f"again-{round_}", nthreads=1)
    assert set(outcome(env).values()) == {"erred"}


def test_failed_transition_does_not_prevent_others_of_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug affects its own task, not others that are due in the same turn; on stock all of them stay as they were."""
    env = crowd()
    env.submit(
        {"a": [], "x": ["a"], "y": ["a"], "z": ["a"], "total": ["x", "z"]}, want=["y", "total"]
    )
    sound = transitions.TRANSITIONS["waiting", "processing"]

    def unsound(turn: Any, ts: Any, *more: Any) -> None:
        if ts.key == "y":
            raise ZeroDivisionError
        sound(turn, ts, *more)

    with monkeypatch.context() as broken:
        broken.setitem(transitions.TRANSITIONS, ("waiting", "processing"), unsound)
        with pytest.raises(ZeroDivisionError):
            env.finish("a")
        env.wants_continue = True  # requested in the turn whose output was lost
    env.checks = False  # y stays waiting
    env.run_deferred()
    env.work()
    assert env.states("y", "total") == ["waiting", "memory"]


def test_cap_is_set_while_tasks_of_a_removed_worker_are_released() -> None:
    env = Env(turn_tasks_max=3, worker_saturation=float("inf"))
    env.client("alice")
    env.join("w0", "w1")
    env.submit({("x", i): [] for i in range(20)})
    env.turn(WorkerRemoved("w0"))
    while env.wants_continue:
        env.turn(SetShare("alice", {"threads": 5}))
        env.turn(Continue())
    assert env.state.shares.groups["alice"].n_threads == 1


@pytest.mark.parametrize("turn", [0, 9, 16, 30])
def test_unneeded_row_that_fails_before_it_is_checked_is_forgotten(turn: int) -> None:
    """After the retry, `total` fails with `b`, and so does `extra`, which no client or task needs."""
    env = Env(turn_tasks_max=5, worker_saturation=float("inf"))
    env.client("alice", "bob")
    env.join("w0", "w1")
    env.submit({"a": [], "b": [], "total": ["a", "b"]}, want=["a", "b", "total"])
    env.fail("a", "b")
    env.run_deferred()
    for part in env.rows({"extra": ["total"], **dict.fromkeys(KEYS, ())}, want=KEYS, client="bob"):
        env.turn(part, "bob")
    turns(env, turn)
    env.turn(RetryKeys(["a"], "alice"), "alice")
    found = outcome(env)
    assert found["total"] == "erred"
    assert "extra" not in found
    everybody_leaves(env)
