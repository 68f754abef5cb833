"""The order of tasks is dask's, and does not depend on the hash seed."""

from __future__ import annotations

import random

import dask.array as da
import pytest
from dask._task_spec import DataNode, List, Task, TaskRef, convert_legacy_graph
from dask.order import order as dask_order
from paceline.workers_compat.ordering import ordered, reachable, topological


def task(key, *needs):
    return Task(key, len, List(*[TaskRef(need) for need in needs]))


def tree(n):
    graph = {("leaf", i): task(("leaf", i)) for i in range(n)}
    level, depth = list(graph), 0
    while len(level) > 1:
        depth += 1
        above = [(f"d{depth}", i) for i in range(len(level) // 2)]
        graph |= {key: task(key, *level[2 * i : 2 * i + 2]) for i, key in enumerate(above)}
        level = above
    return graph


GRAPHS = {
    "unconnected": {("x", i): task(("x", i)) for i in range(30)},
    "data": {i: DataNode(i, i) for i in range(12)} | {"a": task("a")},
    "tree": tree(64),
    "chains": {(i, j): task((i, j), *([(i, j - 1)] if j else [])) for i in range(9) for j in range(9)},
    "outside": {f"x-{i}": task(f"x-{i}", "future-b", "future-a") for i in range(10)},
    "all": {"end": task("end", *[("x", i) for i in range(40)])}
    | {("x", i): task(("x", i)) for i in range(40)},
    "shared datum": {"d": DataNode("d", 1)} | {("x", i): task(("x", i), "d") for i in range(5)},
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_order_is_dasks(name):
    graph = GRAPHS[name]
    assert ordered(graph) == dask_order(graph)


def test_the_order_of_an_array_program_is_one_of_dasks():
    x = da.ones((40, 40), chunks=8)
    graph = convert_legacy_graph(dict((x @ x.T).sum().__dask_graph__()))
    ours = ordered(graph)
    assert sorted(ours.values()) == list(range(len(graph)))
    assert topological(graph, set(graph), ours) == sorted(graph, key=ours.__getitem__)


def test_culling_and_rows():
    graph = tree(16)
    needed = reachable(graph, [("d1", 3)])
    assert needed == {("d1", 3), ("leaf", 6), ("leaf", 7)}
    rows = topological(graph, needed, ordered(graph))
    assert set(rows) == needed
    assert rows[-1] == ("d1", 3)


def test_any_order_gives_dependencies_first():
    graph = tree(64)
    for seed in range(20):
        priorities = {key: random.Random(seed).random() for key in graph}
        rows = topological(graph, set(graph), priorities)
        assert sorted(rows, key=str) == sorted(graph, key=str)
        seen = set()
        for key in rows:
            assert graph[key].dependencies <= seen
            seen.add(key)
