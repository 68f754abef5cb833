"""Clients that share a cluster, tasks that hang, and a slow worker, with real processes.

``python -m benchmarks.sharing [NAME …]`` runs each scenario with stock workers and stock clients,
on ``dask scheduler`` and on paceline. The tasks sleep, so they do not compete for processors.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .fairness import WINDOW_SECONDS, jain_index
from .per_task import (
    PACELINE,
    START_TIMEOUT_SECONDS,
    STOCK,
    UNLIMITED,
    real_workers,
    running_scheduler,
)

#: Settings of the schedulers; stock ignores them.
SETTINGS = {
    "DASK_PACELINE__SCHEDULER__SPECULATION": "true",
    "DASK_PACELINE__SCHEDULER__RESTART_STUCK_WORKERS": "true",
}
N_EQUAL = 10
#: Clients submit their work one after the other. With less than 0.1 s in between, stock takes it
#: for one graph.
PAUSE_SECONDS = 0.3
WEIGHTS = {"one": 1, "two": 2, "four": 4}
#: Time for which the use of clients with weights is observed, in seconds.
WEIGHTED_SECONDS = 12.0
N_SLOW_WORKERS, N_SLOW_TASKS = 20, 600
SLOW_FACTOR = 10.0
#: Timeout of the task that hangs, and for how long it sleeps, in seconds.
HANG_TIMEOUT_SECONDS, HANG_SECONDS = 2.0, 20.0

#: When tasks of a client started and stopped.
Spans = list[tuple[float, float]]


# ------------------------------------------------------------------ tasks


def work(i: int, seconds: float) -> tuple[float, float]:
    """Sleep for `seconds`. Return when that started and stopped."""
    started = time.time()
    time.sleep(seconds)
    return started, time.time()


def varied_work(i: int, prefix: str) -> None:
    """Sleep for 0.5 to 1.5 s, longer on a slow worker, and count the run there."""
    from distributed import get_worker

    worker: Any = get_worker()
    worker.runs = getattr(worker, "runs", 0) + 1
    time.sleep((0.5 + i * 0.618 % 1.0) * getattr(worker, "slowness", 1.0))


def take_runs(dask_worker: Any) -> int:
    """Return the number of runs since the last call."""
    n = getattr(dask_worker, "runs", 0)
    dask_worker.runs = 0
    return n


def slow_down(dask_worker: Any) -> None:
    """Let tasks take longer on this worker."""
    dask_worker.slowness = SLOW_FACTOR


# ------------------------------------------------------------------ clients


@contextlib.contextmanager
def connected(address: str, name: str, n_workers: int) -> Iterator[Any]:
    """Yield a client with this name when all workers are there."""
    from distributed import Client

    with Client(address, name=name, timeout=START_TIMEOUT_SECONDS, set_as_default=False) as client:
        client.wait_for_workers(n_workers, timeout=START_TIMEOUT_SECONDS)
        yield client


def submit(client: Any, n: int, seconds: float, name: str) -> list[Any]:
    """Submit `n` tasks of `seconds`."""
    futures: list[Any] = client.map(work, range(n), seconds=seconds, key=f"{name}-work", pure=False)
    return futures


def used(spans: Spans, first: float, last: float) -> float:
    """Return the thread-seconds of `spans` between two times."""
    return sum(max(0.0, min(stop, last) - max(start, first)) for start, stop in spans)


def least_index(clients: Sequence[Spans], first: float, last: float) -> float:
    """Return the least Jain index over all windows of ten seconds between two times."""
    least = 1.0
    while first + WINDOW_SECONDS <= last:
        least = min(
            least, jain_index([used(spans, first, first + WINDOW_SECONDS) for spans in clients])
        )
        first += 0.5
    return least


def deviation(usage: dict[str, float]) -> float:
    """Return the largest relative deviation of `usage` from ``WEIGHTS``."""
    unit = sum(usage.values()) / sum(WEIGHTS.values())
    return max(abs(usage[name] / (unit * weight) - 1) for name, weight in WEIGHTS.items())


# ------------------------------------------------------------------ scenarios


def short_beside_long(address: str, is_stock: bool) -> str:
    """Measure a job of 3 s, alone and beside one of 25 s that was submitted 3 s before."""
    with (
        real_workers(address, 2, 2),
        connected(address, "first", 2) as first,
        connected(address, "long", 2) as long,
        connected(address, "short", 2) as short,
    ):
        first.gather(submit(first, 4, 0.1, "warm"))
        started = time.perf_counter()
        first.gather(submit(first, 60, 0.2, "alone"))
        alone = time.perf_counter() - started
        futures = submit(long, 400, 0.25, "long")
        time.sleep(3.0)
        started = time.perf_counter()
        short.gather(submit(short, 60, 0.2, "short"))
        beside = time.perf_counter() - started
        del futures
    return f"{alone:.1f} s alone, {beside:.1f} s beside a long job: {beside / alone:.2f} times"


def equal_clients(address: str, is_stock: bool) -> str:
    """Measure how the time of 8 threads is divided between ten clients with 16 s of work each."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(real_workers(address, 2, 4))
        clients = [stack.enter_context(connected(address, f"c{i}", 2)) for i in range(N_EQUAL)]
        clients[0].gather(submit(clients[0], 8, 0.1, "warm"))
        began = time.time()
        futures = []
        for i, client in enumerate(clients):
            futures.append(submit(client, 80, 0.2, f"c{i}"))
            time.sleep(PAUSE_SECONDS)
        submitted = time.time()
        found = [client.gather(each) for client, each in zip(clients, futures, strict=True)]
    done = [max(stop for _, stop in spans) for spans in found]
    # without shares, the first clients are done before the last ones start
    least = least_index(found, submitted, max(done) if is_stock else min(done))
    return f"least Jain index over 10 s {least:.3f}, all done in {max(done) - began:.1f} s"


