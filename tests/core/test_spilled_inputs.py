"""Admission by memory while workers have spilled inputs of tasks."""

from __future__ import annotations

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.policy import admission
from paceline.testing import Env

from tests.support.annotations import on
from tests.support.memory import MB, beat, cluster, learn


def test_the_input_of_a_running_task_is_in_memory() -> None:
    env = cluster(1, nthreads=2)  # 220 MB for results
    learn(env, "use", MB)
    env.submit({"shared": []})
    env.finish("shared", nbytes=150 * MB)
    beat(env, "w0", 210, spilled=150)
    env.submit({"use-1": ["shared"], "use-2": ["shared"]})
    assert admission.missing_nbytes(env.state, env.task("use-2"), env.worker("w0")) == 0
    assert env.states("use-1", "use-2") == ["processing", "processing"]


def test_a_part_of_what_is_released_had_been_spilled() -> None:
    """Otherwise x-2 would fit as well until the next heartbeat."""
    env = cluster(1)  # 220 MB for results
    learn(env, "x", 90 * MB)
    keys = [f"held-{i}" for i in range(6)]
    env.submit({key: [] for key in keys})
    for key in keys:
        env.finish(key, nbytes=50 * MB)
    beat(env, "w0", 160, spilled=200)
    w0 = env.worker("w0")
    env.release(*keys[:3])
    assert (w0.nbytes, w0.spilled_nbytes) == (150 * MB, pytest.approx(100 * MB))
    env.submit({"x-1": []})
    env.submit({"x-2": []})
    assert env.states("x-1", "x-2") == ["processing", "queued"]
    env.release(*keys[3:])
    assert (w0.nbytes, w0.spilled_nbytes) == (0, 0)


def run_work(env: Env) -> None:
    """Let w1 finish a task of bob."""
    key = env.processing("w1")[0]
    env.finish(key, nbytes=30 * MB, seconds=1.0)
    env.release(key, client="bob")
    beat(env, "w0", 60, spilled=240)
    env.tick(1.0)


def test_spilled_inputs_of_any_size_may_be_read_by_an_idle_worker() -> None:
    """Check that the sum starts while one of four workers goes on making data."""
    env = cluster(4)  # 220 MB for results on each
    env.client("bob")
    learn(env, "sum", 8)
    learn(env, "work", 30 * MB)
    inputs = [f"in-{i}" for i in range(4)]
    env.submit({key: [] for key in inputs}, annotations=on("w0", *inputs))
    for key in inputs:
        env.finish(key, nbytes=60 * MB)
    env.submit({"held": []}, annotations=on("w1", "held"))
    env.finish("held", nbytes=200 * MB)
    beat(env, "w0", 60, spilled=240)
    beat(env, "w1", 260)
    keys = [f"work-{i}" for i in range(1, 20)]
    env.submit({key: [] for key in keys}, keys, client="bob", annotations=on("w1", *keys))
    env.submit({"sum-1": inputs})
    env.release(*inputs)
    for _ in range(5):
        run_work(env)
        assert env.state.admission.is_short
    assert env.states("sum-1") == ["processing"]


def test_a_queued_task_is_sent_when_an_input_has_arrived() -> None:
    """The use of w0 decreases from 160 to 100 MB: it is expected to spill what it received."""
    env = cluster(2, worker_saturation=3.0)  # 220 MB for results on each
    learn(env, "x", 90 * MB)
    learn(env, "use", 8)
    env.submit({"a": [], "far": []}, annotations=on("w0", "a") | on("w1", "far"))
    env.finish("a", nbytes=100 * MB)
    env.finish("far", nbytes=60 * MB)
    beat(env, "w0", 60, spilled=100)
    env.tick()  # memory is no longer checked for the large results
    users = {"use-a": ["a"], "use-far": ["far"]}
    env.submit(users, annotations=on("w0", *users))
    env.state.admission.is_short = True
    env.submit({"x-1": []}, annotations=on("w0", "x-1"))
    assert env.states("x-1") == ["queued"]
    env.fetched("w0", "far")
    assert env.states("x-1") == ["processing"]


def test_few_seceded_tasks_are_passed_over_to_find_inputs_in_use() -> None:
    env = cluster(1)
    n = admission.TASKS_MAX
    keys = [f"slow-{i}" for i in range(n + 1)]
    env.submit({"data": []})
    env.finish("data", nbytes=10 * MB)
    for i, key in enumerate(keys):
        env.submit({key: []})
        env.feed(m.LongRunning(key=key, run_id=env.task(key).run_id, compute_duration=1.0), "w0")
        if i == n - 1:
            env.submit({"use-1": ["data"]})
            assert list(admission.inputs_in_use(env.worker("w0"))) == [env.task("data")]
            env.finish("use-1")
    env.submit({"use-2": ["data"]})
    assert not admission.inputs_in_use(env.worker("w0"))
