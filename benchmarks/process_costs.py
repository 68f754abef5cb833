"""CPU time and resident memory of processes, read from the kernel (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MEGABYTE = 1_000_000


def descendants(pid: int) -> list[int]:
    """The process and all its living children, and theirs."""
    found = [pid]
    try:
        for thread in (PROC / str(pid) / "task").iterdir():
            for child in (thread / "children").read_text().split():
                found += descendants(int(child))
    except OSError:  # it ended while we looked
        pass
    return found


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads that live, to the nanosecond; of ended children, to the tick."""
    total = 0.0
    try:
        for thread in (PROC / str(pid) / "task").iterdir():
            total += int((thread / "schedstat").read_text().split()[0]) / 1e9
        fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        pass
    return total


def memory(pid: int, what: str = "VmRSS") -> float:
    """Resident megabytes now, or at their highest (`VmHWM`) since `forget_peak`."""
    try:
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(what + ":"):
                return int(line.split()[1]) * 1024 / MEGABYTE
    except OSError:
        pass
    return 0.0


def forget_peak(pid: int) -> None:
    """Let the kernel count the highest resident memory from now on."""
    (PROC / str(pid) / "clear_refs").write_text("5")


def listener(port: int, pids: list[int]) -> int:
    """Which of these processes listens on a TCP port: the one with the event loop."""
    import psutil

    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            if connection.pid in pids:
                return connection.pid
    raise RuntimeError(f"none of the processes {pids} listens on port {port}")


@dataclass(frozen=True)
class Cost:
    """A reading, or the difference of two: seconds and megabytes."""

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
    """The process with the event loop, and all others of the scheduler, told apart."""
    others = [pid for pid in descendants(scheduler) if pid != loop]
    return Cost(
        cpu_seconds(loop),
        sum(map(cpu_seconds, others)),
        memory(loop),
        sum(map(memory, others)),
    )