def weighted_clients(address: str, is_stock: bool) -> str:
    """Measure how the time of 8 threads is divided between clients with weights."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(real_workers(address, 2, 4))
        clients = {name: stack.enter_context(connected(address, name, 2)) for name in WEIGHTS}
        if not is_stock:
            command = [sys.executable, "-m", "paceline.scheduler", "shares"]
            for name, weight in WEIGHTS.items():
                options = [name, "--address", address, "--weight", str(weight)]
                subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
        warm = stack.enter_context(connected(address, "warm", 2))
        warm.gather(submit(warm, 8, 0.1, "warm"))
        began = time.time()  # shares make up for what the first clients got before the last came
        futures = {}
        for name, client in clients.items():
            futures[name] = submit(client, 600, 0.1, name)
            time.sleep(PAUSE_SECONDS)
        ended = began + WEIGHTED_SECONDS
        time.sleep(WEIGHTED_SECONDS)
        spans = {
            name: client.gather([each for each in futures[name] if each.status == "finished"])
            for name, client in clients.items()
        }
        futures.clear()
    usage = {name: used(spans[name], began, ended) for name in WEIGHTS}
    shares = " : ".join(f"{seconds:.1f}" for seconds in usage.values())
    return f"thread-seconds {shares}, largest deviation from 1:2:4 {deviation(usage):.1%}"


def hung_task(address: str, is_stock: bool) -> str:
    """Measure when the client of a task that hangs gets an answer, and when the thread is free."""
    import dask

    with real_workers(address, 1, 1, UNLIMITED), connected(address, "c", 1) as client:
        client.gather(submit(client, 1, 0.1, "warm"))
        started = time.perf_counter()
        with dask.annotate(timeout=HANG_TIMEOUT_SECONDS):
            hung = client.submit(work, 0, HANG_SECONDS, key="hung", pure=False)
        error = hung.exception()
        answered = time.perf_counter() - started
        client.submit(work, 0, 0.1, pure=False).result()
        usable = time.perf_counter() - started
    answer = type(error).__name__ if error is not None else "the result"
    return f"{answer} after {answered:.1f} s, next task of the only thread after {usable:.1f} s"


def slow_worker(address: str, is_stock: bool) -> str:
    """Measure 600 tasks of 0.5 to 1.5 s on 20 workers, and again when one is ten times slower."""
    with (
        real_workers(address, N_SLOW_WORKERS, 1),
        connected(address, "c", N_SLOW_WORKERS) as client,
    ):
        client.gather(client.map(work, range(40), seconds=0.05, pure=False))
        seconds, runs = [], []
        for name in ("even", "slow"):
            started = time.perf_counter()
            client.gather(
                client.map(varied_work, range(N_SLOW_TASKS), prefix=name, key=f"{name}-run")
            )
            seconds.append(time.perf_counter() - started)
            runs.append(sum(client.run(take_runs).values()))
            first = min(client.scheduler_info(n_workers=-1)["workers"])
            client.run(slow_down, workers=[first])
    return (
        f"{seconds[0]:.1f} s, with a slow worker {seconds[1]:.1f} s: "
        f"{seconds[1] / seconds[0]:.2f} times, {runs[1] - N_SLOW_TASKS} tasks run twice"
    )


SCENARIOS: dict[str, Callable[[str, bool], str]] = {
    scenario.__name__: scenario
    for scenario in (short_beside_long, equal_clients, weighted_clients, hung_task, slow_worker)
}


def main(arguments: list[str] | None = None) -> None:
    """Run the scenarios that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--stock", default=shlex.join(STOCK), help="empty to skip it")
    parser.add_argument("--paceline", default=shlex.join(PACELINE), help="empty to skip it")
    options = parser.parse_args(arguments)
    os.environ.update(SETTINGS)
    for name in options.names or SCENARIOS:
        for command in (options.stock, options.paceline):
            if not command:
                continue
            with running_scheduler(shlex.split(command)) as (_, port):
                found = SCENARIOS[name](f"tcp://127.0.0.1:{port}", command == options.stock)
            label = "stock" if command == options.stock else "paceline"
            print(f"{name}, {label}: {found}", flush=True)


if __name__ == "__main__":
    main()
