"""Adaptive scaling of a cluster with stock's ``AdaptiveCore``, in simulated time.

The scheduler core runs against the model workers of ``benchmarks.simulated``. Workers arrive 25 to
40 s after they were requested, as in a batch system or a cloud.

``python -m benchmarks.autoscaling`` runs each trace with the answers of paceline, and with those of
``distributed.Scheduler.adaptive_target`` and ``workers_to_close`` for the same state. The oracle
knows the future: at each moment it has workers for the tasks that run then, and keeps them in gaps
that are shorter than a start. Worker-seconds count from arrival to closure.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from distributed import Scheduler
from distributed.deploy.adaptive_core import AdaptiveCore
from paceline.protocol import messages as m
from paceline.scheduler.core.policy import scaling
from paceline.scheduler.core.state.estimates import expected_duration
from paceline.scheduler.core.stimuli import (
    SetWorkerStatus,
    SizeCluster,
    WorkerHeartbeat,
    WorkerRemoved,
)
from paceline.testing import Graph

from .fairness import roots
from .simulated import Cluster, Job, Worker

NTHREADS = 2
N_WORKERS_MAX = 20
STARTUP_SECONDS = 25.0, 40.0
INTERVAL_SECONDS = 1.0
TARGET_DURATION_SECONDS = 5.0
#: Time for which the cluster is observed after the last task, seconds.
REST_SECONDS = 120.0

#: A graph with the duration of each task, and the pause before the next graph, in seconds.
Step = tuple[Graph, Callable[[], float], float]


@dataclass
class Session:
    """A worker from its request to its closure."""

    arrived_at: float = 0.0
    closed_at: float = 0.0
    has_run: bool = False


@dataclass
class Result:
    """Figures of a trace.

    Attributes:
        worker_seconds, oracle_seconds: sums over all workers.
        makespan: seconds until the last task finished.
        unused: workers that were closed or cancelled before their first task.
        starts: workers requested.
        repeated: runs of tasks whose result had been computed before.
    """

    worker_seconds: float
    oracle_seconds: float
    makespan: float
    unused: int
    starts: int
    repeated: int


class AdaptiveCluster(Cluster):
    """A cluster that starts and closes model workers."""

    def __init__(self, steps: Iterator[Step], n_workers: int = 0) -> None:
        super().__init__(shares=True, n_workers=0)
        self.begin = self.now
        self.sessions: dict[str, Session] = {}
        self.closing: dict[str, None] = {}
        self.started: dict[Any, float] = {}
        self.run_counts: Counter[Any] = Counter()
        self.steps = steps
        self.is_over = False
        for _ in range(n_workers):
            self._arrive(self.request())
        self.after(0.0, self._step)
        self.after(INTERVAL_SECONDS, self._beat)

    # -- the program

    def _step(self) -> None:
        """Submit the next graph once the one before is done."""
        if self.n_left > 1:
            self.after(0.05, self._step)
            return
        self.n_left = 1  # until the last step
        step = next(self.steps, None)
        if step is None:
            self.is_over = True
            self.n_left = 0
            return
        graph, seconds, pause = step
        self.submit("c", graph, 1.0)
        for key in graph:
            self.seconds[key] = seconds()
        self.after(0.05, self._pause, pause)

    def _pause(self, seconds: float) -> None:
        if self.n_left > 1:
            self.after(0.05, self._pause, seconds)
        else:  # the client has its results
            self.feed(m.ClientReleasesKeys(keys=list(self.seconds), client="c"), "c")
            self.after(seconds, self._step)

    # -- workers

    def request(self) -> str:
        """Request a worker and return its name."""
        name = f"w{len(self.sessions)}"
        self.sessions[name] = Session()
        return name

    def start(self) -> None:
        """Request a worker that arrives later."""
        self.after(self.rng.uniform(*STARTUP_SECONDS), self._arrive, self.request())

    def _arrive(self, name: str) -> None:
        session = self.sessions[name]
        if session.closed_at:
            return
        session.arrived_at = self.now
        self.add_worker(name, NTHREADS, memory_limit=2**33)

    def close(self, name: str) -> None:
        """Cancel the request of a worker, or retire it."""
        if name in self.workers:
            self.feed(SetWorkerStatus(name, "closing_gracefully"))
            self.closing[name] = None
            self._leave(name)
        else:
            self.sessions[name].closed_at = self.now

    def _leave(self, name: str) -> None:
        """Remove a retiring worker when its tasks have ended. Its data moves to another one."""
        ws = self.core.state.workers[name]
        if ws.processing:
            self.after(0.5, self._leave, name)
            return
        others = [each for each in self.core.state.running if each is not ws]
        alone = [ts.key for ts in ws.has_what if len(ts.who_has) == 1]
        if alone and others:
            self.workers[others[0].address].data.update(dict.fromkeys(alone))
            self.feed(m.AddKeys(keys=alone), others[0].address)
        self.feed(WorkerRemoved(name, expected=True), name)
        del self.closing[name]
        del self.workers[name]
        self.sessions[name].closed_at = self.now

    def _receive(self, worker: Worker, message: Any) -> None:
        if worker.address in self.workers:
            super()._receive(worker, message)

    def after(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        if what == self._finish:  # a task starts
            worker, job, _ = args
            self.started[job.message.key] = self.now
            self.sessions[worker.address].has_run = True
        super().after(seconds, what, *args)

    def _finish(self, worker: Worker, job: Job, start: float) -> None:
        del self.started[job.message.key]
        self.run_counts[job.message.key] += 1
        super()._finish(worker, job, start)

    def _beat(self) -> None:
        """Let all workers report what they execute."""
        for worker in list(self.workers.values()):
            executing = {
                key: self.now - self.started[key]
                for key, job in worker.jobs.items()
                if job.is_running
            }
            beat = m.HeartbeatWorker(address=worker.address, executing=executing)
            self.feed(WorkerHeartbeat(worker.address, beat), worker.address)
        self.after(INTERVAL_SECONDS, self._beat)


class SimulatedAdaptive(AdaptiveCore):
    """Stock's logic, applied to a simulated cluster."""

    def __init__(self, cluster: AdaptiveCluster, is_stock: bool) -> None:
        super().__init__(minimum=0, maximum=N_WORKERS_MAX, wait_count=3)
        self.cluster = cluster
        self.is_stock = is_stock
        self._tick()

    def _tick(self) -> None:
        try:
            self.adapt().send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("the simulation waits for nothing")
        self.cluster.after(INTERVAL_SECONDS, self._tick)

    @property
    def plan(self) -> set[Any]:
        closing = self.cluster.closing
        sessions = self.cluster.sessions.items()
        return {name for name, each in sessions if not each.closed_at and name not in closing}

    @property
    def requested(self) -> set[Any]:
        return self.plan

    @property
    def observed(self) -> set[Any]:
        return self.plan & self.cluster.workers.keys()

    def _stock(self) -> Any:
        """Return what the methods of stock's scheduler need of the state."""
        state = self.cluster.core.state
        view = SimpleNamespace(
            queued=list(state.queued),
            unrunnable=state.unrunnable,
            workers=state.workers,
            total_occupancy=state.total_occupancy,
            plugins={},
            _get_prefix_duration=lambda prefix: expected_duration(state, prefix),
        )
        view.workers_to_close = lambda **options: Scheduler.workers_to_close(view, **options)
        return view

    async def target(self) -> int:
        if self.is_stock:
            return int(Scheduler.adaptive_target(self._stock(), TARGET_DURATION_SECONDS))
        self.cluster.feed(SizeCluster(TARGET_DURATION_SECONDS))
        return self.cluster.core.state.scaling.asked

    async def workers_to_close(self, target: int) -> list[Any]:
        if self.is_stock:
            return list(self._stock().workers_to_close(target=target, attribute="name"))
        state = self.cluster.core.state
        return scaling.workers_to_close(state, target=target, attribute="name")

    async def scale_up(self, n: int) -> None:  # type: ignore[override]
        for _ in range(n - len(self.plan)):
            self.cluster.start()

    async def scale_down(self, workers: list[str]) -> None:  # type: ignore[override]
        for name in workers:
            self.cluster.close(name)


