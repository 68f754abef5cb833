"""How good the schedule is: bytes that workers fetch from each other, memory they need at most, and time.

Two clusters of real stock workers stand side by side, one for each scheduler; each program runs on one and on the other in turn,
so that what else the machine does falls on both.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import process_costs, quality_meter
from .per_task import START_TIMEOUT_SECONDS, running_scheduler, stop

WORKERS, THREADS = 4, 2
REPEAT = 5
#: Modules of tests/integration/programs that compute, and do nothing else.
INTEGRATION = ("arrays", "dataframes", "graphs")
#: How often the memory of the workers' processes is read, seconds.
LOOK_SECONDS = 0.02
#: Between two programs: what is no longer wanted is released.
REST_SECONDS = 0.3

Program = Callable[[Any], object]


@dataclass(frozen=True)
class Quality:
    """Of one program. Medians where it stands for several runs.

    Attributes:
        moved_mb: what workers received from one another, by fetching and peer to peer.
        managed_mb: the most that all workers' results took at one moment, together.
        process_mb: by how much all workers' processes together grew at most.
        seconds: from the call to its return.
    """

    moved_mb: float
    managed_mb: float
    process_mb: float
    seconds: float


@dataclass(frozen=True)
class Cluster:
    """One scheduler with its workers and a client."""

    client: Any
    pids: list[int]

    def run(self, program: Program) -> Quality:
        """Run a program once, and tell what it took."""
        client = self.client
        client.run(quality_meter.begin)
        before = self.memory()
        with self._watched() as seen, client.as_current():
            started = time.perf_counter()
            program(client)
            seconds = time.perf_counter() - started
        told = client.run(quality_meter.end)
        time.sleep(REST_SECONDS)
        return Quality(
            moved_mb=sum(moved for moved, _ in told.values()) / 1e6,
            managed_mb=peak([changes for _, changes in told.values()]) / 1e6,
            process_mb=max(0.0, max(seen, default=before) - before),
            seconds=seconds,
        )

    def memory(self) -> float:
        """Of all workers' processes now, MB."""
        return sum(map(process_costs.memory, self.pids))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[list[float]]:
        seen: list[float] = []
        over = threading.Event()

        def watch() -> None:
            while not over.wait(LOOK_SECONDS):
                seen.append(self.memory())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            thread.join()


def peak(workers: Sequence[Sequence[tuple[float, int]]]) -> int:
    """The most that all held together, of the changes (seconds, bytes) that each saw."""
    events = sorted(
        (when, n, nbytes) for n, changes in enumerate(workers) for when, nbytes in changes
    )
    now = [0] * len(workers)
    most = 0
    for _, n, nbytes in events:
        now[n] = nbytes
        most = max(most, sum(now))
    return most


@contextlib.contextmanager
def running_cluster(command: Sequence[str]) -> Iterator[Cluster]:
    from distributed import Client

    with contextlib.ExitStack() as stack:
        _, port = stack.enter_context(running_scheduler(command))
        address = f"tcp://127.0.0.1:{port}"
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        worker = [sys.executable, "-m", "dask", "worker", address, "--nthreads", str(THREADS)]
        worker += ["--no-nanny", "--no-dashboard", "--memory-limit", "4GB", "--host", "127.0.0.1"]
        worker += ["--local-directory", folder]
        # numpy's own threads would fight for the cores; what is freed goes back to the system, as under a nanny
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment |= {"MALLOC_TRIM_THRESHOLD_": "65536"}
        processes = []
        for _ in range(WORKERS):
            process = subprocess.Popen(worker, stderr=subprocess.DEVNULL, env=environment)
            stack.callback(stop, process)
            processes.append(process.pid)
        client = Client(address, timeout=START_TIMEOUT_SECONDS, set_as_default=False)
        stack.enter_context(client)
        client.wait_for_workers(WORKERS, timeout=START_TIMEOUT_SECONDS)
        yield Cluster(client, processes)


def integration_programs() -> dict[str, Program]:
    """Those that the tests compare with the stock scheduler."""
    found: dict[str, Program] = {}
    for name in INTEGRATION:
        module = importlib.import_module(f"tests.integration.programs.{name}")
        for title, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__
            if own and list(inspect.signature(function).parameters) == ["client"]:
                found[f"{name}.{title}"] = function
    return found


def median(runs: Sequence[Quality]) -> Quality:
    return Quality(*(statistics.median(getattr(run, name) for run in runs) for name in NAMES))


NAMES = tuple(Quality.__dataclass_fields__)


def measure(
    programs: dict[str, Program],
    stock: Sequence[str],
    paceline: Sequence[str],
    repeat: int = REPEAT,
    tell: Callable[[str], None] = print,
) -> dict[str, tuple[Quality, Quality]]:
    """Program -> (stock's medians, paceline's)."""
    out: dict[str, tuple[Quality, Quality]] = {}
    with running_cluster(stock) as theirs, running_cluster(paceline) as ours:
        for title, program in programs.items():
            runs: dict[str, list[Quality]] = {"theirs": [], "ours": []}
            for cluster in (theirs, ours):  # workers import what it needs
                cluster.run(program)
            for i in range(repeat):
                pair = [("theirs", theirs), ("ours", ours)]
                for side, cluster in pair if i % 2 else pair[::-1]:
                    runs[side].append(cluster.run(program))
            out[title] = median(runs["theirs"]), median(runs["ours"])
            tell(f"  {title}: stock {rounded(out[title][0])}, paceline {rounded(out[title][1])}")
    return out


def rounded(quality: Quality) -> str:
    return (
        f"{quality.moved_mb:.1f} MB moved, {quality.managed_mb:.0f} MB held, "
        f"{quality.process_mb:.0f} MB of processes, {quality.seconds:.2f} s"
    )
