"""The order of tasks is dask's, and does not depend on the hash seed."""

from __future__ import annotations

import random

import dask.array as da
import pytest
from dask._task_spec import DataNode, List, Task, TaskRef, convert_legacy_graph
from dask.order import order as dask_order
from paceline.workers_compat.graphs.ordering import GraphIndex


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
    "chains": {
        (i, j): task((i, j), *([(i, j - 1)] if j else [])) for i in range(9) for j in range(9)
    },
    "outside": {f"x-{i}": task(f"x-{i}", "future-b", "future-a") for i in range(10)},
    "all": {"end": task("end", *[("x", i) for i in range(40)])}
    | {("x", i): task(("x", i)) for i in range(40)},
    "shared datum": {"d": DataNode("d", 1)} | {("x", i): task(("x", i), "d") for i in range(5)},
}


def ordered(graph):
    index = GraphIndex(graph)
    return dict(zip(index.keys, index.ordered(), strict=False))


@pytest.mark.parametrize("name", GRAPHS)
def test_order_equals_dasks(name, accelerators):
    graph = GRAPHS[name]
    assert ordered(graph) == dask_order(graph)


def test_order_of_an_array_program_is_one_of_dasks():
    x = da.ones((40, 40), chunks=8)
    graph = convert_legacy_graph(dict((x @ x.T).sum().__dask_graph__()))
    index = GraphIndex(graph)
    places = list(range(index.size))
    ours = index.ordered()
    assert sorted(ours) == places
    assert index.topological(ours) == sorted(places, key=ours.__getitem__)


def test_dependencies_in_places():
    index = GraphIndex(GRAPHS["outside"])
    assert index.size == 10
    assert index.keys[10:] == ["future-a", "future-b"]
    assert index.dependencies == [[10, 11]] * 10
    mixed = GraphIndex({"a": task("a", "b", "z"), "b": task("b", "y", "z", "x")})
    assert mixed.keys == ["a", "b", "z", "x", "y"]
    assert mixed.dependencies == [[1, 2], [2, 3, 4]]


def test_culling_and_rows():
    index = GraphIndex(tree(16))
    needed = index.reachable([("d1", 3), "unheard of"])
    assert {index.keys[p] for p in needed} == {("d1", 3), ("leaf", 6), ("leaf", 7)}
    index = index.culled(needed)
    rows = index.topological(index.ordered())
    assert sorted(rows) == [0, 1, 2]
    assert index.keys[rows[-1]] == ("d1", 3)
    assert index.culled([0, 1, 2]) is index


def test_the_clients_order_names_some():
    index = GraphIndex({k: task(k) for k in "abc"})
    assert index.given({"b": 0, "c": 1}) == [2, 0, 1]


def test_any_order_gives_dependencies_first():
    index = GraphIndex(tree(64))
    places = list(range(index.size))
    for seed in range(20):
        draw = random.Random(seed)
        rows = index.topological([draw.random() for _ in places])
        assert sorted(rows) == places
        seen = set()
        for place in rows:
            assert seen.issuperset(index.dependencies[place])
            seen.add(place)
