"""``fast_order`` returns the order of ``dask.order`` for every task."""

from __future__ import annotations

import random

import dask.order
import pytest
from dask._task_spec import DataNode, List, Task, TaskRef
from paceline.workers_compat.graphs.accelerators import fast_order as module
from paceline.workers_compat.graphs.accelerators.fast_order import fast_order


def random_graph(seed: int) -> dict[int, frozenset[int]]:
    """Return random layers, chains, trees, isolated places and external keys."""
    draw = random.Random(seed)
    size = draw.randrange(2, 120)
    reach = draw.choice((1, 3, 10, size))
    most = draw.choice((1, 2, 3, 8))
    return {
        place: frozenset(
            draw.randrange(max(0, place - reach), place) if draw.random() > 0.03 else size + 1
            for _ in range(draw.randrange(most + 1) if place else 0)
        )
        for place in range(size)
    }


def both(dependencies, data):
    graph = {
        place: DataNode(place, 0)
        if place in data
        else Task(place, len, List(*[TaskRef(need) for need in needed]))
        for place, needed in dependencies.items()
    }
    ours = fast_order(
        {place: graph[place].dependencies for place in graph},
        {place: place not in data for place in graph},
        str,
    )
    return ours, dask.order.order(graph)


@pytest.mark.parametrize("few_bits", [False, True])
def test_random_graphs(monkeypatch, few_bits):
    if few_bits:
        monkeypatch.setattr(module, "BITS_MAX", 3)
    for seed in range(400):
        dependencies = random_graph(seed)
        ours, dasks = both(dependencies, frozenset())
        assert ours == dasks, seed


def test_graphs_with_data():
    for seed in range(300):
        dependencies = random_graph(seed)
        draw = random.Random(seed)
        data = {
            place for place, needed in dependencies.items() if not needed and draw.random() < 0.5
        }
        ours, dasks = both(dependencies, data)
        assert ours == dasks, seed


def test_a_cycle_returns_none():
    assert fast_order({0: frozenset({1}), 1: frozenset({0})}, {0: True, 1: True}, str) is None


def test_other_helpers_in_dask_are_not_replaced(monkeypatch):
    monkeypatch.delattr(dask.order, "ndependencies")
    assert fast_order({0: frozenset(), 1: frozenset({0})}, {0: True, 1: True}, str) is None
