"""Keys of clients whose connection breaks without closing are retained for a while, if configured."""

from __future__ import annotations

from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core.instructions import CloseScheduler
from paceline.testing import Env


def patient(seconds: float = 60.0, **options: Any) -> Env:
    env = Env(client_grace_seconds=seconds, **options)
    env.client("alice")
    env.join("w0", nthreads=2)
    env.take()
    return env


def holders(env: Env, key: str) -> list[str]:
    return [cs.client_key for cs in env.state.tasks[key].who_wants]


def test_no_retention_by_default(duo: Env) -> None:
    duo.submit({"x": []})
    duo.finish("x")
    duo.leave("alice")
    assert not duo.state.tasks


def test_results_and_running_tasks_are_retained() -> None:
    env = patient()
    env.submit({"x": [], "y": ["x"]}, want=["x", "y"])
    env.finish("x")
    env.take()
    env.leave("alice")
    env.expect()  # no worker receives free-keys
    assert env.states("x", "y") == ["memory", "processing"]
    env.finish("y")
    env.take()
    env.client("bob")
    env.desire("x", "y", client="bob")
    env.expect("bob: key-in-memory x", "bob: key-in-memory y")
    env.tick(61)
    assert env.states("x", "y") == ["memory", "memory"]
    assert holders(env, "x") == ["bob"]
    assert not [name for name in env.state.clients if name.startswith("retained-")]


def test_retained_keys_are_released_after_grace_period() -> None:
    env = patient()
    env.submit({"x": []})
    env.finish("x")
    env.leave("alice")
    env.take()
    env.tick(59)
    env.expect()
    env.tick(1)
    env.expect("w0: free-keys x")
    assert not env.state.tasks


def test_same_client_may_leave_repeatedly() -> None:
    env = patient()
    for key in ("x", "y"):
        env.submit({key: []})
        env.finish(key)
        env.leave("alice")
        env.client("alice")
    assert len([name for name in env.state.clients if name.startswith("retained-alice")]) == 2
    env.tick(60)
    assert not env.state.tasks
    assert set(env.state.clients) == {"fire-and-forget", "alice"}


def test_closed_client_has_no_grace_period() -> None:
    env = patient()
    env.submit({"x": []})
    env.finish("x")
    env.feed(m.CloseClient(), "alice")
    env.leave("alice")
    assert not env.state.tasks


def test_client_inside_a_task_retains_nothing() -> None:
    env = patient()
    env.client("Client-worker-1")
    env.submit({"x": []}, client="Client-worker-1")
    env.finish("x")
    env.leave("Client-worker-1")
    assert not env.state.tasks


def test_retention_limit_releases_oldest_client_first() -> None:
    env = patient(client_grace_nbytes=150)
    for name, key in (("alice", "x"), ("bob", "y")):
        env.client(name)
        env.submit({key: []}, client=name)
        env.finish(key, nbytes=100)
        env.leave(name)
    env.tick(1)
    assert set(env.state.tasks) == {"y"}


def test_retained_keys_do_not_prevent_idle_timeout() -> None:
    env = patient(10.0, idle_timeout_seconds=15.0)
    env.submit({"x": []})
    env.finish("x")
    env.leave("alice")
    asked: list[Any] = []
    for _ in range(20):
        env.tick(1)
        asked += [i for i in env.outbox.instructions if type(i) is CloseScheduler]
    assert not env.state.tasks
    assert asked
