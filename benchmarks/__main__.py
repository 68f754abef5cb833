"""`python -m benchmarks`: cost per task of paceline and of the stock scheduler, side by side in one run.

It must not know how a cost is measured.
"""

from __future__ import annotations

import argparse
import shlex
import warnings
from pathlib import Path

from . import report
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
}
SMOKE = {
    "A round that only shows that it runs:": [Case("merge", 500, 4, 1), Case("tree", 500, 4, 1)]
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few seconds, numbers of no worth")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    parser.add_argument("--stock", default=shlex.join(STOCK), help="the command compared with")
    parser.add_argument("--paceline", default=shlex.join(PACELINE), help="the command measured")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Mismatched versions")  # zero workers tell none
    sections: dict[str, list[report.Row]] = {}
    for title, cases in (SMOKE if options.smoke else SECTIONS).items():
        rows = sections[title] = []
        print(title)
        for case in cases:
            stock = measure(shlex.split(options.stock), case)
            ours = measure(shlex.split(options.paceline), case)
            rows.append((case, stock, ours))
            print(
                f"  {case.shape} {case.tasks:,} tasks, {case.workers:,} workers: "
                f"stock {stock.total_us:.0f} µs a task, paceline {ours.total_us:.0f} "
                f"(loop {ours.loop_us:.0f}, compile {ours.other_us:.0f}); "
                f"memory {stock.loop_nbytes:,.0f} and {ours.loop_nbytes:,.0f} bytes a task",
                flush=True,
            )
        print(f"  {report.flatness(rows)}")
    print("\n" + "\n".join(map(report.table, sections.values())))
    if options.write:
        report.write(options.write, sections)
        print(f"written to {options.write}")


if __name__ == "__main__":
    main()
