"""Expected memory use of tasks: learned by prefix, and by group if groups differ."""

from __future__ import annotations

from paceline.protocol.keys import Key
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.inspection.memory_report import memory_report
from paceline.scheduler.core.policy import admission
from paceline.scheduler.core.state.admission import TaskMemory
from paceline.scheduler.core.state.estimates import task_memory
from paceline.testing import Env

from tests.support.memory import MB, beat, cluster


def memory_of(env: Env, key: Key) -> TaskMemory:
    return task_memory(env.task(key).group)


def two_groups(small: int, large: int) -> Env:
    """Return a cluster whose worker has 220 MB for tasks and is sent two groups of two tasks.

    A result of x-1 has `small` MB, one of x-2 `large` MB. The second task of each is processing.
    """
    env = cluster(1, nthreads=16)
    for group, size in (("x-1", small), ("x-2", large)):
        env.submit({(group, i): [] for i in range(2)})
        env.finish((group, 0), nbytes=size * MB)
        env.release((group, 0))
    return env


def test_groups_with_different_results() -> None:
    env = two_groups(10, 100)
    assert memory_of(env, ("x-2", 1)).task_nbytes == 100 * MB
    env.finish(("x-1", 1), nbytes=20 * MB)  # the mean of the prefix is larger now
    assert memory_of(env, ("x-1", 1)).task_nbytes == 20 * MB
    env.submit({("x-3", 0): [], ("y-3", 0): []})
    assert memory_of(env, ("x-3", 0)) is env.task(("x-3", 0)).prefix.memory
    assert not memory_of(env, ("y-3", 0)).is_known


def test_groups_with_similar_results_share_what_is_learned() -> None:
    env = two_groups(100, 190)
    assert memory_of(env, ("x-1", 1)) is memory_of(env, ("x-2", 1))
    assert memory_of(env, ("x-1", 1)).task_nbytes == 145 * MB


def test_groups_with_small_results_share_what_is_learned() -> None:
    env = cluster(1, nthreads=16)
    env.submit({("x-1", 0): [], ("x-2", 0): []})
    env.finish(("x-1", 0), nbytes=8)
    env.finish(("x-2", 0), nbytes=999_999)
    assert memory_of(env, ("x-2", 0)) is env.task(("x-2", 0)).prefix.memory


def test_tasks_of_a_worker_are_counted_by_group() -> None:
    env = two_groups(10, 100)
    ws = env.worker("w0")
    env.submit({("x-1", 2): []})
    env.finish(("x-1", 2), nbytes=10 * MB)
    assert env.processing("w0") == [("x-1", 1), ("x-2", 1)]
    assert admission.expected_nbytes(ws) == 110 * MB
    env.finish(("x-2", 1), nbytes=120 * MB)
    assert admission.expected_nbytes(ws) == 10 * MB
    assert admission.results_nbytes(env.state, ws) == 140 * MB


def test_only_tasks_of_the_group_that_does_not_fit_wait() -> None:
    env = two_groups(5, 90)
    env.finish(("x-1", 1), nbytes=5 * MB)
    env.submit({(name, i): [] for name in ("x-2", "x-1") for i in (2, 3)})
    assert env.states(("x-2", 2), ("x-2", 3)) == ["processing", "queued"]
    assert env.states(("x-1", 2), ("x-1", 3)) == ["processing"] * 2
    memory = explain(env.state, ("x-2", 3), env.now)["queue"]["memory"]
    assert memory["nbytes"] == 90 * MB


def test_large_tasks_are_checked_while_workers_use_little() -> None:
    """A worker with 220 MB for tasks is not watched while it is expected to use 120 MB."""
    env = cluster(1, nthreads=16)
    env.submit({"x-1": [], "x-2": []})
    env.finish("x-1", nbytes=120 * MB)
    env.release("x-1")
    env.tick()
    assert not admission.is_watched(env.state, env.worker("w0"))
    env.submit({"x-3": []})
    assert env.states("x-3") == ["queued"]
    env.finish("x-2", nbytes=120 * MB)
    env.release("x-2")
    assert env.states("x-3") == ["processing"]
    env.finish("x-3", nbytes=120 * MB)
    env.tick()
    assert not env.state.admission.is_short


def test_report_lists_groups_that_differ() -> None:
    env = two_groups(10, 100)
    report = memory_report(env.state)
    assert {row["name"]: row["task_nbytes"] for row in report["prefixes"]} == {
        "x": 55 * MB,
        "x-2": 100 * MB,
    }
    assert report["n_prefixes"] == 2


def test_peaks_are_learned_by_group() -> None:
    env = two_groups(10, 100)
    env.finish(("x-1", 1), nbytes=10 * MB)
    env.submit({("x-1", 2): []})
    beat(env, "w0", 60 + 10)
    beat(env, "w0", 60 + 10 + 150, executing={("x-2", 1): 2.0})
    assert memory_of(env, ("x-2", 1)).peak_nbytes == 150 * MB
    assert memory_of(env, ("x-1", 2)).peak_nbytes == 0
    assert env.task(("x-2", 1)).prefix.memory.peak_nbytes == 150 * MB
    peaks = {"x-1": 30 * MB, "x-9": 170 * MB}  # the tasks of the latter are forgotten
    env.heartbeat("w0", metrics={"task_peaks": peaks})
    assert memory_of(env, ("x-1", 2)).peak_nbytes == 30 * MB
    assert env.task(("x-2", 1)).prefix.memory.peak_nbytes == 170 * MB
    assert memory_of(env, ("x-2", 1)).peak_nbytes == 150 * MB
