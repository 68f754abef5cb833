"""Command `python -m benchmarks.programs`: run the programs on both schedulers and compare.

Each run starts a scheduler, two workers with one thread each and a client, in this order, as
processes of their own.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import psutil
from distributed import Client

from .. import process_costs, report
from ..per_task import (
    PACELINE,
    START_TIMEOUT_SECONDS,
    STOCK,
    real_workers,
    running_scheduler,
    settle_all,
)
from .program import DATA_ONLY

ROOT = Path(__file__).parents[2]
MODULES = ("dataframes", "arrays", "learning", "futures", "graphs")
WORKERS, THREADS = 2, 1
REPEAT = 3
PSS_INTERVAL_SECONDS = 0.05
STOP_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Costs:
    """Costs of one run of a program, or the medians of several.

    Attributes:
        wall: duration of the program in its client, in seconds.
        cpu: CPU seconds of all processes of the scheduler, from its start to its end.
        loop_cpu: CPU seconds of the process with the event loop.
        peak: the largest memory (PSS) of all processes of the scheduler together, in MB.
        idle: the same before the program, with two workers connected.
    """

    wall: float
    cpu: float
    loop_cpu: float
    peak: float
    idle: float


TITLES = ("wall time", "CPU", "CPU, event loop", "peak PSS", "idle PSS")


def programs() -> dict[str, str]:
    """Return the name of each program and the module that defines it, without importing it."""
    return {
        node.name: module
        for module in MODULES
        for node in ast.parse(Path(__file__).with_name(f"{module}.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any("program" in ast.unparse(each) for each in node.decorator_list)
    }


def execute(module: str, name: str, address: str, folder: Path) -> str:
    """Run a program in a process of its own and return the last line that it prints."""
    command = [sys.executable, "-m", f"benchmarks.programs.{module}", name, address, str(folder)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip().rpartition("\n")[2]


def end(pid: int) -> float:
    """Terminate the process `pid` and return the CPU seconds of it and of its ended children."""
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    while True:
        ended, _, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline:
            raise RuntimeError(f"Scheduler {pid} did not end in {STOP_TIMEOUT_SECONDS} s")
        time.sleep(0.01)


def run(command: Sequence[str], module: str, name: str, folder: Path) -> tuple[Costs, Any]:
    """Run one program once on a new cluster, and return its costs and what it printed."""
    with running_scheduler(command) as (pid, port):
        address = f"tcp://127.0.0.1:{port}"
        with real_workers(address, WORKERS, THREADS):
            with Client(address, timeout=START_TIMEOUT_SECONDS, set_as_default=False) as client:
                client.wait_for_workers(WORKERS, timeout=START_TIMEOUT_SECONDS)
            settle_all(pid)
            loop = process_costs.listener(port, process_costs.descendants(pid))

            def pss() -> float:
                pids = process_costs.descendants(pid)
                return sum(map(process_costs.proportional_memory, pids))

            idle = pss()
            with process_costs.sampled(pss, PSS_INTERVAL_SECONDS) as samples:
                printed = json.loads(execute(module, name, address, folder))
            times = psutil.Process(loop).cpu_times()
            costs = Costs(
                wall=printed["seconds"],
                cpu=end(pid),
                loop_cpu=times.user + times.system,
                peak=max(samples, default=idle),
                idle=idle,
            )
    return costs, printed


def same(a: Any, b: Any, tolerance: float) -> bool:
    """Return whether two results are equal, numbers within a relative `tolerance`."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], tolerance) for key in a)
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-9)
    return bool(a == b)


def measure(
    name: str, module: str, stock: Sequence[str], paceline: Sequence[str], repeat: int
) -> tuple[Costs, Costs, bool]:
    """Run a program `repeat` times on each scheduler in turn.

    Returns:
        The medians of the stock scheduler, those of paceline, and whether all results are the same.
    """
    costs: dict[str, list[Costs]] = {"stock": [], "paceline": []}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        execute(module, name, DATA_ONLY, Path(folder))
        for i in range(repeat):
            pair = [("stock", stock), ("paceline", paceline)]
            for side, command in pair[::-1] if i % 2 else pair:
                cost, printed = run(command, module, name, Path(folder))
                costs[side].append(cost)
                found.append(printed)
    equal = all(same(found[0]["result"], each["result"], each["tolerance"]) for each in found)
    theirs, ours = (
        Costs(*map(statistics.median, zip(*map(astuple, costs[side]))))
        for side in ("stock", "paceline")
    )
    return theirs, ours, equal


def ratios(theirs: Costs, ours: Costs) -> list[float]:
    """Return paceline / stock of each cost."""
    return [b / a for a, b in zip(astuple(theirs), astuple(ours))]


def summary(each: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return geometric means of the ratios per module and of all, and their maxima."""
    modules: dict[str, list[list[float]]] = {}
    for name, module in programs().items():
        if name in each:
            modules.setdefault(module, []).append(each[name])
    groups = {f"*{module}*, {len(found)} programs": found for module, found in modules.items()}
    groups["**geometric mean**"] = found = list(each.values())
    means = {
        title: [statistics.geometric_mean(column) for column in zip(*group)]
        for title, group in groups.items()
    }
    return means | {"**maximum**": [max(column) for column in zip(*found)]}


def table(rows: dict[str, tuple[Costs, Costs, bool]], repeat: int) -> str:
    """Return a Markdown table of ratios, with their geometric means and maxima."""
    each = {name: ratios(theirs, ours) for name, (theirs, ours, _) in rows.items()}
    each |= summary(each)
    text = f"Ratios paceline / stock of {len(rows)} programs, medians of {repeat} runs each:\n\n"
    text += f"| program | {' | '.join(TITLES)} | stock, s | results |\n"
    text += "|---|" + "--:|" * (len(TITLES) + 1) + "---|\n"
    for name, values in each.items():
        cells = [name, *(f"{value:.2f}" for value in values), "", ""]
        if name in rows:
            theirs, _, equal = rows[name]
            cells[-2:] = [f"{theirs.wall:.1f}", "same" if equal else "**differ**"]
        text += "| " + " | ".join(cells) + " |\n"
    return text


def main() -> None:
    """Measure the programs that the command line selects and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    known = programs()
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", help="run these")
    parser.add_argument("--repeat", type=int, default=REPEAT, help="runs on each scheduler")
    parser.add_argument("--stock", default=shlex.join(STOCK), help="command to compare with")
    parser.add_argument("--paceline", default=shlex.join(PACELINE), help="command to measure")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table into this page")
    options = parser.parse_args()
    commands = shlex.split(options.stock), shlex.split(options.paceline)
    rows = {}
    for name in options.only or known:
        rows[name] = theirs, ours, equal = measure(name, known[name], *commands, options.repeat)
        print(f"{name}: {'same' if equal else 'DIFFERENT'} results", flush=True)
        for side, costs in ("stock", theirs), ("paceline", ours):
            print(
                f"  {side}: {costs.wall:.2f} s; CPU {costs.cpu:.2f} s, event loop "
                f"{costs.loop_cpu:.2f} s; PSS {costs.peak:.0f} MB, idle {costs.idle:.0f} MB",
                flush=True,
            )
    text = table(rows, options.repeat)
    print("\n" + text)
    if options.write:
        report.write(options.write, [text])
        print(f"written to {options.write}")
    if not all(equal for _, _, equal in rows.values()):
        raise SystemExit("The results of a program differ")


if __name__ == "__main__":
    main()
