"""Tasks that execute for long with little memory, and tasks that wait for a whole worker."""

from __future__ import annotations

import pytest
from paceline.scheduler.core.lifecycle.extra_runs import add_extra_run

from tests.core.test_whole_worker import LIMIT, cluster, die, on


@pytest.mark.parametrize(
    ("seconds", "memory", "kept"), [(11, 40, False), (11, 60, True), (9, 40, True)]
)
def test_a_task_that_takes_little_memory_for_long_does_not_keep_the_worker(
    seconds: float, memory: int, kept: bool
) -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    die(env, env.where("x"))
    env.tick()
    here = env.where("x")
    limit = env.worker(here).memory_limit
    metrics = {"memory": limit * memory // 100}
    env.heartbeat(here, executing={"x": float(seconds)}, metrics=metrics)
    env.tick()
    assert (env.worker(here) not in env.state.running) == kept


def test_a_run_that_was_given_up_is_not_light() -> None:
    env = cluster("w0", "w1", nthreads=2)
    env.submit({"x": []}, annotations={"x": on(env, "w0")})
    add_extra_run(env.state, env.worker("w1"), "hung", env.task("x").account)
    die(env, "w0")
    env.tick()
    assert env.states("x") == ["no-worker"]


@pytest.mark.parametrize("joins", [True, False])
def test_a_task_does_not_wait_for_a_light_one_to_end(joins: bool) -> None:
    """Send it to a worker that became empty, or to that of the light task."""
    env = cluster("w0", "w1", nthreads=2)
    env.submit({"light": [], "x": []}, annotations={"light": on(env, "w1"), "x": on(env, "w0")})
    die(env, "w0")
    env.heartbeat("w1", executing={"light": 5.0}, metrics={"memory": LIMIT // 4})
    env.tick()
    assert env.states("x") == ["no-worker"]
    if joins:
        env.join("w2", nthreads=2, memory_limit=LIMIT)
    else:
        env.heartbeat("w1", executing={"light": 11.0}, metrics={"memory": LIMIT // 4})
    env.tick()
    assert env.where("x") == ("w2" if joins else "w1")