# ------------------------------------------------------------------ traces


def bursty() -> Iterator[Step]:
    """Yield six bursts of 2,000 tasks of 1 s, two minutes apart."""
    rng = Random(1)
    for i in range(6):
        yield roots(f"burst{i}", 2000), lambda: rng.uniform(0.8, 1.2), 120.0


def short_steps() -> Iterator[Step]:
    """Yield 40 steps of 80 tasks of 0.5 s with 2 s between them, then 4,000 tasks of 1 s."""
    rng = Random(2)
    for i in range(40):
        yield roots(f"step{i % 4}-{i}", 80), lambda: rng.uniform(0.3, 0.7), 2.0
    yield roots("big", 4000), lambda: rng.uniform(0.8, 1.2), 0.0


def long_tail() -> Iterator[Step]:
    """Yield 4,000 tasks of 1 s, among them ten that take 200 s."""
    rng = Random(3)
    n = iter(range(4000))
    yield roots("tail", 4000), lambda: 200.0 if next(n) % 400 == 0 else rng.uniform(0.5, 1.5), 0.0


def unknown_durations() -> Iterator[Step]:
    """Yield 12 graphs of a new prefix each, whose tasks take 0.05 to 20 s."""
    rng = Random(4)
    for name in "abcdefghijkl":
        seconds = 0.05 * 400 ** rng.random()
        n = int(1500 / seconds) if seconds > 0.5 else 3000
        yield roots(f"new{name}", n), lambda s=seconds: s * rng.uniform(0.7, 1.3), 5.0  # type: ignore[misc]


