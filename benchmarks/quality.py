"""Quality of schedules: bytes transferred between workers, peak memory of the workers, and time.

Each scheduler has a cluster of real stock workers. Each program runs on both in turn, so that
other load on the machine affects both.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import process_costs, quality_meter
from .per_task import START_TIMEOUT_SECONDS, real_workers, running_scheduler

#: Workers and threads of each, by default.
LAYOUT = 4, 2
REPEAT = 5
#: Ratios count smaller sizes as this, MB.
SMALLEST_MB = 1.0
#: Modules of tests/integration/programs whose programs only compute.
INTEGRATION = ("arrays", "dataframes", "graphs")
#: The memory of the workers' processes is read at this interval.
INTERVAL_SECONDS = 0.02
#: Pause between two programs, for the release of data.
PAUSE_SECONDS = 0.3

Program = Callable[[Any], object]


@dataclass(frozen=True)
class Quality:
    """Results of one run of a program, or the medians of several.

    Attributes:
        transferred_mb: data that workers received from each other, by fetching and in P2P shuffles.
        managed_mb: the peak of the results that all workers together held.
        process_mb: the largest growth of the memory of all worker processes together.
        seconds: duration of the program.
    """

    transferred_mb: float
    managed_mb: float
    process_mb: float
    seconds: float


@dataclass(frozen=True)
class Cluster:
    """A scheduler with its workers and a client."""

    client: Any
    pids: list[int]

    def run(self, program: Program) -> Quality:
        """Run `program` once and return its measurements."""
        client = self.client
        client.run(quality_meter.begin)
        before = self.memory()
        sampled = process_costs.sampled(self.memory, INTERVAL_SECONDS)
        with sampled as samples, client.as_current():
            started = time.perf_counter()
            program(client)
            seconds = time.perf_counter() - started
        workers = client.run(quality_meter.end).values()
        time.sleep(PAUSE_SECONDS)
        return Quality(
            transferred_mb=sum(nbytes for nbytes, _ in workers) / 1e6,
            managed_mb=peak([changes for _, changes in workers]) / 1e6,
            process_mb=max(0.0, max(samples, default=before) - before),
            seconds=seconds,
        )

    def memory(self) -> float:
        """Return the current memory of all worker processes, in MB."""
        return sum(map(process_costs.memory, self.pids))


def peak(workers: Sequence[Sequence[tuple[float, int]]]) -> int:
    """Return the peak of the sum over `workers`, each given as changes (seconds, bytes held)."""
    events = sorted(
        (when, n, nbytes) for n, changes in enumerate(workers) for when, nbytes in changes
    )
    now = [0] * len(workers)
    highest = 0
    for _, n, nbytes in events:
        now[n] = nbytes
        highest = max(highest, sum(now))
    return highest


@contextlib.contextmanager
def running_cluster(command: Sequence[str], layout: tuple[int, int] = LAYOUT) -> Iterator[Cluster]:
    """Start a scheduler, its workers (how many, and threads of each) and a client."""
    from distributed import Client

    count, threads = layout
    with contextlib.ExitStack() as stack:
        _, port = stack.enter_context(running_scheduler(command))
        address = f"tcp://127.0.0.1:{port}"
        processes = stack.enter_context(real_workers(address, count, threads))
        client = Client(address, timeout=START_TIMEOUT_SECONDS, set_as_default=False)
        stack.enter_context(client)
        client.wait_for_workers(count, timeout=START_TIMEOUT_SECONDS)
        yield Cluster(client, processes)


def integration_programs() -> dict[str, Program]:
    """Return the programs of the integration tests."""
    found: dict[str, Program] = {}
    for name in INTEGRATION:
        module = importlib.import_module(f"tests.integration.programs.{name}")
        for title, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__
            if own and list(inspect.signature(function).parameters) == ["client"]:
                found[f"{name}.{title}"] = function
    return found


def median(runs: Sequence[Quality]) -> Quality:
    """Return the median of each measurement."""
    return Quality(
        *(
            statistics.median(getattr(run, name) for run in runs)
            for name in Quality.__dataclass_fields__
        )
    )


def measure(
    programs: dict[str, Program],
    stock: Sequence[str],
    paceline: Sequence[str],
    repeat: int = REPEAT,
    layout: tuple[int, int] = LAYOUT,
) -> dict[str, tuple[Quality, Quality]]:
    """Return the medians of the stock scheduler and of paceline for each program."""
    out: dict[str, tuple[Quality, Quality]] = {}
    with running_cluster(stock, layout) as theirs, running_cluster(paceline, layout) as ours:
        for title, program in programs.items():
            runs: dict[str, list[Quality]] = {"theirs": [], "ours": []}
            for cluster in (theirs, ours):  # a warm-up: workers import modules
                cluster.run(program)
            for i in range(repeat):
                pair = [("theirs", theirs), ("ours", ours)]
                for side, cluster in pair if i % 2 else pair[::-1]:
                    runs[side].append(cluster.run(program))
            out[title] = median(runs["theirs"]), median(runs["ours"])
            print(f"  {title}: stock {rounded(out[title][0])}, paceline {rounded(out[title][1])}")
    return out


def mean_ratio(found: Iterable[tuple[Quality, Quality]], name: str) -> float:
    """Return the geometric mean of the ratios of one measurement to that of the stock scheduler."""
    least = 0.0 if name == "seconds" else SMALLEST_MB
    pairs = [[max(least, getattr(run, name)) for run in pair] for pair in found]
    return statistics.geometric_mean(ours / stock for stock, ours in pairs)


def rounded(quality: Quality) -> str:
    """Return the measurements as text."""
    return (
        f"{quality.transferred_mb:.1f} MB transferred, {quality.managed_mb:.0f} MB managed, "
        f"workers +{quality.process_mb:.0f} MB, {quality.seconds:.2f} s"
    )
