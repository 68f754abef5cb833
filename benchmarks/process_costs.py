"""CPU time and resident memory of processes, read from the kernel (Linux)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MEGABYTE = 1_000_000


def descendants(pid: int) -> list[int]:
    """Return `pid` and the ids of all its running descendants."""
    found = [pid]
    # the process may end meanwhile
    with contextlib.suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            for child in (thread / "children").read_text().split():
                found += descendants(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of the running threads and ended children of the process `pid`.

    The time of threads is exact to the nanosecond, that of children to the clock tick.
    """
    total = 0.0
    with contextlib.suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            total += int((thread / "schedstat").read_text().split()[0]) / 1e9
        fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    return total


def memory(pid: int, field: str = "VmRSS") -> float:
    """Return the resident megabytes of the process `pid`.

    `field` is "VmRSS" for the current value, or "VmHWM" for the maximum since `reset_peak`.
    """
    return _megabytes(pid, "status", field)


def proportional_memory(pid: int) -> float:
    """Return the megabytes of the process `pid`, where pages count in part if others share them."""
    return _megabytes(pid, "smaps_rollup", "Pss")


def _megabytes(pid: int, file: str, field: str) -> float:
    """Return the megabytes in a field of a file of the process `pid`; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / file).read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024 / MEGABYTE
    return 0.0


def reset_peak(pid: int) -> None:
    """Reset the maximum of resident memory that the kernel keeps for the process `pid`."""
    (PROC / str(pid) / "clear_refs").write_text("5")


def listener(port: int, pids: list[int]) -> int:
    """Return the one of `pids` that listens on the TCP port `port`: it runs the event loop."""
    import psutil

    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            if connection.pid in pids:
                return connection.pid
    raise RuntimeError(f"None of the processes {pids} listens on port {port}")


@contextlib.contextmanager
def sampled(read: Callable[[], float], interval: float) -> Iterator[list[float]]:
    """Call `read` every `interval` seconds in a thread, and yield the list of its results."""
    samples: list[float] = []
    stopped = threading.Event()

    def sample() -> None:
        while not stopped.wait(interval):
            samples.append(read())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stopped.set()
        thread.join()


@dataclass(frozen=True)
class Cost:
    """CPU seconds and megabytes: a reading, or the difference of two."""

    loop_cpu: float
    other_cpu: float
    loop_memory: float
    other_memory: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.loop_cpu - other.loop_cpu,
            self.other_cpu - other.other_cpu,
            self.loop_memory - other.loop_memory,
            self.other_memory - other.other_memory,
        )


def read(scheduler: int, loop: int) -> Cost:
    """Return the cost of the process `loop` and of the other processes of `scheduler`."""
    others = [pid for pid in descendants(scheduler) if pid != loop]
    return Cost(
        cpu_seconds(loop),
        sum(map(cpu_seconds, others)),
        memory(loop),
        sum(map(memory, others)),
    )
