"""Programs on workers with less memory than the results that they hold.

Each program first runs on the stock scheduler with workers without a memory limit. The workers of
the measured runs have what an idle worker uses, and a third of the peak of the results. Printed are
the seconds, how often a nanny killed a worker, how often workers paused, and for how long.

``python -m benchmarks.memory [NAME …]``
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from . import memory_programs, quality, quality_meter
from .per_task import START_TIMEOUT_SECONDS, STOCK, real_workers, running_scheduler

#: As ``STOCK``, it imports the functions of the programs from the working directory.
PACELINE = (sys.executable, "-m", "paceline.scheduler")
N_WORKERS, NTHREADS = 2, 2
#: Part of the peak of the results that workers have memory for.
PART = 1 / 3
#: Seconds after which a program counts as failed.
TIMEOUT_SECONDS = 120
#: Time in which workers report what their idle processes use, seconds.
HEARTBEATS_SECONDS = 2.0
_PAUSE = re.compile(r"^(\S+ \S+) - .*(Pausing|Resuming) worker", re.MULTILINE)

Program = Callable[[Any], float]


@dataclass(frozen=True)
class Run:
    """Results of one run.

    Attributes:
        seconds: duration of the program.
        error: name of the exception that it ended with, or "".
        kills: number of workers that nannies killed.
        pauses: number of times that a worker paused.
        paused_seconds: total time that workers were paused.
        idle_nbytes: mean memory of a worker's process before the program.
        peak_nbytes: peak of the results that all workers together held; 0 if it was not measured.
    """

    seconds: float
    error: str
    kills: int
    pauses: int
    paused_seconds: float
    idle_nbytes: int
    peak_nbytes: int

    def __str__(self) -> str:
        ended = f"{self.seconds:.1f} s" + (f", {self.error}" if self.error else "")
        paused = f"{self.pauses} pauses ({self.paused_seconds:.1f} s)"
        return f"{ended}, {self.kills} workers killed, {paused}"


def pauses(log: str) -> tuple[int, float]:
    """Return how often workers paused according to their log, and for how many seconds."""
    since: list[datetime] = []
    n, seconds = 0, 0.0
    for when, what in _PAUSE.findall(log):
        now = datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f")
        if what == "Pausing":
            n += 1
            since.append(now)
        elif since:
            seconds += (now - since.pop()).total_seconds()
    return n, seconds


def run(scheduler: Sequence[str], program: Program, nbytes: int, nthreads: int) -> Run:
    """Run `program` on a new cluster whose workers have `nbytes` bytes each, 0 for no limit."""
    from distributed import Client

    with contextlib.ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        _, port = stack.enter_context(running_scheduler(scheduler))
        address = f"tcp://127.0.0.1:{port}"
        options = ("--memory-limit", str(nbytes))
        output = stack.enter_context(log.open("a"))
        stack.enter_context(real_workers(address, N_WORKERS, nthreads, options, output))
        client = Client(address, timeout=START_TIMEOUT_SECONDS)
        stack.enter_context(client)
        client.wait_for_workers(N_WORKERS, timeout=START_TIMEOUT_SECONDS)
        arrays = program in memory_programs.OF_ARRAYS
        prepare = memory_programs.prepare_arrays if arrays else memory_programs.prepare
        idle = sum(client.run(prepare).values()) // N_WORKERS
        time.sleep(HEARTBEATS_SECONDS)
        if not nbytes:
            client.run(quality_meter.begin)
        started = time.perf_counter()
        error = outcome(client, program)
        seconds = time.perf_counter() - started
        peak = 0
        if not nbytes:
            peak = quality.peak([each for _, each in client.run(quality_meter.end).values()])
        text = log.read_text()
        return Run(seconds, error, text.count("95% memory budget"), *pauses(text), idle, peak)


def outcome(client: Any, program: Program) -> str:
    """Run `program`. Return the name of the exception it ends with, or ""."""
    import threading

    found: list[str] = []

    def call() -> None:
        try:
            program(client)
            found.append("")
        except Exception as exc:
            found.append(type(exc).__name__)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(TIMEOUT_SECONDS)
    return found[0] if found else f"not ended after {TIMEOUT_SECONDS} s"


def compare(program: Program, nbytes: int, nthreads: int) -> None:
    """Print the runs of `program` on both schedulers, with `nbytes` bytes for each worker."""
    print(f"{program.__name__}: {N_WORKERS} workers of {nbytes / 1e6:.0f} MB, {nthreads} threads")
    print(f"  stock:    {run(STOCK, program, nbytes, nthreads)}", flush=True)
    print(f"  paceline: {run(PACELINE, program, nbytes, nthreads)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the programs with the given names, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="default: all programs")
    names = parser.parse_args(arguments).names
    first = memory_programs.scheduler_failure_case
    if not names or first.__name__ in names:
        compare(first, 400_000_000, 1)
    for program in memory_programs.PROGRAMS:
        if not names or program.__name__ in names:
            free = run(STOCK, program, 0, NTHREADS)
            peak = f"{free.peak_nbytes / 1e6:.0f} MB"
            print(f"{program.__name__} holds {peak} on the stock scheduler without a limit")
            nbytes = free.idle_nbytes + int(free.peak_nbytes * PART / N_WORKERS)
            compare(program, nbytes, NTHREADS)


if __name__ == "__main__":
    main()
