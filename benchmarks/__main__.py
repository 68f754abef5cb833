"""`python -m benchmarks`: cost per task of paceline and of the stock scheduler, side by side in one run.

It must not know how a cost is measured.
"""

from __future__ import annotations

import argparse
import shlex
import warnings
from pathlib import Path

from . import latency, quality, quality_programs, report
from .per_task import PACELINE, STOCK, Case, measure

SECTIONS = {
    "**By shape**, 20,000 tasks on 24 zero workers:": [
        Case(shape, 20_000, 24) for shape in ("merge", "tree", "chains", "layers", "embarrassing")
    ],
    "**By number of tasks**, on 24 zero workers:": [
        Case("merge", 1_000, 24, repeat=9),
        Case("merge", 10_000, 24),
        Case("merge", 100_000, 24, repeat=2),
    ],
    "**By number of workers**, 10,000 tasks:": [
        Case("merge", 10_000, workers) for workers in (10, 100, 1_000)
    ],
    "**With everything on**: stealing, memory manager, a span, and a scheduler plugin that counts transitions:": [
        Case(shape, 20_000, 24, everything=True) for shape in ("merge", "tree", "layers")
    ],
}
SMOKE = {
    "A round that only shows that it runs:": [
        Case("merge", 500, 4, 1),
        Case("tree", 500, 4, 1, True),
    ]
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few seconds, numbers of no worth")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    parser.add_argument("--only", choices=("per-task", "latency", "quality"), help="one part of it")
    parser.add_argument("--stock", default=shlex.join(STOCK), help="the command compared with")
    parser.add_argument("--paceline", default=shlex.join(PACELINE), help="the command measured")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="\\s*Mismatched versions")  # zero workers tell none
    commands = shlex.split(options.stock), shlex.split(options.paceline)
    parts = []
    if options.only in (None, "per-task"):
        parts += per_task_tables(SMOKE if options.smoke else SECTIONS, *commands)
    if options.only in (None, "latency"):
        sizes = latency.SMOKE if options.smoke else latency.Sizes()
        parts.append(latency_table(sizes, *commands))
    if options.only == "quality" or not (options.only or options.smoke):
        parts += quality_tables(options.smoke, *commands)
    print("\n" + "\n".join(parts))
    if options.write:
        report.write(options.write, parts)
        print(f"written to {options.write}")


def per_task_tables(
    sections: dict[str, list[Case]], stock: list[str], paceline: list[str]
) -> list[str]:
    """Run the cases of each section on both schedulers, telling as they come."""
    parts = []
    for title, cases in sections.items():
        print(title)
        rows: list[report.Row] = []
        for case in cases:
            theirs, ours = measure(stock, case), measure(paceline, case)
            rows.append((case, theirs, ours))
            print(
                f"  {case.shape} {case.tasks:,} tasks, {case.workers:,} workers: "
                f"stock {theirs.total_us:.0f} µs a task, paceline {ours.total_us:.0f} "
                f"(loop {ours.loop_us:.0f}, compile {ours.other_us:.0f}); "
                f"memory {theirs.loop_nbytes:,.0f} and {ours.loop_nbytes:,.0f} bytes a task",
                flush=True,
            )
        parts.append(f"{title}\n\n{report.table(rows)}\n{report.flatness(rows)}\n")
    return parts


def latency_table(sizes: latency.Sizes, stock: list[str], paceline: list[str]) -> str:
    """Run the programs with real workers on both schedulers."""
    print("What a user feels, two real workers", flush=True)
    theirs, ours = latency.measure(stock, sizes), latency.measure(paceline, sizes)
    return report.felt(sizes, theirs, ours)


def quality_tables(smoke: bool, stock: list[str], paceline: list[str]) -> list[str]:
    """What workers fetch, hold and take, on programs of their own and on those of the integration tests."""
    heavy = {program.__name__: program for program in quality_programs.PROGRAMS}
    sets = {
        "programs of this size": heavy,
        "the programs of the tests": quality.integration_programs(),
    }
    if smoke:
        sets = {"a round that only shows that it runs": dict(list(heavy.items())[:1])}
    parts = []
    for title, programs in sets.items():
        print(f"Quality of the schedule, {title}", flush=True)
        found = quality.measure(programs, stock, paceline, 1 if smoke else quality.REPEAT)
        parts.append(report.quality(title, found))
    return parts


if __name__ == "__main__":
    main()
