"""Cost per task of a scheduler command, with zero workers, a stock client and one kind of graph."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from . import process_costs
from .graphs import SHAPES

STOCK = (sys.executable, "-m", "dask", "scheduler")
PACELINE = (os.path.join(os.path.dirname(sys.executable), "paceline"),)

#: Options of workers that are single processes, and of those with a nanny and no memory limit.
WITHOUT_NANNY = ("--no-nanny", "--memory-limit", "4GB")
UNLIMITED = ("--memory-limit", "0")

START_TIMEOUT_SECONDS = 60
RUN_TIMEOUT_SECONDS = 600
#: A scheduler that uses less CPU time in a tenth of a second has released everything.
SETTLED_CPU_SECONDS = 0.004
WARM_UP_TASKS = 2_000

CONFIG = {
    # zero workers send no heartbeats and must not be removed
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "None",
    # both schedulers optimize graphs in the same way: which tasks dask fuses depends on it
    "PYTHONHASHSEED": "0",
}


@dataclass(frozen=True)
class Case:
    """A graph of one shape and size on a number of workers, computed `repeat` times.

    `all_features` adds a scheduler plugin that receives every transition, and a span. Stealing and
    the active memory manager are always on.
    """

    shape: str
    tasks: int
    workers: int
    repeat: int = 3
    all_features: bool = False


@dataclass(frozen=True)
class Measured:
    """Medians over the repetitions. Microseconds and bytes are per task.

    `loop` is the process that listens, `other` are the scheduler's other processes, which compile
    graphs. Memory is the growth from before the submission until all results are available.
    """

    loop_us: float
    other_us: float
    wall_us: float
    loop_nbytes: float
    loop_peak_nbytes: float
    other_nbytes: float

    @property
    def total_us(self) -> float:
        return self.loop_us + self.other_us


def free_port() -> int:
    """Return a TCP port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop(process: subprocess.Popen[Any]) -> None:
    """Terminate `process`, and kill it if it does not exit within 10 s."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running_scheduler(command: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Start a scheduler and yield its process id and port when it accepts connections."""
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--dashboard-address", "127.0.0.1:0"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, *options], stdout=log, stderr=log, env={**os.environ, **CONFIG}
        )
        try:
            deadline = time.monotonic() + START_TIMEOUT_SECONDS
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        log.seek(0)
                        raise RuntimeError(f"{command} did not start:\n{log.read()}") from None
                    time.sleep(0.05)
            yield process.pid, port
        finally:
            stop(process)


