"""Latency of round trips and gathers with two stock workers, and stalls under a large graph."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import process_costs
from .graphs import merge
from .per_task import (
    RUN_TIMEOUT_SECONDS,
    START_TIMEOUT_SECONDS,
    UNLIMITED,
    real_workers,
    running_scheduler,
    stop,
    zero_workers,
)

#: The large graph runs on zero workers; real ones would take minutes.
ZERO_WORKERS = 24
#: A large graph is released within this time.
RELEASE_SECONDS = 3.0
#: The memory of the scheduler is read at this interval.
MEMORY_INTERVAL_SECONDS = 0.02


@dataclass(frozen=True)
class Sizes:
    """Numbers of operations, and sizes of their data."""

    round_trips: int = 200
    chain: int = 100
    large_graph: int = 200_000
    gather_count: int = 8
    gather_each_nbytes: int = 200_000_000


SMOKE = Sizes(10, 10, 2_000, 2, 1_000_000)


@dataclass(frozen=True)
class Latencies:
    """Results. The suffix of each name is its unit."""

    submit_median_ms: float
    submit_p95_ms: float
    chain_ms: float
    large_graph_s: float
    stall_max_ms: float
    release_stall_max_ms: float
    gather_s: float
    gather_peak_mb: float


def round_trips(client: Any, count: int) -> list[float]:
    """Return the sorted milliseconds from `submit` to the result, for `count` tasks."""
    times = []
    for i in range(count):
        started = time.perf_counter()
        client.submit(max, i, 0, pure=False).result()
        times.append((time.perf_counter() - started) * 1e3)
    return sorted(times)


def chain(client: Any, length: int) -> float:
    """Return the milliseconds for `length` futures, each an argument of the next."""
    started = time.perf_counter()
    future = client.submit(max, 0, 0, pure=False)
    for i in range(length):
        future = client.submit(max, future, i, pure=False)
    future.result()
    return (time.perf_counter() - started) * 1e3


@contextlib.contextmanager
def probe(address: str) -> Iterator[Callable[[], float]]:
    """Start another client, and yield a function that returns its longest response time.

    The function returns the milliseconds of the longest response since its previous call.
    """
    command = [sys.executable, "-m", "benchmarks.probe", address]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
    assert process.stdin is not None and process.stdout is not None
    requests, replies = process.stdin, process.stdout

    def longest() -> float:
        requests.write("\n")
        return float(replies.readline())

    try:
        if replies.readline().strip() != "ready":
            raise RuntimeError("The probe did not start; see its error above")
        yield longest
    finally:
        stop(process)


def large_graph(
    client: Any, longest_response: Callable[[], float], size: int
) -> tuple[float, float, float]:
    """Compute and release a graph of `size` tasks.

    Return the seconds to its result, and the longest response times (ms) of the other client
    until then and during the release.
    """
    from distributed import wait

    graph, outputs = merge(size, f"stall{size}")
    longest_response()
    started = time.perf_counter()
    (future,) = client.get(graph, outputs, sync=False)
    wait(future, timeout=RUN_TIMEOUT_SECONDS)  # zero workers cannot send a result
    seconds = time.perf_counter() - started
    stall = longest_response()
    del future
    time.sleep(RELEASE_SECONDS)
    return seconds, stall, longest_response()


def gather(client: Any, pid: int, sizes: Sizes) -> tuple[float, float]:
    """Gather results through the scheduler.

    Return the seconds, and the megabytes by which the process `pid` grows.
    """
    import numpy as np
    from distributed import wait

    count, nbytes = sizes.gather_count, sizes.gather_each_nbytes
    futures = client.map(np.ones, [nbytes // 8] * count, pure=False)
    wait(futures)
    before = process_costs.memory(pid)
    with process_costs.sampled(
        lambda: process_costs.memory(pid), MEMORY_INTERVAL_SECONDS
    ) as samples:
        started = time.perf_counter()
        results = client.gather(futures, direct=False)
        seconds = time.perf_counter() - started
    if sum(result.nbytes for result in results) != count * nbytes:
        raise RuntimeError("The gathered results have the wrong size")
    return seconds, max(samples, default=before) - before


def measure(command: Sequence[str], sizes: Sizes) -> Latencies:
    """Measure the scheduler started by `command`.

    One cluster with real workers serves the round trips and the gather, another one with zero
    workers the large graph.
    """
    from distributed import Client

    with contextlib.ExitStack() as stack:
        scheduler, port = stack.enter_context(running_scheduler(command))
        address = f"tcp://127.0.0.1:{port}"
        stack.enter_context(real_workers(address, 2, 1, UNLIMITED))
        client = stack.enter_context(Client(address, timeout=START_TIMEOUT_SECONDS))
        client.wait_for_workers(2, timeout=START_TIMEOUT_SECONDS)
        round_trips(client, 10)
        times = round_trips(client, sizes.round_trips)
        chained = chain(client, sizes.chain)
        loop = process_costs.listener(port, process_costs.descendants(scheduler))
        gathered, grown = gather(client, loop, sizes)
    with contextlib.ExitStack() as stack:
        _, port = stack.enter_context(running_scheduler(command))
        stack.enter_context(zero_workers(port, ZERO_WORKERS))
        address = f"tcp://127.0.0.1:{port}"
        client = stack.enter_context(Client(address, timeout=START_TIMEOUT_SECONDS))
        longest_response = stack.enter_context(probe(address))
        large_graph(client, longest_response, min(sizes.large_graph, 1_000))
        seconds, stall, release_stall = large_graph(client, longest_response, sizes.large_graph)
    return Latencies(
        submit_median_ms=statistics.median(times),
        submit_p95_ms=times[int(len(times) * 0.95) - 1],
        chain_ms=chained,
        large_graph_s=seconds,
        stall_max_ms=stall,
        release_stall_max_ms=release_stall,
        gather_s=gathered,
        gather_peak_mb=grown,
    )
