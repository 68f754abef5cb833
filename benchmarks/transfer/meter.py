"""Cost of a run: wall time, CPU time, and memory as PSS, which counts a shared page once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..process_costs import sampled

#: Memory is read at this interval; the kernel takes about 20 ms for gigabytes.
INTERVAL_SECONDS = 0.5
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class RunCost:
    """Cost of one run.

    Attributes:
        seconds: wall time.
        cpu_seconds: CPU time of all processes.
        memory_mb: largest growth of the memory of all processes together.
        load: load average of the machine at the end.
    """

    seconds: float
    cpu_seconds: float
    memory_mb: float
    load: float


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of the process `pid`."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def pss_mb(pid: int) -> float:
    """Return the proportional set size of the process `pid`, in MB."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1000
    return 0.0


@contextlib.contextmanager
def measured(pids: list[int]) -> Iterator[Callable[[], RunCost]]:
    """Measure the block, and yield a function that returns its cost after the block."""

    def memory() -> float:
        return sum(map(pss_mb, pids))

    def cost() -> RunCost:
        growth = max(0.0, max(samples, default=memory_before) - memory_before)
        return RunCost(seconds, cpu - cpu_before, growth, os.getloadavg()[0])

    memory_before, cpu_before = memory(), sum(map(cpu_seconds, pids))
    with sampled(memory, INTERVAL_SECONDS) as samples:
        started = time.perf_counter()
        yield cost
        seconds = time.perf_counter() - started
    cpu = sum(map(cpu_seconds, pids))
