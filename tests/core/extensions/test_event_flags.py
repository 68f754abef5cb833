"""Events: set, clear, wait."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.extensions import event_flags


def set_(world: Any, name: Any = "e") -> None:
    assert world.request(m.EventSet(name=name)).reply is None


def clear(world: Any, name: Any = "e") -> None:
    assert world.request(m.EventClear(name=name)).reply is None


def is_set(world: Any, name: Any = "e") -> Any:
    return world.request(m.EventIsSet(name=name)).reply


def wait(world: Any, timeout: float | None = None, name: Any = "e") -> Any:
    return world.request(m.EventWait(name=name, timeout=timeout))


def test_set_and_clear(world: Any) -> None:
    assert is_set(world) is False
    clear(world)
    set_(world)
    set_(world)
    assert is_set(world) is True
    clear(world)
    assert is_set(world) is False


def test_waiters_are_served_in_order(world: Any) -> None:
    waiting = [wait(world) for _ in range(3)]
    other = wait(world, name="f")
    set_(world)
    assert [asked.reply for asked in waiting] == [True] * 3
    assert world.answered[-4:-1] == [asked.request_id for asked in waiting]
    assert other.waits
    assert wait(world).reply is True


def test_set_and_clear_at_once_serves_waiters(world: Any) -> None:
    early = wait(world)
    set_(world)
    clear(world)
    assert early.reply is True
    assert wait(world).waits


def test_deadline(world: Any) -> None:
    assert wait(world, timeout=0).reply is False
    late = wait(world, timeout=1)
    world.advance(1.1)
    assert late.reply is False
    set_(world)
    assert wait(world, timeout=0).reply is True


def test_served_waiters_have_no_deadline(world: Any) -> None:
    asked = wait(world, timeout=1)
    set_(world)
    assert world.pending_timers() == 0
    world.advance(2)
    assert asked.reply is True


def test_dead_waiter(world: Any) -> None:
    asked = wait(world, timeout=1)
    world.disconnect(asked)
    set_(world)
    assert asked.waits
    assert world.pending_timers() == 0


def test_nothing_is_left_after_close(world: Any) -> None:
    for at in range(5):
        waiting = wait(world, name=["e", at])
        set_(world, name=("e", at))
        clear(world, name=["e", at])
        assert waiting.reply is True
    extension = world.core.extensions["events"]
    assert not extension._set
    assert len(extension._waiting) == 0


def test_limit(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_flags, "SET_EVENTS_MAX", 1)
    set_(world)
    set_(world)
    assert world.request(m.EventSet(name="f")).error[0] == "RuntimeError"
