"""Command `python -m benchmarks`: measure paceline and the stock scheduler in the same run."""

from __future__ import annotations

import argparse
import shlex
import warnings
from pathlib import Path

from . import latency, quality, quality_programs, report
from .per_task import PACELINE, STOCK, Case, measure

SECTIONS = {
    "**Shapes of graphs**, 20,000 tasks, 24 zero workers:": [
        Case(shape, 20_000, 24) for shape in ("merge", "tree", "chains", "layers", "embarrassing")
    ],
    "**Number of tasks**, 24 zero workers:": [
        Case("merge", 1_000, 24, repeat=9),
        Case("merge", 10_000, 24),
        Case("merge", 100_000, 24, repeat=2),
    ],
    "**Number of zero workers**, 10,000 tasks:": [
        Case("merge", 10_000, workers) for workers in (10, 100, 1_000)
    ],
    "**All features on**: stealing, active memory manager, a span, "
    "and a scheduler plugin that counts transitions:": [
        Case(shape, 20_000, 24, all_features=True) for shape in ("merge", "tree", "layers")
    ],
}
SMOKE = {
    "A short run to check that the benchmark works:": [
        Case("merge", 500, 4, 1),
        Case("tree", 500, 4, 1, True),
    ]
}


def main() -> None:
    """Run the parts that the command line selects and print their tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="run for a few seconds to check that it works; ignore the numbers",
    )
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="write the tables into this page"
    )
    parser.add_argument(
        "--only",
        choices=("per-task", "latency", "quality"),
        help="run one part; without this option, all but quality run",
    )
    parser.add_argument(
        "--stock", default=shlex.join(STOCK), help="command of the scheduler to compare with"
    )
    parser.add_argument(
        "--paceline", default=shlex.join(PACELINE), help="command of the scheduler to measure"
    )
    parser.add_argument(
        "--layout",
        type=int,
        nargs=2,
        default=quality.LAYOUT,
        metavar=("WORKERS", "THREADS"),
        help="workers of --only quality, and threads of each",
    )
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write replaces all tables of the page, so it cannot be used with --only")
    # zero workers report no versions
    warnings.filterwarnings("ignore", message="\\s*Mismatched versions")
    commands = shlex.split(options.stock), shlex.split(options.paceline)
    parts = []
    if options.only in (None, "per-task"):
        parts += per_task_tables(SMOKE if options.smoke else SECTIONS, *commands)
    if options.only in (None, "latency"):
        sizes = latency.SMOKE if options.smoke else latency.Sizes()
        parts.append(latency_table(sizes, *commands))
    if options.only == "quality":  # its results are in docs/scheduling.md
        parts += quality_tables(options.smoke, tuple(options.layout), *commands)
    print("\n" + "\n".join(parts))
    if options.write:
        report.write(options.write, parts)
        print(f"written to {options.write}")


def per_task_tables(
    sections: dict[str, list[Case]], stock: list[str], paceline: list[str]
) -> list[str]:
    """Measure the cases of each section on both schedulers and print them as they finish."""
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
    """Measure latency and stalls with real workers on both schedulers."""
    print("Latency and stalls, two real workers", flush=True)
    theirs, ours = latency.measure(stock, sizes), latency.measure(paceline, sizes)
    return report.latency(sizes, theirs, ours)


def quality_tables(
    smoke: bool, layout: tuple[int, int], stock: list[str], paceline: list[str]
) -> list[str]:
    """Measure transfers, memory and time of real programs on both schedulers."""
    larger = {program.__name__: program for program in quality_programs.PROGRAMS}
    sets = {
        "larger programs": larger,
        "programs of the integration tests": quality.integration_programs(),
    }
    if smoke:
        sets = {"a short run to check that the benchmark works": dict(list(larger.items())[:1])}
    parts = []
    for title, programs in sets.items():
        print(f"Quality of schedules, {title}", flush=True)
        repeat = 1 if smoke else quality.REPEAT
        found = quality.measure(programs, stock, paceline, repeat, layout)
        parts.append(report.quality(title, found, layout))
    return parts


if __name__ == "__main__":
    main()
