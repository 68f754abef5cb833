"""How the time of workers is divided between clients, in simulated time.

The scheduler core runs against model workers: they run ready tasks by priority, fetch inputs at a
limited rate, and give tasks back that they have not begun. Messages take a millisecond.

``python -m benchmarks.fairness`` prints all scenarios, each with share groups and with first come,
first served (``paceline.shares.enabled: false``), which is the policy of the stock scheduler.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.instructions import SetTimer, WantsContinue
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.stimuli import (
    ClientJoined,
    ConfigureStealing,
    Continue,
    Stimulus,
    Tick,
    TimerDue,
    WorkerJoined,
)
from paceline.testing import FakeErrors, Graph, Rows, compile_rows

LATENCY_SECONDS = 0.001
BYTES_PER_SECOND = 100e6
TICK_SECONDS = 0.25
WINDOW_SECONDS = 10.0


@dataclass(eq=False)
class Job:
    """A task on a model worker."""

    message: m.ComputeTask
    missing: dict[Any, None]
    is_running: bool = False


@dataclass(eq=False)
class Worker:
    """A model worker."""

    address: str
    nthreads: int
    jobs: dict[Any, Job] = field(default_factory=dict)
    data: dict[Any, None] = field(default_factory=dict)
    fetching: dict[Any, None] = field(default_factory=dict)
    n_running: int = 0


class Cluster:
    """The core, model workers, and clients that submit graphs.

    Args:
        shares: whether share groups are on.
        n_workers, nthreads: size of the cluster.
        config: further settings of the core.

    Attributes:
        runs: (client, start, stop) of each task that finished, in seconds.
        done_at: client -> time at which its last task finished.
        moved_nbytes: bytes that workers fetched.
    """

    def __init__(self, shares: bool, n_workers: int = 8, nthreads: int = 2, **config: Any) -> None:
        self.core = SchedulerCore(
            SchedulerConfig(shares_enabled=shares, **config), FakeErrors(), EventLog(100)
        )
        self.now = 1000.0
        self.rng = Random(0)
        self.runs: list[tuple[str, float, float]] = []
        self.done_at: dict[str, float] = {}
        self.moved_nbytes = 0
        self.seconds: dict[Any, float] = {}
        self.nbytes: dict[Any, int] = {}
        self.owner: dict[Any, str] = {}
        self.n_left = 0
        self.workers: dict[str, Worker] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count(1)
        for i in range(n_workers):
            worker = Worker(f"w{i}", nthreads)
            self.workers[worker.address] = worker
            message = m.RegisterWorker(
                address=worker.address, name=worker.address, nthreads=nthreads
            )
            self.feed(WorkerJoined(worker.address, worker.address, message), worker.address)
        self.feed(ConfigureStealing(True))
        self._tick()

    # -- time and messages

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Call ``what(*args)`` at a time."""
        heapq.heappush(self._events, (when, next(self._numbers), what, args))

    def after(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        """Call ``what(*args)`` after a time."""
        self.at(self.now + seconds, what, *args)

    def run(self) -> None:
        """Run until all tasks have finished."""
        while self.n_left:
            self.now, _, what, args = heapq.heappop(self._events)
            what(*args)

    def end_of_submissions(self) -> None:
        """Let ``run`` return once all submitted tasks have finished."""
        self.n_left -= 1

    def _tick(self) -> None:
        self.feed(Tick())
        self.after(TICK_SECONDS, self._tick)

    def feed(self, message: Any, source: str = "") -> None:
        """Run one turn of the core, and deliver what it sends."""
        outbox = self.core.handle(Stimulus(source, message, "s"), self.now)
        for instruction in outbox.instructions:
            if type(instruction) is WantsContinue:
                self.after(0.0, self.feed, Continue())
            elif type(instruction) is SetTimer:
                self.at(max(instruction.when, self.now), self.feed, TimerDue(instruction.timer_id))
        for address, messages in outbox.workers.items():
            for each in messages:
                self.after(LATENCY_SECONDS, self._receive, self.workers[address], each)

    def submit(self, client: str, graph: Graph, seconds: float, nbytes: int = 1000) -> None:
        """Submit `graph` now. Its tasks take about `seconds` and return `nbytes`."""
        self.feed(ClientJoined(client), client)
        for key in graph:
            self.seconds[key] = seconds * self.rng.uniform(0.8, 1.2)
            self.nbytes[key] = nbytes
            self.owner[key] = client
        self.n_left += len(graph)
        inner = {dependency for dependencies in graph.values() for dependency in dependencies}
        want = [key for key in graph if key not in inner]
        rows = Rows(commit={"received_at": self.now})
        for part in compile_rows(graph, next(self._numbers), want, client, rows):
            self.feed(part, client)

    # -- workers

    def _receive(self, worker: Worker, message: Any) -> None:
        if type(message) is m.ComputeTask:
            missing = dict.fromkeys(key for key in message.who_has if key not in worker.data)
            worker.jobs[message.key] = Job(message, missing)
            for key in missing:
                self._fetch(worker, key)
            self._pump(worker)
        elif type(message) is m.FreeKeys:
            for key in message.keys:
                worker.data.pop(key, None)
                if key in worker.jobs and not worker.jobs[key].is_running:
                    del worker.jobs[key]
        elif type(message) is m.StealRequest:
            job = worker.jobs.get(message.key)
            state = None if job is None else "executing" if job.is_running else "ready"
            if state == "ready":
                del worker.jobs[message.key]
            reply = m.StealResponse(key=message.key, state=state, stimulus_id=message.stimulus_id)
            self.after(LATENCY_SECONDS, self.feed, reply, worker.address)

    def _fetch(self, worker: Worker, key: Any) -> None:
        if key not in worker.fetching:
            worker.fetching[key] = None
            self.after(self.nbytes[key] / BYTES_PER_SECOND, self._fetched, worker, key)

    def _fetched(self, worker: Worker, key: Any) -> None:
        del worker.fetching[key]
        worker.data[key] = None
        self.moved_nbytes += self.nbytes[key]
        for job in worker.jobs.values():
            job.missing.pop(key, None)
        self.feed(m.AddKeys(keys=[key]), worker.address)
        self._pump(worker)

    def _pump(self, worker: Worker) -> None:
        ready = [job for job in worker.jobs.values() if not job.is_running and not job.missing]
        ready.sort(key=lambda job: job.message.priority)
        for job in ready[: worker.nthreads - worker.n_running]:
            job.is_running = True
            worker.n_running += 1
            self.after(self.seconds[job.message.key], self._finish, worker, job, self.now)

    def _finish(self, worker: Worker, job: Job, start: float) -> None:
        key = job.message.key
        worker.n_running -= 1
        del worker.jobs[key]
        worker.data[key] = None
        client = self.owner[key]
        self.runs.append((client, start, self.now))
        self.done_at[client] = self.now
        self.n_left -= 1
        span = m.StartStop(action="compute", start=start, stop=self.now)
        report = m.TaskFinished(
            key=key,
            run_id=job.message.run_id,
            nbytes=self.nbytes[key],
            typename="int",
            startstops=[span],
        )
        self.after(LATENCY_SECONDS, self.feed, report, worker.address)
        self._pump(worker)

    # -- results

    def used(self, first: float, last: float) -> dict[str, float]:
        """Return the thread-seconds of each client between two times."""
        out: dict[str, float] = dict.fromkeys(self.done_at, 0.0)
        for client, start, stop in self.runs:
            out[client] += max(0.0, min(stop, last) - max(start, first))
        return out


def roots(name: str, n: int) -> Graph:
    """Return `n` tasks without dependencies."""
    return {(name, i): [] for i in range(n)}


def chains(name: str, n: int, length: int) -> Graph:
    """Return `n` chains of `length` tasks."""
    return {
        (f"{name}-{j}", i): [(f"{name}-{j - 1}", i)] if j else []
        for i in range(n)
        for j in range(length)
    }


# ------------------------------------------------------------------ scenarios


def short_beside_long(shares: bool, graph: Callable[[str, int], Graph] = roots) -> float:
    """Return how many times longer a short job takes beside a long one than alone."""
    alone = Cluster(shares)
    alone.submit("short", graph("s", 400), 0.4)
    begin = alone.now
    alone.run()
    expected = alone.done_at["short"] - begin
    both = Cluster(shares)
    both.submit("long", graph("l", 6000), 0.5)
    begin = both.now + 20.0
    both.at(begin, both.submit, "short", graph("s", 400), 0.4)
    both.run()
    return (both.done_at["short"] - begin) / expected


def equal_clients(shares: bool, n: int = 10) -> float:
    """Return the least Jain index of `n` equal clients over all windows of ten seconds."""
    cluster = Cluster(shares)
    begin = cluster.now
    for i in range(n):
        cluster.at(begin + i / 10, cluster.submit, f"c{i}", roots(f"t{i}", 500), 0.2)
    cluster.n_left = 1  # until all have submitted
    cluster.at(begin + n / 10, cluster.end_of_submissions)
    cluster.run()
    last = min(cluster.done_at.values()) if shares else max(cluster.done_at.values())
    worst = 1.0
    first = begin + n / 10
    while first + WINDOW_SECONDS <= last:
        used = list(cluster.used(first, first + WINDOW_SECONDS).values())
        worst = min(worst, sum(used) ** 2 / (n * sum(each**2 for each in used)))
        first += 1.0
    return worst


def weighted_clients(shares: bool) -> float:
    """Return the largest relative deviation from the weights 1, 2 and 4, while all have work."""
    weights = {"c1": 1, "c2": 2, "c4": 4}
    groups = {name: {"weight": float(weight)} for name, weight in weights.items()}
    cluster = Cluster(shares, shares_groups=groups)
    begin = cluster.now
    for name in weights:
        cluster.submit(name, roots(f"t{name}", 3000), 0.2)
    cluster.run()
    used = cluster.used(begin, min(cluster.done_at.values()))
    total = sum(used.values())
    return max(abs(used[name] / total * 7 / weight - 1) for name, weight in weights.items())


def makespan(shares: bool, graph: Callable[[str, int], Graph], nbytes: int) -> tuple[float, int]:
    """Return the time for the work of five clients, and the bytes moved."""
    cluster = Cluster(shares)
    begin = cluster.now
    for i in range(5):
        cluster.submit(f"c{i}", graph(f"t{i}", 200), 0.2, nbytes)
    cluster.run()
    return max(cluster.done_at.values()) - begin, cluster.moved_nbytes


def chains_of_four(name: str, n: int) -> Graph:
    """Return `n` chains of four tasks."""
    return chains(name, n, 4)


def pairs(name: str, n: int) -> Graph:
    """Return `n` tasks of which each two neighbours are added."""
    sums: Graph = {(f"{name}-sum", i): [(name, i), (name, i + 1)] for i in range(n - 1)}
    return {**roots(name, n), **sums}


def main(arguments: list[str] | None = None) -> None:
    """Print all scenarios."""
    argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__).parse_args(
        arguments
    )
    for shares in (True, False):
        print(f"\nshares: {'on' if shares else 'off'}")
        print(
            f"  short job beside a long one: {short_beside_long(shares):.2f} times its time alone"
        )
        ratio = short_beside_long(shares, chains_of_four)
        print(f"  the same with chains: {ratio:.2f} times")
        print(f"  ten equal clients, least Jain index over 10 s: {equal_clients(shares):.3f}")
        print(f"  weights 1:2:4, largest deviation: {weighted_clients(shares):.1%}")
        for graph in (roots, chains_of_four, pairs):
            seconds, moved = makespan(shares, graph, 10_000_000)
            print(f"  five clients, {graph.__name__}: {seconds:.1f} s, {moved / 1e6:.0f} MB moved")


if __name__ == "__main__":
    main()
