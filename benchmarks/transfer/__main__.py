"""Command `python -m benchmarks.transfer`: run the transfer methods in turn and compare them."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import classes, sizes, work
from .methods import DASK, METHODS, REDIS_IN_TASKS, STOCK, Result, Setup, running


def main() -> int:
    """Run the benchmark.

    Return 1 if the methods had different results or left values behind, else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.05, help="part of the 25,200 results")
    parser.add_argument("--size", type=float, default=1.0, help="factor on each size")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--kinds", default="mixed", help=f"mixed, or of {', '.join(work.KINDS)}")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--classes", action="store_true", help="one type and size at a time")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--scheduler", default="paceline", choices=("paceline", "stock"))
    parser.add_argument("--memory", default="0", help="memory limit of each worker")
    parser.add_argument("--hosts", type=int, default=0, help="network namespaces (needs root)")
    parser.add_argument("--megabits", type=float, default=0, help="of each namespace, per second")
    parser.add_argument("--sizes", default="", help="sizes in MB for --classes; default: all")
    options = parser.parse_args()
    methods, kinds = options.methods.split(","), options.kinds.split(",")
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        setup = Setup(
            *(Path(folder), options.workers, options.scheduler, options.memory),
            *(options.hosts, options.megabits),
        )
        where = f"{options.hosts} hosts" if options.hosts else "one host"
        bandwidth = f", {options.megabits:g} Mbit/s each" if options.megabits else ""
        print(f"{options.workers} workers on {where}{bandwidth}, {os.cpu_count()} cores in all")
        print(f"scheduler: {options.scheduler}")
        if options.classes:
            selected = list(work.KINDS) if options.kinds == "mixed" else kinds
            sizes_mb = [float(size) for size in options.sizes.split(",") if size]
            by_class(setup, methods, selected, options.rounds, sizes_mb or classes.SIZES_MB)
            return 0
        drawn = sizes.draw_sizes(max(1, round(sizes.COUNT * options.scale)), options.size)
        print("results, MB:", {k: round(v, 3) for k, v in sizes.summary(drawn).items()})
        return by_graph(setup, methods, kinds, drawn, options.rounds)


def by_graph(
    setup: Setup, methods: list[str], kinds: list[str], drawn: list[int], rounds: int
) -> int:
    """Compute the graph with each method in turn, so that other load affects all of them."""
    results: list[Result] = []
    wrong = 0
    for number in range(rounds):
        for kind in kinds:
            for method in methods:
                with running(method, setup) as cluster:
                    result = cluster.compute(drawn, kind, f"{method}-{number}")
                    leftovers = cluster.leftovers()
                results.append(result)
                wrong += any(leftovers.values())
                cost, traffic = result.cost, result.traffic
                print(
                    f"{kind:7} {method:14} {cost.seconds:7.2f} s  cpu {cost.cpu_seconds:6.1f} s"
                    f"  memory +{cost.memory_mb:6.0f} MB"
                    f"  transferred {result.transferred_mb:7.0f} MB"
                    f"  put {traffic['put_nbytes'] / 1e6:6.0f}"
                    f"  got {traffic['got_nbytes'] / 1e6:6.0f}"
                    f"  load {cost.load:4.1f}  leftovers {leftovers}",
                    flush=True,
                )
    for kind in kinds:
        if len({result.checksum for result in results if result.kind == kind}) != 1:
            print(f"{kind}: the methods have different results")
            wrong += 1
        print_medians(kind, methods, results, rounds)
    return 1 if wrong else 0


def print_medians(kind: str, methods: list[str], results: list[Result], rounds: int) -> None:
    """Print the median time of each method, and its speed relative to the baselines."""
    median = {
        method: statistics.median(
            r.cost.seconds for r in results if (r.method, r.kind) == (method, kind)
        )
        for method in methods
    }
    print(f"\n{kind}, median of {rounds}:")
    for method in methods:
        ratios = [
            f"{median[baseline] / median[method]:.2f}x {baseline}"
            for baseline in (DASK, STOCK, REDIS_IN_TASKS)
            if baseline in median and baseline != method
        ]
        print(f"  {method:14} {median[method]:7.2f} s   {', '.join(ratios)}")


def by_class(
    setup: Setup, methods: list[str], kinds: list[str], rounds: int, sizes_mb: Sequence[float]
) -> None:
    """Transfer values of one type and size at a time, on the clusters of all methods in turn."""
    found: dict[tuple[str, str, float], list[float]] = {}
    with contextlib.ExitStack() as stack:
        clusters = [
            stack.enter_context(running(method, setup))
            for method in methods
            if method != REDIS_IN_TASKS
        ]
        for kind in kinds:
            for size in sizes_mb:
                for number in range(rounds):
                    for cluster in clusters:
                        seconds = classes.seconds(cluster, kind, size, number)
                        found.setdefault((cluster.method, kind, size), []).append(seconds)
                line = f"{kind:7} {size:6g} MB x{classes.count_of(size):3}"
                for cluster in clusters:
                    seconds = min(found[cluster.method, kind, size])
                    line += f"  {cluster.method} {seconds:6.3f} s"
                    if cluster.method != STOCK and methods[0] == STOCK:
                        line += f" ({min(found[STOCK, kind, size]) / seconds:4.2f}x)"
                print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