TRACES = (bursty, short_steps, long_tail, unknown_durations)


@dataclass
class _Levels:
    """Intervals in which at least n workers are needed, by n."""

    intervals: dict[int, list[list[float]]] = field(default_factory=dict)

    def add(self, level: int, start: float, stop: float) -> None:
        known = self.intervals.setdefault(level, [])
        if known and start - known[-1][1] < STARTUP_SECONDS[0]:
            known[-1][1] = max(known[-1][1], stop)
        else:
            known.append([start, stop])

    def seconds(self) -> float:
        return sum(stop - start for each in self.intervals.values() for start, stop in each)


def oracle_seconds(runs: list[tuple[str, float, float]]) -> float:
    """Return the worker-seconds of a cluster that knows when these tasks run."""
    changes = sorted([(start, 1) for _, start, _ in runs] + [(stop, -1) for _, _, stop in runs])
    levels = _Levels()
    running, before = 0, 0.0
    for when, change in changes:
        for level in range(-(-running // NTHREADS)):
            levels.add(level, before, when)
        running += change
        before = when
    return levels.seconds()


def run(trace: Callable[[], Iterator[Step]], is_stock: bool, n_fixed: int = 0) -> Result:
    """Run `trace` on an adaptive cluster, or on one with a fixed number of workers."""
    cluster = AdaptiveCluster(trace(), n_fixed)
    if not n_fixed:
        SimulatedAdaptive(cluster, is_stock)
    cluster.n_left = 1
    cluster.run()
    last = max(stop for _, _, stop in cluster.runs)
    cluster.n_left = 1
    cluster.at(last + REST_SECONDS, cluster.end_of_submissions)
    cluster.run()
    sessions = cluster.sessions.values()
    return Result(
        worker_seconds=sum(
            (s.closed_at or cluster.now) - s.arrived_at for s in sessions if s.arrived_at
        ),
        oracle_seconds=oracle_seconds(cluster.runs),
        makespan=last - cluster.begin,
        unused=sum(1 for s in sessions if s.closed_at and not s.has_run),
        starts=len(sessions),
        repeated=sum(cluster.run_counts.values()) - len(cluster.run_counts),
    )


def main(arguments: list[str] | None = None) -> None:
    """Print all traces."""
    argparse.ArgumentParser(
        prog="python -m benchmarks.autoscaling", description=__doc__
    ).parse_args(arguments)
    for trace in TRACES:
        fixed = run(trace, False, N_WORKERS_MAX)
        print(f"\n{trace.__name__}: {fixed.makespan:.0f} s with {N_WORKERS_MAX} fixed workers")
        for name, is_stock in (("paceline", False), ("stock", True)):
            found = run(trace, is_stock)
            print(
                f"  {name}: {found.worker_seconds / found.oracle_seconds:.2f} of the worker-"
                f"seconds of the oracle, {found.makespan:.0f} s, {found.starts} workers started, "
                f"{found.unused} without a task, {found.repeated} tasks run again"
            )


if __name__ == "__main__":
    main()
