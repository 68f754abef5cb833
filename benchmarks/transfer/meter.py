"""Cost of a run: wall time, bytes, CPU time, and memory as PSS, which counts a shared page once."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

LOOK_SECONDS = 0.5  # a look at gigabytes takes the kernel some 20 ms
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Of one run.

    Attributes:
        seconds: the whole of it.
        cpu_seconds: of all processes together.
        memory_mb: the most that they had at one time, beyond what they had before.
        load: of the machine, when it ended.
    """

    seconds: float
    cpu_seconds: float
    memory_mb: float
    load: float


def cpu_seconds(pid: int) -> float:
    """Of a process since it began."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def pss_mb(pid: int) -> float:
    """The memory of a process; of what several share each has its part."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1000
    return 0.0


class Meter:
    """Measures from its beginning to its end, in a thread."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._over = threading.Event()
        self._most = 0.0

    def __enter__(self) -> Meter:
        self._before = sum(map(pss_mb, self._pids))
        self._cpu = sum(map(cpu_seconds, self._pids))
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *failed: object) -> None:
        seconds = time.perf_counter() - self._began
        self._over.set()
        self._thread.join()
        cpu = sum(map(cpu_seconds, self._pids)) - self._cpu
        self.cost = Cost(seconds, cpu, max(0.0, self._most - self._before), os.getloadavg()[0])

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._most = max(self._most, sum(map(pss_mb, self._pids)))
