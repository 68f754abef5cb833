"""The command: runs the ways in turn, round after round, and shows them side by side. Everything is taken from the other modules."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import classes, sizes, work
from .ways import BY_HAND, DASK, STOCK, WAYS, Result, Setup, running


def main() -> int:
    """Exit code 1 where a way gave other results than the rest, or left something behind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.05, help="part of the 25,200 results")
    parser.add_argument("--size", type=float, default=1.0, help="factor on each size")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--kinds", default="mixed", help=f"mixed, or of {', '.join(work.KINDS)}")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--classes", action="store_true", help="one type and size at a time")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--scheduler", default="paceline", choices=("paceline", "stock"))
    parser.add_argument("--memory", default="0", help="limit of each worker")
    parser.add_argument("--hosts", type=int, default=0, help="that workers are on (needs root)")
    parser.add_argument("--megabits", type=float, default=0, help="a second of each host's line")
    parser.add_argument("--sizes", default="", help="of --classes, MB; all of them if not given")
    given = parser.parse_args()
    ways, kinds = given.ways.split(","), given.kinds.split(",")
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        setup = Setup(
            *(Path(folder), given.workers, given.scheduler, given.memory),
            *(given.hosts, given.megabits),
        )
        where = f"{given.hosts} hosts" if given.hosts else "one host"
        line = f", {given.megabits:g} Mbit/s each" if given.megabits else ""
        print(f"{given.workers} workers on {where}{line}, {os.cpu_count()} cores in all")
        print(f"{given.scheduler} as scheduler")
        if given.classes:
            each = work.KINDS if given.kinds == "mixed" else kinds
            some = [float(size) for size in given.sizes.split(",") if size]
            return by_class(setup, ways, list(each), given.rounds, some or classes.SIZES_MB)
        drawn = sizes.sizes(max(1, round(sizes.COUNT * given.scale)), given.size)
        print("results, MB:", {k: round(v, 3) for k, v in sizes.described(drawn).items()})
        return by_graph(setup, ways, kinds, drawn, given.rounds)


def by_graph(setup: Setup, ways: list[str], kinds: list[str], drawn: list[int], rounds: int) -> int:
    """The graph, way after way, so that what else the machine does falls on all of them."""
    results: list[Result] = []
    wrong = 0
    for number in range(rounds):
        for kind in kinds:
            for way in ways:
                with running(way, setup) as cluster:
                    result = cluster.compute(drawn, kind, f"{way}-{number}")
                    left = cluster.left()
                results.append(result)
                wrong += any(left.values())
                cost, moved = result.cost, result.traffic
                print(
                    f"{kind:7} {way:8} {cost.seconds:7.2f} s  cpu {cost.cpu_seconds:6.1f} s"
                    f"  memory +{cost.memory_mb:6.0f} MB  asked {result.asked_mb:7.0f} MB"
                    f"  put {moved['put_nbytes'] / 1e6:6.0f}  got {moved['got_nbytes'] / 1e6:6.0f}"
                    f"  load {cost.load:4.1f}  left {left}",
                    flush=True,
                )
    for kind in kinds:
        right = {each.right for each in results if each.kind == kind}
        if len(right) != 1:
            print(f"{kind}: results differ!")
            wrong += 1
        median = {
            way: statistics.median(
                r.cost.seconds for r in results if (r.way, r.kind) == (way, kind)
            )
            for way in ways
        }
        print(f"\n{kind}, median of {rounds}:")
        for way in ways:
            ratios = [
                f"{median[base] / median[way]:.2f}x {base}"
                for base in (DASK, STOCK, BY_HAND)
                if base in median and base != way
            ]
            print(f"  {way:8} {median[way]:7.2f} s   {', '.join(ratios)}")
    return 1 if wrong else 0


def by_class(
    setup: Setup, ways: list[str], kinds: list[str], rounds: int, sizes_mb: Sequence[float]
) -> int:
    """One type and size at a time. Clusters stand side by side, and take turns."""
    import contextlib

    found: dict[tuple[str, str, float], list[float]] = {}
    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(running(way, setup)) for way in ways if way != BY_HAND]
        for kind in kinds:
            for size in sizes_mb:
                for number in range(rounds):
                    for cluster in clusters:
                        took = classes.seconds(cluster, kind, size, number)
                        found.setdefault((cluster.way, kind, size), []).append(took)
                line = f"{kind:7} {size:6g} MB x{classes.count_of(size):3}"
                for cluster in clusters:
                    took = min(found[cluster.way, kind, size])
                    line += f"  {cluster.way} {took:6.3f} s"
                    if cluster.way != STOCK and ways[0] == STOCK:
                        line += f" ({min(found[STOCK, kind, size]) / took:4.2f}x)"
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
