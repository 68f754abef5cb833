"""How the time of workers is divided between clients, in simulated time.

``python -m benchmarks.fairness`` prints all scenarios, each with share groups and with first come,
first served (``paceline.shares.enabled: false``), which is the policy of the stock scheduler.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection

from paceline.testing import Graph

from .simulated import Cluster

WINDOW_SECONDS = 10.0


def roots(name: str, n: int) -> Graph:
    """Return `n` tasks without dependencies."""
    return {(name, i): [] for i in range(n)}


def chains(name: str, n: int, length: int) -> Graph:
    """Return `n` chains of `length` tasks."""
    return {
        (f"{name}-{j}", i): [(f"{name}-{j - 1}", i)] if j else []
        for i in range(n)
        for j in range(length)
    }


def jain_index(values: Collection[float]) -> float:
    """Return Jain's index of fairness; 1 if all `values` are equal."""
    squares = sum(value**2 for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


# ------------------------------------------------------------------ scenarios


def short_beside_long(shares: bool, graph: Callable[[str, int], Graph] = roots) -> float:
    """Return how many times longer a short job takes beside a long one than alone."""
    alone = Cluster(shares)
    alone.submit("short", graph("s", 400), 0.4)
    begin = alone.now
    alone.run()
    expected = alone.done_at["short"] - begin
    both = Cluster(shares)
    both.submit("long", graph("l", 6000), 0.5)
    begin = both.now + 20.0
    both.at(begin, both.submit, "short", graph("s", 400), 0.4)
    both.run()
    return (both.done_at["short"] - begin) / expected


def equal_clients(shares: bool, n: int = 10) -> float:
    """Return the least Jain index of `n` equal clients over all windows of ten seconds."""
    cluster = Cluster(shares)
    begin = cluster.now
    for i in range(n):
        cluster.at(begin + i / 10, cluster.submit, f"c{i}", roots(f"t{i}", 500), 0.2)
    cluster.n_left = 1  # until all have submitted
    cluster.at(begin + n / 10, cluster.end_of_submissions)
    cluster.run()
    last = min(cluster.done_at.values()) if shares else max(cluster.done_at.values())
    worst = 1.0
    first = begin + n / 10
    while first + WINDOW_SECONDS <= last:
        worst = min(worst, jain_index(cluster.used(first, first + WINDOW_SECONDS).values()))
        first += 1.0
    return worst


def weighted_clients(shares: bool) -> float:
    """Return the largest relative deviation from the weights 1, 2 and 4, while all have work."""
    weights = {"c1": 1, "c2": 2, "c4": 4}
    groups = {name: {"weight": float(weight)} for name, weight in weights.items()}
    cluster = Cluster(shares, shares_groups=groups)
    begin = cluster.now
    for name in weights:
        cluster.submit(name, roots(f"t{name}", 3000), 0.2)
    cluster.run()
    used = cluster.used(begin, min(cluster.done_at.values()))
    total = sum(used.values())
    return max(abs(used[name] / total * 7 / weight - 1) for name, weight in weights.items())


def makespan(shares: bool, graph: Callable[[str, int], Graph], nbytes: int) -> tuple[float, int]:
    """Return the time for the work of five clients, and the bytes moved."""
    cluster = Cluster(shares)
    begin = cluster.now
    for i in range(5):
        cluster.submit(f"c{i}", graph(f"t{i}", 200), 0.2, nbytes)
    cluster.run()
    return max(cluster.done_at.values()) - begin, cluster.moved_nbytes


def chains_of_four(name: str, n: int) -> Graph:
    """Return `n` chains of four tasks."""
    return chains(name, n, 4)


def pairs(name: str, n: int) -> Graph:
    """Return `n` tasks of which each two neighbours are added, in dask's order: depth first."""
    graph: Graph = {(name, 0): []}
    for i in range(n - 1):
        graph[(name, i + 1)] = []
        graph[(f"{name}-sum", i)] = [(name, i), (name, i + 1)]
    return graph


def main(arguments: list[str] | None = None) -> None:
    """Print all scenarios."""
    argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__).parse_args(
        arguments
    )
    for shares in (True, False):
        print(f"\nshares: {'on' if shares else 'off'}")
        print(
            f"  short job beside a long one: {short_beside_long(shares):.2f} times its time alone"
        )
        ratio = short_beside_long(shares, chains_of_four)
        print(f"  the same with chains: {ratio:.2f} times")
        print(f"  ten equal clients, least Jain index over 10 s: {equal_clients(shares):.3f}")
        print(f"  weights 1:2:4, largest deviation: {weighted_clients(shares):.1%}")
        for graph in (roots, chains_of_four, pairs):
            seconds, moved = makespan(shares, graph, 10_000_000)
            print(f"  five clients, {graph.__name__}: {seconds:.1f} s, {moved / 1e6:.0f} MB moved")


if __name__ == "__main__":
    main()
