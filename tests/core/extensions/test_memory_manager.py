"""Starting and stopping the active memory manager; tests/core/test_memory.py tests its decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.protocol.messages.extension_rpc import AmmHandler
from paceline.scheduler.core.stimuli import DataPlaced, Stimulus, WorkerJoined


def ask(world: Any, method: str):
    return world.request(AmmHandler(method=method)).reply


def with_copies(world: Any, count: int) -> dict[str, set[int]]:
    """Put `count` keys on two workers; return the keys that each receives in ``remove-replicas``."""
    dropped: dict[str, set[int]] = {"w0": set(), "w1": set()}
    handle = world.core.handle

    def noting(stimulus: Stimulus, now: float):
        outbox = handle(stimulus, now)
        for address, messages in outbox.workers.items():
            for message in messages:
                dropped[address].update(message.keys)
        return outbox

    world.core.handle = noting
    for name in dropped:
        joined = m.RegisterWorker(address=name, name=name, nthreads=1)
        world.feed(WorkerJoined(name, "host", joined), name)
    keys = range(count)
    world.feed(DataPlaced({k: list(dropped) for k in keys}, dict.fromkeys(keys, 8)), "")
    return dropped


@pytest.mark.pure
def test_it_runs_until_stopped(world: Any) -> None:
    dropped = with_copies(world, 3)
    assert ask(world, "running") is False
    world.advance(10)
    assert dropped == {"w0": set(), "w1": set()}
    assert ask(world, "start") is None
    assert ask(world, "start") is None
    assert ask(world, "running") is world.core.state.drops_replicas is True
    world.advance(2.1)
    assert dropped["w0"] | dropped["w1"] == {0, 1, 2}
    assert not dropped["w0"] & dropped["w1"]
    assert ask(world, "stop") is None
    assert ask(world, "stop") is None
    assert ask(world, "running") is world.core.state.drops_replicas is False


@pytest.mark.pure
def test_it_runs_periodically(world: Any) -> None:
    ask(world, "start")
    world.advance(60)
    dropped = with_copies(world, 1)
    world.advance(2.1)
    assert dropped["w0"] | dropped["w1"] == {0}


@pytest.mark.pure
def test_once(world: Any) -> None:
    dropped = with_copies(world, 3)
    assert ask(world, "run_once") is None
    assert dropped["w0"] | dropped["w1"] == {0, 1, 2}
    assert ask(world, "running") is False


@pytest.mark.pure
def test_many_take_several_turns(new_world: Callable[..., Any]) -> None:
    world = new_world(turn_tasks_max=10)
    dropped = with_copies(world, 35)
    ask(world, "run_once")
    assert len(dropped["w0"] | dropped["w1"]) == 10
    world.advance(0)
    assert len(dropped["w0"] | dropped["w1"]) == 35
    assert not world.timers


@pytest.mark.parametrize("method", ["_reduce", "handle", ""])
def test_other_methods_are_refused(world: Any, method: str) -> None:
    assert world.request(AmmHandler(method=method)).error[0] == "ValueError"
