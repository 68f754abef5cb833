"""Root-ish tasks with large results wait until workers have finished tasks that use the last ones."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.policy.coassignment import (
    LARGE_PART,
    QUICK_LARGE_PART,
    QUICK_SECONDS,
    SHORT_SECONDS,
)
from paceline.scheduler.core.stimuli import AnnotationSet, SetShare
from paceline.testing import Env, Graph

N = 12
#: Memory of the workers, and the smallest result of a quick task that is large for one with two
#: threads.
LIMIT_NBYTES = 10**10
LARGE_NBYTES = int(QUICK_LARGE_PART * LIMIT_NBYTES / 2)


def chains(n: int = N, first: int = 0) -> Graph:
    """Return `n` root tasks, each used by another task, numbered from `first`."""
    numbers = range(first, first + n)
    return {("x", i): [] for i in numbers} | {("y", i): [("x", i)] for i in numbers}


def cluster(nthreads: int = 2, limit: int = LIMIT_NBYTES, **config: Any) -> Env:
    """Return a cluster with one worker, "w0"."""
    env = Env(**{"coassigned_tasks": 0, **config})
    env.client("alice")
    env.join("w0", nthreads=nthreads, memory_limit=limit)
    return env


def use_results(
    env: Env,
    nbytes: int = LARGE_NBYTES,
    seconds: float = 0.002,
    using_seconds: float = 0.001,
    n: int = 3,
) -> list[Key]:
    """Finish the first `n` roots and all but the last of the tasks that use them.

    Return the tasks that are then on "w0".
    """
    for i in range(n):
        env.finish(("x", i), nbytes=nbytes, seconds=seconds)
    for i in range(n - 1):
        env.finish(("y", i), nbytes=1, seconds=using_seconds)
    return env.processing("w0")


def test_the_next_root_follows_the_last_task_that_uses_results() -> None:
    env = cluster()
    env.submit(chains())
    assert env.processing("w0") == [("x", 0), ("x", 1), ("x", 2)]
    assert use_results(env) == [("y", 2)]
    env.finish(("y", 2), seconds=0.001)
    assert env.processing("w0") == [("x", 3), ("x", 4)]
    env.finish(("x", 3), nbytes=LARGE_NBYTES, seconds=0.002)
    assert env.processing("w0") == [("x", 4), ("y", 3)]
    env.finish(("x", 4), nbytes=LARGE_NBYTES, seconds=0.002)
    env.finish(("y", 3), seconds=0.001)
    assert env.processing("w0") == [("y", 4)]


@pytest.mark.parametrize(("missing", "n_sent"), [(0, 1), (1, 3)])
def test_smaller_results_of_longer_tasks_are_large(missing: int, n_sent: int) -> None:
    env = cluster()
    env.submit(chains())
    nbytes = int(LARGE_PART * LIMIT_NBYTES / 2) - missing
    assert len(use_results(env, nbytes, seconds=2 * QUICK_SECONDS)) == n_sent


@pytest.mark.parametrize(
    ("case", "config"),
    [
        ({"nbytes": LARGE_NBYTES - 1}, {}),
        ({"using_seconds": 0.04}, {}),
        ({"seconds": 0.01, "using_seconds": 0.006}, {}),
        ({"seconds": 4 * SHORT_SECONDS, "using_seconds": 1.5 * SHORT_SECONDS}, {}),
        ({}, {"worker_saturation": 1.2}),
        ({}, {"limit": 2 * LIMIT_NBYTES}),
        ({}, {"limit": 0}),
    ],
)
def test_it_is_sent_beside_them(case: dict[str, Any], config: dict[str, Any]) -> None:
    """If results are small, if the tasks that use them take long, or if it is turned off."""
    env = cluster(**config)
    env.submit(chains())
    assert use_results(env, **case)[:2] == [("y", 2), ("x", 3)]


def test_tasks_that_take_half_as_long_as_roots_are_waited_for() -> None:
    env = cluster()
    env.submit(chains())
    assert use_results(env, seconds=0.01, using_seconds=0.005) == [("y", 2)]


def test_at_most_one_thread_waits() -> None:
    env = cluster(nthreads=4)
    env.submit(chains(20))
    assert use_results(env, n=5) == [("y", 4), ("x", 5), ("x", 6)]
    env.finish(("y", 4), seconds=0.001)
    assert env.processing("w0") == [("x", 5), ("x", 6), ("x", 7), ("x", 8)]


def test_a_task_that_takes_longer_than_usual_is_not_waited_for() -> None:
    env = cluster()
    env.submit(chains())
    use_results(env)
    env.heartbeat("w0", executing={("y", 2): 0.04})
    assert env.processing("w0") == [("y", 2), ("x", 3)]


def test_a_task_that_fetches_its_inputs_is_not_waited_for() -> None:
    env = cluster()
    env.join("w1", nthreads=2, memory_limit=LIMIT_NBYTES)
    env.submit({"far": []}, annotations={"far": AnnotationSet(workers=["w1"])})
    env.finish("far", nbytes=10)
    env.status("w1", "paused")
    env.submit({**chains(), ("y", N): [("x", 2), "far"]})
    use_results(env)
    env.finish(("y", 2), seconds=0.001)
    assert env.processing("w0") == [("y", N), ("x", 3)]
    env.fetched("w0", "far")
    env.finish(("x", 3), nbytes=LARGE_NBYTES, seconds=0.002)
    env.finish(("y", 3), seconds=0.001)
    assert env.processing("w0") == [("y", N)]


def test_a_seceded_task_is_not_waited_for() -> None:
    env = cluster()
    env.submit(chains())
    use_results(env, seconds=0.5)
    run_id = env.task(("y", 2)).run_id
    env.feed(m.LongRunning(key=("y", 2), run_id=run_id, compute_duration=0.001), "w0")
    assert env.processing("w0") == [("y", 2), ("x", 3), ("x", 4)]


def test_a_task_that_waits_for_a_resource_is_not_waited_for() -> None:
    """The task that has the resource may wait for the roots."""
    env = Env(coassigned_tasks=0)
    env.client("alice")
    env.join("w0", nthreads=2, memory_limit=LIMIT_NBYTES, resources={"gpu": 1})
    on_gpu = AnnotationSet(resources={"gpu": 1})
    env.submit({"outer": []}, annotations={"outer": on_gpu})
    env.feed(m.LongRunning(key="outer", run_id=env.task("outer").run_id), "w0")
    env.submit(chains())
    assert use_results(env) == ["outer", ("y", 2)]
    env.submit({("y", N): [("x", 2)]}, annotations={("y", N): on_gpu})
    env.finish(("y", 2), seconds=0.001)
    assert env.processing("w0") == ["outer", ("y", N), ("x", 3)]


def test_a_task_of_unknown_duration_is_not_waited_for() -> None:
    env = cluster()
    env.submit(chains())
    env.finish(("x", 0), ("x", 1), nbytes=LARGE_NBYTES, seconds=0.002)
    env.finish(("y", 0), seconds=0.001)
    env.submit({("z", 0): [("x", 1)]})
    env.finish(("x", 2), nbytes=LARGE_NBYTES, seconds=0.002)
    env.finish(("y", 1), ("y", 2), seconds=0.001)
    assert env.processing("w0") == [("z", 0), ("x", 3)]


def test_threads_of_a_larger_worker_do_not_wait_for_a_small_one() -> None:
    env = cluster()
    env.submit(chains(40))
    use_results(env)
    env.join("w1", nthreads=8, memory_limit=LIMIT_NBYTES)
    assert env.processing("w0") == [("y", 2)]
    assert len(env.processing("w1")) == 8


def test_roots_are_sent_with_a_heartbeat_that_also_moves_the_end_of_the_worker() -> None:
    env = cluster()
    env.submit(chains())
    use_results(env)
    env.heartbeat("w0", metrics={"ends_in": 10_000.0})
    assert env.processing("w0") == [("y", 2)]
    env.heartbeat("w0", executing={("y", 2): 1.0}, metrics={"ends_in": 5_000.0})
    assert env.processing("w0") == [("y", 2), ("x", 3)]


def test_roots_that_use_the_same_input_do_not_wait_for_each_other() -> None:
    env = cluster()
    env.submit({"open": []})
    env.finish("open", nbytes=100)
    env.submit({("x", i): ["open"] for i in range(N)} | {("y", i): [("x", i)] for i in range(N)})
    use_results(env)
    env.finish(("y", 2), seconds=0.001)
    assert env.processing("w0") == [("x", 3), ("x", 4)]


def test_another_worker_with_the_same_load_takes_the_root() -> None:
    env = cluster()
    env.submit(chains(20))
    use_results(env)
    env.join("w1", nthreads=2, memory_limit=LIMIT_NBYTES)
    env.finish(("y", 2), seconds=0.001)
    first, second = (ts.key[1] for ts in env.state.workers["w0"].processing)
    env.finish(("x", first), ("x", second), nbytes=LARGE_NBYTES, seconds=0.002)
    env.finish(("y", first), seconds=0.001)
    assert env.processing("w0") == [("y", second)]
    third, fourth = (ts.key[1] for ts in env.state.workers["w1"].processing)
    env.finish(("x", third), nbytes=LARGE_NBYTES, seconds=0.002)
    env.finish(("y", third), seconds=0.001)
    assert env.processing("w1") == [("x", fourth), ("x", 7)]
    assert env.processing("w0") == [("y", second)]


def test_roots_without_dependents_do_not_wait() -> None:
    env = cluster()
    env.submit({("x", i): [] for i in range(N)})
    env.finish(("x", 0), nbytes=LARGE_NBYTES, seconds=0.002)
    assert len(env.processing("w0")) == 3


def test_they_do_not_wait_while_several_groups_do() -> None:
    env = cluster()
    env.client("bob")
    env.submit(chains())
    assert use_results(env) == [("y", 2)]
    env.feed(SetShare("bob", {"tasks": 1}))
    env.submit(chains(first=N), client="bob")
    assert env.processing("w0") == [("y", 2), ("x", N), ("x", 3)]


def test_they_do_not_wait_while_tasks_have_user_priorities() -> None:
    env = cluster()
    env.submit({"first": []}, commit={"user_priority": 1})
    env.finish("first")
    env.submit(chains())
    assert use_results(env) == [("y", 2), ("x", 3), ("x", 4)]


def test_explain_names_the_tasks_that_are_waited_for() -> None:
    env = cluster()
    env.submit(chains())
    use_results(env)
    summary = explain(env.state, ("x", 3), env.now)["summary"]
    text = (
        "until a worker has a free thread, and no short tasks that use results if it has only one"
    )
    assert text in summary
