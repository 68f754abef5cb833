"""Run distributed's own test suite on the stock scheduler and on paceline, and compare the results.

Usage: ``python tests/upstream/run.py CHECKOUT [PATH ...]``, where CHECKOUT is a clone of dask/distributed that is
installed in this environment in editable mode, beside paceline and the suite's dependencies. ``paceline takeover
--install`` must have been run. PATH limits the run to folders or files of the checkout.

A test counts only if the stock scheduler passes it on the same machine. The exit code is 1 if paceline passes less than
``--share`` of these tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

#: Variable that makes a process use paceline's class, once ``paceline takeover --install`` was run.
VARIABLE = "PACELINE_TAKEOVER"
#: Time limit of one run of the suite, seconds.
RUN_SECONDS_MAX = 3 * 3600


def run_suite(checkout: Path, paths: list[str], takeover: bool, report: Path) -> set[str]:
    """Run the tests in `paths` and return the names of those that passed.

    Args:
        takeover: whether paceline's class replaces distributed's.
        report: file to write the results to, as JUnit XML.
    """
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--color=no"]
    command += ["-m", "not gpu", f"--junitxml={report}", *paths]
    environment = {**os.environ, VARIABLE: "1" if takeover else "0"}
    subprocess.run(command, cwd=checkout, env=environment, timeout=RUN_SECONDS_MAX)
    return passed(report)


def passed(report: Path) -> set[str]:
    """Return the names of the tests without failure, error or skip in a JUnit report."""
    cases = ElementTree.parse(report).iter("testcase")
    bad = {"failure", "error", "skipped"}
    outcomes: dict[str, bool] = {}
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        outcomes[name] = outcomes.get(name, True) and not bad & {part.tag for part in case}
    return {name for name, good in outcomes.items() if good}


def summary(stock: set[str], ours: set[str]) -> str:
    """Return a Markdown report: the numbers, and the tests that only the stock scheduler passes."""
    missing = sorted(stock - ours)
    lines = ["| stock passes | paceline passes of these | share |", "|--:|--:|--:|"]
    lines.append(f"| {len(stock)} | {len(stock & ours)} | {len(stock & ours) / len(stock):.1%} |")
    lines += ["", "Not passed:", "", *(f"- `{name}`" for name in missing)] if missing else []
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command. Return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="clone of dask/distributed")
    parser.add_argument("paths", nargs="*", default=["distributed"], help="what to run of it")
    parser.add_argument("--share", type=float, default=0.85, help="least share to pass")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stock, ours = (
            run_suite(options.checkout, options.paths, takeover, Path(folder) / f"{takeover}.xml")
            for takeover in (False, True)
        )
    if not stock:
        print("The stock scheduler passed no test: check the environment")
        return 1
    text = summary(stock, ours)
    print(text)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(page, "a") as file:
            file.write(text)
    return int(len(stock & ours) < options.share * len(stock))


if __name__ == "__main__":
    sys.exit(main())
