"""What a user feels, with two real stock workers: round trips, stalls, gathering through the scheduler.

It must not know which scheduler it measures, nor how the numbers are shown.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import process_costs
from .graphs import merge
from .per_task import RUN_TIMEOUT_SECONDS, START_TIMEOUT_SECONDS, running_scheduler, stop

PROBE_INTERVAL_SECONDS = 0.005


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    round_trips: int = 200
    chain: int = 100
    large_graph: int = 100_000
    gather_count: int = 8
    gather_each_nbytes: int = 200_000_000


SMOKE = Sizes(10, 10, 2_000, 2, 1_000_000)


@dataclass(frozen=True)
class Felt:
    """Milliseconds, seconds and megabytes."""

    submit_median_ms: float
    submit_p95_ms: float
    chain_ms: float
    large_graph_s: float
    stall_max_ms: float
    release_stall_max_ms: float
    gather_s: float
    gather_peak_mb: float


@contextlib.contextmanager
def workers(address: str, count: int) -> Iterator[None]:
    """Stock worker processes with one thread each."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "dask", "worker", address, "--nthreads", "1"]
        command += ["--no-dashboard", "--memory-limit", "0", "--host", "127.0.0.1"]
        command += ["--local-directory", folder]
        for _ in range(count):
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(stop, process)
        yield


@contextlib.contextmanager
def watched(look: Callable[[], float], interval: float) -> Iterator[list[float]]:
    """Call `look` again and again in a thread, and gather what it returns."""
    seen: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.append(look())
            time.sleep(interval)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def round_trips(client: Any, count: int) -> list[float]:
    """Milliseconds from `submit` to its result."""
    times = []
    for i in range(count):
        started = time.perf_counter()
        client.submit(max, i, 0, pure=False).result()
        times.append((time.perf_counter() - started) * 1e3)
    return sorted(times)


def chain(client: Any, length: int) -> float:
    """Milliseconds for so many futures, each an argument of the next."""
    started = time.perf_counter()
    future = client.submit(max, 0, 0, pure=False)
    for i in range(length):
        future = client.submit(max, future, i, pure=False)
    future.result()
    return (time.perf_counter() - started) * 1e3


def large_graph(client: Any, probe: Any, size: int) -> tuple[float, float, float]:
    """(seconds to the result, longest answer in ms meanwhile, and while all is released)."""

    def ask() -> float:
        started = time.perf_counter()
        probe.ncores()
        return (time.perf_counter() - started) * 1e3

    graph, outputs = merge(size, "stall")
    with watched(ask, PROBE_INTERVAL_SECONDS) as answers:
        started = time.perf_counter()
        (future,) = client.get(graph, outputs, sync=False)
        future.result(timeout=RUN_TIMEOUT_SECONDS)
        seconds = time.perf_counter() - started
    with watched(ask, PROBE_INTERVAL_SECONDS) as later:
        del future
        time.sleep(2)
    return seconds, max(answers), max(later)


def gather(client: Any, pid: int, sizes: Sizes) -> tuple[float, float]:
    """(seconds, megabytes by which the scheduler grows) for results that go through it."""
    from distributed import wait

    count, nbytes = sizes.gather_count, sizes.gather_each_nbytes
    futures = client.map(bytearray, [nbytes] * count, pure=False)
    wait(futures)
    before = process_costs.memory(pid)
    with watched(lambda: process_costs.memory(pid), 0.02) as seen:
        started = time.perf_counter()
        results = client.gather(futures, direct=False)
        seconds = time.perf_counter() - started
    if sum(map(len, results)) != count * nbytes:
        raise RuntimeError("what was gathered is not what was computed")
    return seconds, max(seen) - before


def measure(command: Sequence[str], sizes: Sizes) -> Felt:
    """One fresh cluster, one number after the other."""
    from distributed import Client

    with contextlib.ExitStack() as stack:
        scheduler, port = stack.enter_context(running_scheduler(command))
        address = f"tcp://127.0.0.1:{port}"
        stack.enter_context(workers(address, 2))
        client = stack.enter_context(Client(address, timeout=START_TIMEOUT_SECONDS))
        probe = stack.enter_context(Client(address, set_as_default=False))
        client.wait_for_workers(2, timeout=START_TIMEOUT_SECONDS)
        round_trips(client, 10)
        times = round_trips(client, sizes.round_trips)
        chained = chain(client, sizes.chain)
        seconds, stall, release_stall = large_graph(client, probe, sizes.large_graph)
        loop = process_costs.listener(port, process_costs.descendants(scheduler))
        gathered, grown = gather(client, loop, sizes)
    return Felt(
        submit_median_ms=statistics.median(times),
        submit_p95_ms=times[int(len(times) * 0.95) - 1],
        chain_ms=chained,
        large_graph_s=seconds,
        stall_max_ms=stall,
        release_stall_max_ms=release_stall,
        gather_s=gathered,
        gather_peak_mb=grown,
    )
