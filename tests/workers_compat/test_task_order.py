"""``task_order`` returns the order of ``dask.order`` for every task."""

from __future__ import annotations

import random

import dask.array as da
import dask.dataframe as dd
import pandas as pd
import pytest
from dask._expr import FinalizeCompute
from dask._task_spec import DataNode, convert_legacy_graph
from dask.base import collections_to_expr
from paceline.workers_compat.graphs.accelerators import measured_graph
from paceline.workers_compat.graphs.accelerators.measured_graph import KeyTexts
from paceline.workers_compat.graphs.accelerators.task_order import task_order
from paceline.workers_compat.graphs.dask_order import dask_order
from paceline.workers_compat.graphs.ordering import GraphIndex


def random_graph(seed):
    """Return random layers, chains, trees, isolated tasks, shared data and external keys."""
    draw = random.Random(seed)
    size = draw.randrange(2, draw.choice((8, 30, 120, 300)))
    reach = draw.choice((1, 3, 10, 30, size))
    most = draw.choice((1, 2, 3, 8))
    n_roots = draw.choice((1, 1, size // 10 + 1, size // 2 + 1))
    external = draw.choice((0, 0.03, 0.2))
    places = list(range(size))
    if draw.random() < 0.5:
        draw.shuffle(places)
    needs = [[] for _ in places]
    outside = []
    for n in range(n_roots, size):
        for _ in range(draw.randrange(most + 1)):
            other = places[draw.randrange(max(0, n - reach), n)]
            if draw.random() < external:
                other = size + draw.randrange(3)
                outside += [other] * (other not in outside)
            if other not in needs[places[n]]:
                needs[places[n]].append(other)
    number = {other: size + i for i, other in enumerate(outside)}
    needs = [sorted(number.get(other, other) for other in needed) for needed in needs]
    share_of_data = draw.choice((0, 0, 0.3, 0.8))
    is_data = [not needed and draw.random() < share_of_data for needed in needs]
    keys = [draw.choice((place, ("x", place), f"y-{place}")) for place in range(size)]
    return needs, is_data, keys + [f"outside-{i}" for i in range(len(outside))]


@pytest.mark.parametrize("few_bits", [False, True])
def test_random_graphs(monkeypatch, few_bits):
    """With few bits, the sets of roots and leaves are collected in several passes."""
    if few_bits:
        monkeypatch.setattr(measured_graph, "BITS_MIN", 3)
    for seed in range(400):
        graph = random_graph(seed)
        assert task_order(*graph) == dask_order(*graph), seed


def layers(n, width, needed):
    """Return layers of `width` tasks, each of which needs some tasks of the layer before."""
    graph = []
    for place in range(n):
        start, at = place - place % width - width, place % width
        graph.append(
            sorted({start + (at + i) % width for i in range(needed)} if start >= 0 else ())
        )
    return graph


SHAPES = {
    "independent": [[] for _ in range(40)],
    "one sink": [list(range(1, 40)), *([] for _ in range(39))],
    "one sink and others": [list(range(2, 40)), *([] for _ in range(39))],
    "chains": layers(300, 30, 1),
    "stencil": layers(300, 30, 3),
    "all to all": layers(60, 20, 20),
    "tree": [[] for _ in range(64)] + [[2 * i, 2 * i + 1] for i in range(63)],
    "only external": [[3, 4, 5], [3, 4, 5], [3]],
}


@pytest.mark.parametrize("name", SHAPES)
def test_regular_graphs(name):
    needs = SHAPES[name]
    n = max([len(needs), *(place + 1 for needed in needs for place in needed)])
    for has_data in (False, True):
        graph = needs, [has_data and not needed for needed in needs], [("x", i) for i in range(n)]
        assert task_order(*graph) == dask_order(*graph)


def collections():
    x = da.ones((60, 60), chunks=10)
    yield (x @ x.T + x).std(axis=0)
    yield x.rechunk((60, 4)).cumsum(axis=0)
    yield da.overlap.overlap(x, depth=1, boundary="periodic").sum()
    frame = dd.from_pandas(pd.DataFrame({"k": list("abab") * 20, "v": range(80)}), npartitions=8)
    yield frame.groupby("k").v.mean()
    yield frame.merge(frame, on="v", shuffle_method="tasks")


@pytest.mark.parametrize("collection", [*collections()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("is_optimized", [True, False])
def test_real_graphs(collection, is_optimized):
    if is_optimized:
        collection = FinalizeCompute(collections_to_expr((collection,))).optimize()
    index = GraphIndex(convert_legacy_graph(dict(collection.__dask_graph__())))
    is_data = [isinstance(spec, DataNode) for spec in index.specs]
    ours = task_order(index.dependencies, is_data, index.keys)
    assert ours == dask_order(index.dependencies, is_data, index.keys)
    assert sorted(ours) == list(range(index.size))


def test_a_cycle_returns_none():
    assert task_order([[1], [0]], [False, False], ["a", "b"]) is None
    assert task_order([[], [0, 2], [1]], [False] * 3, ["a", "b", "c"]) is None


def test_texts_of_keys():
    keys = ["a", 1, ("a", 1, -2), ("it's", 0), ("a",), ("a", True), ("a", 1.0, "b"), (1, 2), b"x"]
    texts = KeyTexts(keys)
    for place, key in [*enumerate(keys), *enumerate(keys)]:
        assert texts.get(place) == str(key)
