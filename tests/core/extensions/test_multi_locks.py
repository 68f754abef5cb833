"""MultiLocks: all or some of several locks at once."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.extensions import multi_locks


def acquire(
    world: Any,
    user: Any,
    locks: list[Any] | set[Any],
    number: int | None = None,
    timeout: Any = None,
) -> Any:
    message = m.MultiLockAcquire(
        locks=locks, id=user, timeout=timeout, num_locks=number or len(locks)
    )
    return world.request(message)


def release(world: Any, user: Any) -> Any:
    return world.request(m.MultiLockRelease(id=user))


@pytest.fixture(autouse=True)
def nothing_is_left(world: Any) -> Any:
    """After each test, release all requests and check that no state is left."""
    yield
    extension = world.core.extensions["multi_locks"]
    for user in list(extension._requests):
        if user in extension._requests:
            assert release(world, user).reply is None
    assert not extension._queues
    assert len(extension._waiting) == 0
    assert world.pending_timers() == 0


def test_one_lock(world: Any) -> None:
    assert acquire(world, 1, ["a"]).reply is True
    second, third = acquire(world, 2, ["a"]), acquire(world, 3, ["a"])
    assert release(world, 1).reply is None
    assert second.reply is True
    assert third.waits
    release(world, 2)
    assert third.reply is True


def test_names_in_a_set(world: Any) -> None:
    assert acquire(world, 1, {"a", "b"}).reply is True
    assert acquire(world, 2, ["b"], timeout=0).reply is False


def test_all_locks_are_needed(world: Any) -> None:
    acquire(world, 1, ["a"])
    acquire(world, 2, ["b"])
    both = acquire(world, 3, ["a", "b"])
    release(world, 1)
    assert both.waits
    release(world, 2)
    assert both.reply is True


def test_holding_some_keeps_others_out(world: Any) -> None:
    acquire(world, 1, ["a"])
    both = acquire(world, 2, ["a", "b"])
    other = acquire(world, 3, ["b"])
    assert both.waits and other.waits
    release(world, 1)
    assert both.reply is True and other.waits
    release(world, 2)
    assert other.reply is True


def test_deadline_grants_the_next_request(world: Any) -> None:
    acquire(world, 1, ["x"])
    both = acquire(world, 2, ["x", "y"], timeout=0.5)
    other = acquire(world, 3, ["y"])
    assert other.waits
    world.advance(0.6)
    assert both.reply is False
    assert other.reply is True


def test_timeout_zero(world: Any) -> None:
    acquire(world, 1, ["x"])
    assert acquire(world, 2, ["x", "y"], timeout=0).reply is False
    assert acquire(world, 3, ["y"], timeout=0).reply is True


def test_some_of_the_locks(world: Any) -> None:
    """As in stock's test_num_locks."""
    assert acquire(world, 1, ["a", "b", "c"], 1).reply is True
    assert acquire(world, 2, ["a", "b", "c"], 2).reply is True
    third = acquire(world, 3, ["a", "b", "c", "d"], 3)
    release(world, 1)
    assert third.waits
    release(world, 2)
    assert third.reply is True


def test_the_shortest_queue_first(world: Any) -> None:
    acquire(world, 1, ["a"])
    acquire(world, 2, ["a"])
    assert acquire(world, 3, ["a", "b"], 1).reply is True
    assert acquire(world, 4, ["b"], timeout=0).reply is False


def test_granted_requests_leave_other_queues(world: Any) -> None:
    acquire(world, 1, ["a"])
    acquire(world, 2, ["b"])
    one = acquire(world, 3, ["a", "b"], 1)
    release(world, 1)
    assert one.reply is True
    release(world, 2)
    assert acquire(world, 4, ["b"], timeout=0).reply is True


def test_dead_waiter(world: Any) -> None:
    acquire(world, 1, ["x"])
    both = acquire(world, 2, ["x", "y"], timeout=100)
    other = acquire(world, 3, ["y"])
    world.disconnect(both)
    assert other.reply is True
    assert acquire(world, 2, ["z"]).reply is True, "its id can be used again"


def test_errors_of_stock(world: Any) -> None:
    assert acquire(world, 1, ["a"]).reply is True
    assert acquire(world, 1, ["b"]).error == ("AssertionError", "")
    assert acquire(world, 2, ["a"], 2).error == ("AssertionError", "")
    assert acquire(world, 2, [], 0).error == ("AssertionError", "")
    assert release(world, "what").error == ("KeyError", "what")


def test_release_after_a_deadline(world: Any) -> None:
    """Stock's MultiLock considers itself locked even after a timeout."""
    acquire(world, 1, ["a"])
    assert acquire(world, "late", ["a"], timeout=0).reply is False
    assert release(world, "late").error == ("KeyError", "late")


def test_release_while_waiting(world: Any) -> None:
    acquire(world, 1, ["a"])
    asked = acquire(world, 2, ["a"])
    release(world, 2)
    assert asked.reply is False


def test_a_lock_named_twice(world: Any) -> None:
    assert acquire(world, 1, ["a", "a"], 2).reply is True
    second = acquire(world, 2, ["a", "b", "a"])
    release(world, 1)
    assert second.reply is True


def test_too_many(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_locks, "LOCKS_PER_REQUEST_MAX", 2)
    monkeypatch.setattr(multi_locks, "REQUESTS_MAX", 1)
    assert acquire(world, 1, ["a", "b", "c"]).error[0] == "RuntimeError"
    assert acquire(world, 1, ["a", "b"]).reply is True
    assert acquire(world, 2, ["c"]).error[0] == "RuntimeError"


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(world: Any, seed: int) -> None:
    """No two of many random users hold the same lock, and all requests are granted eventually."""
    import random

    rng = random.Random(seed)
    held: dict[int, list[str]] = {}
    waiting: dict[int, Any] = {}
    extension = world.core.extensions["multi_locks"]
    for user in range(60):
        locks = rng.sample("abcdef", rng.randint(1, 4))
        waiting[user] = acquire(world, user, locks, rng.randint(1, len(locks)))
        settle(extension, waiting, held)
        while held and rng.random() < 0.45:
            done = rng.choice(sorted(held))
            del held[done]
            release(world, done)
            settle(extension, waiting, held)
    while held:
        done = min(held)
        del held[done]
        release(world, done)
        settle(extension, waiting, held)
    assert not waiting


def settle(extension: Any, waiting: dict[int, Any], held: dict[int, list[str]]) -> None:
    """Record granted requests and check that no lock has two holders."""
    for user in [user for user, asked in waiting.items() if not asked.waits]:
        assert waiting.pop(user).reply is True
        held[user] = []
    owned = [lock for user in held for lock in extension._requests[user].locks]
    assert len(owned) == len(set(owned))
