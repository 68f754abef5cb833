"""Share groups: ready tasks that are sent at once, although several groups have work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paceline.protocol.keys import Key
from paceline.scheduler.core.policy.fairness import AHEAD_TASKS
from paceline.testing import Env

from tests.support.shares import tasks

MakeEnv = Callable[..., Env]
PAIR: dict[Key, list[Key]] = {("a", 0): [], ("c", 0): [("a", 0)]}


def one_thread(make_env: MakeEnv, **config: Any) -> Env:
    """Return a cluster of one thread, with a slot for one task, and the clients alice and bob."""
    env = make_env(worker_saturation=1.0, **config)
    env.client("bob")
    env.join("w0")
    return env


@pytest.mark.parametrize(
    ("seconds", "groups", "first"),
    [
        (0.001, {}, ("c", 0)),
        (1.0, {}, ("b", 0)),
        (0.001, {"bob": {"class": 1}}, ("b", 0)),
        (1.0, {"alice": {"class": 1}}, ("c", 0)),
        (0.001, {"alice": {"tasks": 5}}, ("b", 0)),
    ],
)
def test_group_goes_on_with_its_data_until_it_is_ahead(
    make_env: MakeEnv, seconds: float, groups: dict[str, Any], first: Key
) -> None:
    env = one_thread(make_env, shares_groups=groups)
    env.submit(PAIR)
    env.submit(tasks("b", 3), client="bob")
    env.finish(("a", 0), seconds=seconds)
    assert env.processing("w0") == [first]


def test_task_does_not_overtake_earlier_tasks_of_its_group(make_env: MakeEnv) -> None:
    env = one_thread(make_env)
    env.submit(PAIR)
    env.submit(tasks("b", 3), client="bob")
    env.submit(tasks("earlier", 1))
    assert env.state.tasks["earlier", 0].priority < env.state.tasks["c", 0].priority
    env.finish(("a", 0), seconds=0.001)
    assert env.states(("c", 0), ("earlier", 0)) == ["queued", "queued"]


@pytest.mark.parametrize(("seconds", "n_sent"), [(0.0001, AHEAD_TASKS), (0.1, 0)])
def test_worker_gets_several_short_tasks_at_once(
    make_env: MakeEnv, seconds: float, n_sent: int
) -> None:
    env = one_thread(make_env)
    env.submit({"c": []})
    env.finish("c", seconds=seconds)
    wide = {(f"c-{i:032x}", 0): [("a", 0)] for i in range(AHEAD_TASKS + 2)}
    env.submit({("a", 0): [], **wide})
    env.submit(tasks("b", 3), client="bob")
    env.finish(("a", 0), seconds=0.0001)
    assert sum(env.state.tasks[key].state == "processing" for key in wide) == n_sent
    assert sum(env.state.tasks[key].state == "queued" for key in wide) == len(wide) - n_sent