@contextlib.contextmanager
def real_workers(
    address: str,
    count: int,
    threads: int,
    options: Sequence[str] = WITHOUT_NANNY,
    log: IO[str] | int = subprocess.DEVNULL,
) -> Iterator[list[int]]:
    """Start `count` stock workers, which write to `log`, and yield their process ids."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        command = [sys.executable, "-m", "dask", "worker", address, "--nthreads", str(threads)]
        command += ["--no-dashboard", "--host", "127.0.0.1", "--local-directory", folder, *options]
        # numpy's own threads would compete for the cores; freed memory is trimmed as under a nanny
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment |= {"MALLOC_TRIM_THRESHOLD_": "65536"}
        processes = []
        for _ in range(count):
            process = subprocess.Popen(command, stderr=log, env=environment)
            stack.callback(stop, process)
            processes.append(process.pid)
        yield processes


@contextlib.contextmanager
def zero_workers(port: int, count: int) -> Iterator[Callable[[], dict[str, int]]]:
    """Start `count` zero workers and wait until they have registered.

    Yield a function that returns the counts of what they were sent (`zero_workers.Ledger.counts`).
    """
    command = [sys.executable, "-m", "benchmarks.zero_workers", "127.0.0.1", str(port), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def counts() -> dict[str, int]:
        assert process.stdin is not None and process.stdout is not None
        print(file=process.stdin, flush=True)
        return dict(json.loads(process.stdout.readline()))

    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError("The zero workers did not register; see their error above")
        yield counts
    finally:
        stop(process)


def settle(
    pids: Callable[[], Iterable[int]], idle_cpu_seconds: float = SETTLED_CPU_SECONDS
) -> None:
    """Wait until the scheduler has released all tasks that are no longer needed.

    Args:
        pids: a function that returns the processes that take part.
        idle_cpu_seconds: the CPU time that they use in a tenth of a second when idle.
    """
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    before = -1.0
    while time.monotonic() < deadline:
        now = sum(map(process_costs.cpu_seconds, pids()))
        if 0 <= now - before < idle_cpu_seconds:
            return
        before = now
        time.sleep(0.1)


def settle_all(scheduler: int) -> None:
    """Wait until all processes of the scheduler are idle."""
    settle(lambda: process_costs.descendants(scheduler))


def counting_plugin() -> Any:
    """Return a typical scheduler plugin. Its class is local, so that it is pickled by value."""
    from distributed import SchedulerPlugin

    class Counting(SchedulerPlugin):
        def __init__(self) -> None:
            self.counts: dict[str, int] = {}

        def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
            self.counts[finish] = self.counts.get(finish, 0) + 1

    return Counting()


def run_once(
    client: Any,
    case: Case,
    tag: str,
    scheduler: int,
    loop: int,
    settled: Callable[[int], None] = settle_all,
) -> Measured:
    """Compute one graph and return its cost, from submission until it is released.

    Args:
        client: a stock client.
        case: the graph to compute.
        tag: a part of the keys that is different in each run.
        scheduler: the id of the process that was started.
        loop: the id of the process with the event loop.
        settled: a function that waits until the graph is released.

    Raises:
        RuntimeError: a result is missing.
    """
    from distributed import wait

    graph, outputs = SHAPES[case.shape](case.tasks, tag)
    process_costs.reset_peak(loop)
    before, started = process_costs.read(scheduler, loop), time.perf_counter()
    futures = client.get(graph, outputs, sync=False)
    wait(futures, timeout=RUN_TIMEOUT_SECONDS)
    wall = time.perf_counter() - started
    computed, peak = process_costs.read(scheduler, loop), process_costs.memory(loop, "VmHWM")
    failed = [future for future in futures if future.status != "finished"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(futures)} tasks failed, first {failed[0]}")
    del futures
    settled(scheduler)
    spent, grown = process_costs.read(scheduler, loop) - before, computed - before
    micro, nbytes = 1e6 / len(graph), process_costs.MEGABYTE / len(graph)
    return Measured(
        loop_us=spent.loop_cpu * micro,
        other_us=spent.other_cpu * micro,
        wall_us=wall * micro,
        loop_nbytes=grown.loop_memory * nbytes,
        loop_peak_nbytes=(peak - before.loop_memory) * nbytes,
        other_nbytes=grown.other_memory * nbytes,
    )


def measure(command: Sequence[str], case: Case) -> Measured:
    """Return the medians of `case`, on a new scheduler after a warm-up."""
    from distributed import Client, span

    with contextlib.ExitStack() as stack:
        scheduler, port = stack.enter_context(running_scheduler(command))
        stack.enter_context(zero_workers(port, case.workers))
        address = f"tcp://127.0.0.1:{port}"
        with Client(address, timeout=START_TIMEOUT_SECONDS) as client:
            if case.all_features:
                client.register_plugin(counting_plugin())
                stack.enter_context(span("benchmark"))
            loop = process_costs.listener(port, process_costs.descendants(scheduler))
            warm = Case(case.shape, min(case.tasks, WARM_UP_TASKS), case.workers)
            run_once(client, warm, "warm", scheduler, loop)
            runs = [run_once(client, case, f"run{i}", scheduler, loop) for i in range(case.repeat)]
    fields = Measured.__dataclass_fields__
    return Measured(**{name: statistics.median(getattr(r, name) for r in runs) for name in fields})
