"""Semaphores and locks: leases, queues, deadlines, holders that die."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.extensions import semaphores


def register(world: Any, leases: int = 1, timeout: float | None = 30.0, name: Any = "s") -> Any:
    return world.request(m.SemaphoreRegister(name=name, max_leases=leases, lease_timeout=timeout))


def acquire(world: Any, lease: str, timeout: Any = None, name: Any = "s") -> Any:
    return world.request(m.SemaphoreAcquire(name=name, timeout=timeout, lease_id=lease))


def release(world: Any, lease: str, name: Any = "s") -> None:
    assert world.request(m.SemaphoreRelease(name=name, lease_id=lease)).reply is None


def refresh(world: Any, *leases: str, name: Any = "s") -> None:
    assert world.request(m.SemaphoreRefreshLeases(name=name, lease_ids=list(leases))).reply is None


def value(world: Any, name: Any = "s") -> Any:
    return world.request(m.SemaphoreValue(name=name)).reply


def extension(world: Any) -> Any:
    return world.core.extensions["semaphores"]


def test_leases_are_counted(world: Any) -> None:
    register(world, 2)
    assert acquire(world, "a").reply is True
    assert acquire(world, "b").reply is True
    assert value(world) == 2
    assert acquire(world, "c", timeout=0).reply is False
    release(world, "a")
    assert value(world) == 1
    assert acquire(world, "c", timeout=0).reply is True


def test_first_come_first_served(world: Any) -> None:
    register(world)
    acquire(world, "a")
    line = [acquire(world, lease) for lease in "bcd"]
    for at, lease in enumerate("abc"):
        assert [asked.waits for asked in line] == [False] * at + [True] * (3 - at)
        release(world, lease)
        assert line[at].reply is True


def test_repeated_requests_for_a_lease_are_granted_together(world: Any) -> None:
    """A stock client repeats a request, with the same lease, if its connection is lost."""
    register(world)
    acquire(world, "a")
    first, other, repeated = (acquire(world, lease) for lease in "bcb")
    release(world, "a")
    assert first.reply is repeated.reply is True and other.waits
    assert value(world) == 1
    release(world, "b")
    assert other.reply is True


def test_requests_do_not_overtake_waiters(world: Any) -> None:
    register(world)
    acquire(world, "a")
    waiting = acquire(world, "b")
    release(world, "a")
    assert waiting.reply is True
    assert acquire(world, "c", timeout=0).reply is False


def test_deadline(world: Any) -> None:
    register(world)
    acquire(world, "a")
    late = acquire(world, "b", timeout=0.5)
    world.advance(0.4)
    assert late.waits
    world.advance(0.2)
    assert late.reply is False
    release(world, "a")
    assert value(world) == 0


def test_timeout_may_be_text(world: Any) -> None:
    register(world)
    acquire(world, "a")
    late = acquire(world, "b", timeout="25ms")
    world.advance(0.03)
    assert late.reply is False


def test_acquiring_a_lease_again(world: Any) -> None:
    """A client whose connection broke acquires the same lease again."""
    register(world)
    assert acquire(world, "a").reply is True
    assert acquire(world, "a").reply is True
    assert value(world) == 1
    lost = acquire(world, "b")
    world.disconnect(lost)
    again = acquire(world, "b")
    release(world, "a")
    assert again.reply is True
    assert lost.waits


def test_a_dead_waiter_gets_nothing(world: Any) -> None:
    register(world)
    acquire(world, "a")
    dead, alive = acquire(world, "b", timeout=50), acquire(world, "c")
    world.disconnect(dead)
    release(world, "a")
    assert alive.reply is True
    assert value(world) == 1


def test_unknown_semaphore(world: Any) -> None:
    error = ("RuntimeError", "Semaphore or Lock `s` not known.")
    assert acquire(world, "a").error == error
    assert value(world) == 0
    release(world, "a")
    assert world.lines[-1] == "Tried to release Lock or Semaphore `s` but it is not known."


def test_registering_again_must_agree(world: Any) -> None:
    assert register(world, 2).reply is None
    assert register(world, 2).reply is None
    assert register(world, 3).error == ("ValueError", "Inconsistent max leases: 3, expected: 2")


def test_name_as_list(world: Any) -> None:
    register(world, name=["a", "b"])
    assert acquire(world, "x", name=("a", "b")).reply is True
    assert value(world, name=["a", "b"]) == 1


def test_unrefreshed_leases_expire(world: Any) -> None:
    register(world, timeout=30.0)
    acquire(world, "a")
    waiting = acquire(world, "b")
    world.advance(29)
    refresh(world, "a")
    world.advance(29)
    assert waiting.waits
    world.advance(12)
    assert waiting.reply is True
    assert value(world) == 1


def test_leases_without_timeout_never_expire(world: Any) -> None:
    register(world, timeout=None)
    acquire(world, "a")
    assert world.pending_timers() == 0
    world.advance(10_000)
    assert value(world) == 1


def test_no_timer_runs_without_leases(world: Any) -> None:
    register(world)
    acquire(world, "a")
    assert world.pending_timers() == 1
    release(world, "a")
    world.advance(11)
    assert world.pending_timers() == 0
    acquire(world, "b")
    assert world.pending_timers() == 1


def test_releasing_an_expired_lease(world: Any) -> None:
    register(world)
    acquire(world, "a")
    world.advance(60)
    assert value(world) == 0
    release(world, "a")
    assert "it was already released: name='s', lease_id='a'" in world.lines[-1]


def test_refreshing_an_expired_lease_overbooks(world: Any) -> None:
    register(world)
    acquire(world, "a")
    waiting = acquire(world, "b", timeout=45)
    world.advance(41)
    assert waiting.reply is True
    refresh(world, "a", "b")
    assert "Refreshing an unknown lease ID a for s" in world.lines[-1]
    assert value(world) == 2
    third = acquire(world, "c")
    release(world, "a")
    assert third.waits, "one lease is still too many"
    release(world, "b")
    assert third.reply is True


def test_refreshing_an_unknown_semaphore_stores_nothing(world: Any) -> None:
    refresh(world, "a")
    assert value(world) == 0
    assert not extension(world).leases


def test_close(world: Any) -> None:
    register(world)
    acquire(world, "a")
    forever, limited = acquire(world, "b"), acquire(world, "c", timeout=5)
    assert world.request(m.SemaphoreClose(name="s")).reply is None
    assert world.lines[-2:] == [
        "Closing semaphore s but there remain unreleased leases ['a']",
        "Closing semaphore s but there remain pending leases",
    ]
    assert forever.error == ("RuntimeError", "Semaphore or Lock `s` not known.")
    assert acquire(world, "d").error == forever.error
    register(world)
    assert limited.waits
    world.advance(6)
    assert limited.reply is False
    assert world.request(m.SemaphoreClose(name="s")).reply is None
    assert world.request(m.SemaphoreClose(name="s")).reply is None
    stored = extension(world)
    assert not stored.leases and not stored.max_leases and not stored.lease_timeouts
    assert not any(stored.metrics.values())


def test_metrics(world: Any) -> None:
    register(world, 1)
    metrics = extension(world).metrics
    acquire(world, "a")
    acquire(world, "b")
    gone = acquire(world, "c")
    assert metrics["pending"]["s"] == 2
    world.advance(4)
    world.disconnect(gone)
    release(world, "a")
    assert metrics["pending"]["s"] == 0
    assert metrics["acquire_total"]["s"] == 2
    assert metrics["release_total"]["s"] == 1
    assert metrics["average_pending_lease_time"]["s"] == pytest.approx(2.0)
    assert metrics["pending"]["unheard of"] == 0
    assert "unheard of" not in metrics["pending"]


def test_max_leases_must_be_a_number(world: Any) -> None:
    assert register(world, "two").error == ("AssertionError", "two")  # type: ignore[arg-type]


def test_limits(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semaphores, "SEMAPHORES_MAX", 1)
    monkeypatch.setattr(semaphores, "UNKNOWN_LEASES_MAX", 2)
    register(world)
    assert register(world, name="t").error[0] == "RuntimeError"
    refresh(world, *"abcde")
    assert value(world) == 3


def test_many_waiters(world: Any) -> None:
    register(world, 3)
    asked = [acquire(world, f"lease-{i}") for i in range(300)]
    for i in range(300):
        release(world, f"lease-{i}")
    assert all(a.reply is True for a in asked)
    assert world.answered.index(asked[-1].request_id) > world.answered.index(asked[-2].request_id)
    assert value(world) == 0
