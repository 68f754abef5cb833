"""Inputs that are missing for tasks that free memory go first while memory is short."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.scheduler.core.policy import admission, memory_queue
from paceline.scheduler.core.policy.missing_inputs import MISSING_MAX, missing_inputs
from paceline.scheduler.core.state.sharing.accounts import ShareGroup
from paceline.scheduler.core.state.sharing.fair_queue import ShareQueue
from paceline.scheduler.core.stimuli import AnnotationSet
from paceline.testing import Env, Graph

from tests.support.memory import MB, beat, cluster, learn

#: Sizes of the results of some prefixes in MB. Others have 60, and a worker the memory for three.
SIZES = {"sum": 0, "small": 0, "big": 90, "frees": 0}


def start(graph: Graph, held: int = 0, nthreads: int = 1, **rows: Any) -> Env:
    """Submit `graph` to a worker with the memory for 220 MB, `held` of which are occupied."""
    env = cluster(1, nthreads, coassigned_tasks=0, worker_saturation=1.0)
    if held:
        env.submit({"held": []})
        env.finish("held", nbytes=held * MB)
    for prefix in {key.partition("-")[0]: None for key in graph}:
        learn(env, prefix, SIZES.get(prefix, 60) * MB)
    env.submit(graph, [key for key in graph if key.startswith(("sum", "big"))], **rows)
    return env


def run(env: Env, graph: Graph, n: int) -> list[str]:
    """Run `n` tasks of `graph` one by one. Return their keys in this order."""
    order = []
    for _ in range(n):
        (key,) = [key for key in graph if env.states(key) == ["processing"]]
        env.finish(key, nbytes=SIZES.get(key.partition("-")[0], 60) * MB)
        beat(env, "w0", 60 + env.worker("w0").nbytes // MB)
        order.append(key)
    return order


def combined(*inputs: str, consumer: str = "sum") -> Graph:
    """Return the graph of five tasks that take one result of each of `inputs` each."""
    graph: Graph = {f"{prefix}-{i}": [] for prefix in inputs for i in range(1, 6)}
    for i in range(1, 6):
        graph[f"{consumer}-{i}"] = [f"{prefix}-{i}" for prefix in inputs]
    return graph


def test_second_source_goes_first_while_memory_is_short() -> None:
    graph = combined("a", "b")
    order = run(start(graph), graph, 15)
    assert order[:7] == ["a-1", "a-2", "a-3", "b-1", "sum-1", "b-2", "sum-2"]
    assert order[7:11] == ["b-3", "sum-3", "a-4", "b-4"]


def test_task_that_lacks_fewest_inputs_goes_first() -> None:
    graph = combined("a", "b", "c")
    order = run(start(graph), graph, 9)
    assert order == ["a-1", "a-2", "a-3", "b-1", "c-1", "sum-1", "b-2", "c-2", "sum-2"]


def test_source_of_a_missing_input_is_found() -> None:
    graph: Graph = combined("a", "f")
    for i in range(1, 6):
        graph |= {f"b-{i}": [f"f-{i}"], f"sum-{i}": [f"a-{i}", f"b-{i}"]}
    order = run(start(graph), graph, 9)
    assert order == ["a-1", "a-2", "a-3", "f-1", "b-1", "sum-1", "f-2", "b-2", "sum-2"]


def test_order_is_kept_if_more_is_made_than_freed() -> None:
    graph = combined("a", "b", consumer="big")
    assert run(start(graph), graph, 5) == [f"a-{i}" for i in range(1, 6)]


def test_order_is_kept_if_results_have_other_uses() -> None:
    graph = combined("a", "b")
    env = start(graph)
    env.desire(*[f"a-{i}" for i in range(1, 6)])
    assert run(env, graph, 5) == [f"a-{i}" for i in range(1, 6)]


def test_order_is_kept_if_little_is_freed() -> None:
    graph = combined("small", "a")
    assert run(start(graph, held=150), graph, 5) == [f"small-{i}" for i in range(1, 6)]


def test_restricted_tasks_keep_their_turn() -> None:
    graph = combined("a", "b")
    on = AnnotationSet(workers=["w0"])
    env = start(graph, held=180, annotations={f"b-{i}": on for i in range(1, 6)})
    assert run(env, graph, 5) == [f"a-{i}" for i in range(1, 6)]


def test_inputs_of_tasks_that_cannot_run_keep_their_turn() -> None:
    graph = combined("a", "b", "c")
    absent = AnnotationSet(workers=["absent"])
    env = start(graph, annotations={f"c-{i}": absent for i in range(1, 6)})
    assert run(env, graph, 5) == [f"a-{i}" for i in range(1, 6)]


def test_inputs_below_a_task_that_lacks_many_keep_their_turn() -> None:
    n = MISSING_MAX + 1
    graph: Graph = {f"a-{i}": [] for i in range(1, 6)}
    for i in range(1, 6):
        graph |= {f"f-{n * i + j}": [] for j in range(n)}
        graph[f"b-{i}"] = [f"f-{n * i + j}" for j in range(n)]
        graph[f"sum-{i}"] = [f"a-{i}", f"b-{i}"]
    priorities = {key: i for i, key in enumerate(graph)}
    env = start(graph, priorities=priorities)
    assert run(env, graph, 5) == [f"a-{i}" for i in range(1, 6)]


def test_an_idle_worker_that_can_spill_is_sent_a_missing_input() -> None:
    """Although the other inputs are on a worker that waits for a task that frees memory."""
    env = cluster(2, 2, coassigned_tasks=0, worker_saturation=1.0)  # 220 MB for results on each
    for prefix in ("a", "b", "frees", "sum"):
        learn(env, prefix, SIZES.get(prefix, 60) * MB)
    on = [AnnotationSet(workers=[f"w{i}"]) for i in range(2)]
    env.submit({"x0": [], "x1": []}, annotations={"x0": on[0], "x1": on[1]})
    env.finish("x0", nbytes=160 * MB)
    env.finish("x1", nbytes=200 * MB)
    env.submit({"frees": ["x0"], "after": ["frees"]}, annotations={"frees": on[0]})
    env.submit({"busy": []}, annotations={"busy": on[1]})
    env.submit({"a-1": []}, annotations={"a-1": on[0]})
    env.finish("a-1", nbytes=60 * MB)
    env.submit({"b-1": [], "sum-1": ["a-1", "b-1"]}, ["sum-1"])
    env.release("a-1")
    assert env.states("b-1") == ["queued"]
    env.finish("busy")
    assert env.where("b-1") == "w1"


@pytest.mark.pure
def test_missing_inputs_of_one_kind_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = combined("a", "b")
    env = start(graph, nthreads=2)
    env.finish("a-1", "a-2", "a-3", nbytes=60 * MB)
    (queue,) = env.state.queued.waiting
    assert len(missing_inputs(env.state, queue)) == 2
    tried = []
    monkeypatch.setattr(admission, "fits", lambda state, ts, *_: tried.append(ts.key))
    memory_queue.next_task(env.state)
    assert tried == ["b-2", "a-4"]


def test_missing_inputs_of_other_share_groups_wait_for_their_turn() -> None:
    graph = combined("a", "b")
    env = start(graph, nthreads=2)
    env.finish("a-1", "a-2", "a-3", nbytes=60 * MB)
    (queue,) = env.state.queued.waiting
    assert [ts.key for ts in missing_inputs(env.state, queue)] == ["b-3", "b-2"]
    assert not missing_inputs(env.state, ShareQueue(ShareGroup("other", 1)))
