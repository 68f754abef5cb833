"""Cost of a run: wall time, CPU time, and memory as PSS, which counts a shared page once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..process_costs import cpu_seconds, proportional_memory, sampled

#: Memory is read at this interval; the kernel takes about 20 ms for gigabytes.
INTERVAL_SECONDS = 0.5


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


@contextlib.contextmanager
def measured(pids: list[int]) -> Iterator[Callable[[], RunCost]]:
    """Measure the block, and yield a function that returns its cost after the block."""

    def memory() -> float:
        return sum(map(proportional_memory, pids))

    def cost() -> RunCost:
        growth = max(0.0, max(samples, default=memory_before) - memory_before)
        return RunCost(seconds, cpu - cpu_before, growth, os.getloadavg()[0])

    memory_before, cpu_before = memory(), sum(map(cpu_seconds, pids))
    with sampled(memory, INTERVAL_SECONDS) as samples:
        started = time.perf_counter()
        yield cost
        seconds = time.perf_counter() - started
    cpu = sum(map(cpu_seconds, pids))
