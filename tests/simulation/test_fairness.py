"""Shares of the cluster in simulated time: the scenarios of `benchmarks/fairness.py` and what they must show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from paceline.testing import Graph

from benchmarks import fairness

#: Bytes of one result in the scenarios that move data.
NBYTES = 10_000_000


@pytest.mark.parametrize("graph", [fairness.roots, fairness.chains_of_four])
def test_short_job_takes_at_most_twice_its_time_alone(graph: Callable[[str, int], Graph]) -> None:
    assert fairness.short_beside_long(True, graph) <= 2.0


def test_equal_clients_get_equal_shares() -> None:
    assert fairness.equal_clients(True) >= 0.95


def test_shares_follow_weights() -> None:
    assert fairness.weighted_clients(True) <= 0.05


@pytest.mark.parametrize("graph", [fairness.roots, fairness.chains_of_four, fairness.pairs])
def test_throughput_and_locality(graph: Callable[[str, int], Graph]) -> None:
    seconds, moved = fairness.makespan(True, graph, NBYTES)
    fifo_seconds, fifo_moved = fairness.makespan(False, graph, NBYTES)
    results = 5 * len(graph("t", 200)) * NBYTES
    assert fifo_seconds / seconds >= 0.99
    assert moved <= 1.1 * fifo_moved + 0.005 * results
