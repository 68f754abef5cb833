"""The scheduler core against model workers and clients, in simulated time.

Model workers run ready tasks by priority, fetch inputs at a limited rate, and give tasks back that
they have not begun. Messages take a millisecond.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.extension import Extension
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
        extensions: extensions of the core.
        memory_limit: memory of each worker in bytes; None for no limit.
        config: further settings of the core.

    Attributes:
        runs: (client, start, stop) of each task that finished, in seconds.
        done_at: client -> time at which its last task finished.
        moved_nbytes: bytes that workers fetched.
        held_nbytes, peak_nbytes: bytes that all workers hold together, now and at most.
    """

    def __init__(
        self,
        shares: bool,
        n_workers: int = 8,
        nthreads: int = 2,
        extensions: Sequence[Extension] = (),
        memory_limit: int | None = None,
        **config: Any,
    ) -> None:
        settings = SchedulerConfig(shares_enabled=shares, **config)
        self.core = SchedulerCore(settings, FakeErrors(), EventLog(100), extensions)
        self.now = 1000.0
        self.rng = Random(0)
        self.runs: list[tuple[str, float, float]] = []
        self.done_at: dict[str, float] = {}
        self.moved_nbytes = self.held_nbytes = self.peak_nbytes = 0
        self.seconds: dict[Any, float] = {}
        self.nbytes: dict[Any, int] = {}
        self.owner: dict[Any, str] = {}
        self.n_left = 0
        self.workers: dict[str, Worker] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count(1)
        for i in range(n_workers):
            self.add_worker(f"w{i}", nthreads, memory_limit)
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
            worker = self.workers.get(address)
            for each in messages if worker is not None else ():
                self.after(LATENCY_SECONDS, self._receive, worker, each)

    def submit(self, client: str, graph: Graph, seconds: float, nbytes: int = 1000) -> None:
        """Submit `graph` now. Its tasks take about `seconds` and return `nbytes`."""
        inner = {dependency for dependencies in graph.values() for dependency in dependencies}
        sizes = dict.fromkeys(graph, nbytes)
        times = {key: seconds * self.rng.uniform(0.8, 1.2) for key in graph}
        self.play(client, graph, [key for key in graph if key not in inner], times, sizes)

    def play(
        self,
        client: str,
        graph: Graph,
        want: list[Any],
        seconds: dict[Any, float],
        nbytes: dict[Any, int],
        rows: Rows | None = None,
    ) -> None:
        """Submit `graph` now; `seconds` and `nbytes` say what each task takes and returns."""
        self.feed(ClientJoined(client), client)
        self.seconds |= seconds
        self.nbytes |= nbytes
        self.owner |= dict.fromkeys(graph, client)
        self.n_left += len(graph)
        rows = rows or Rows()
        rows.commit["received_at"] = self.now
        for part in compile_rows(graph, next(self._numbers), want, client, rows):
            self.feed(part, client)

    # -- workers

    def add_worker(self, address: str, nthreads: int, memory_limit: int | None = None) -> None:
        """Let a worker join now. `memory_limit` is in bytes; None for none."""
        self.workers[address] = Worker(address, nthreads)
        message = m.RegisterWorker(
            address=address, name=address, nthreads=nthreads, memory_limit=memory_limit
        )
        self.feed(WorkerJoined(address, address, message), address)

    def _receive(self, worker: Worker, message: Any) -> None:
        if type(message) is m.ComputeTask:
            missing = dict.fromkeys(key for key in message.who_has if key not in worker.data)
            worker.jobs[message.key] = Job(message, missing)
            for key in missing:
                self._fetch(worker, key)
            self._pump(worker)
        elif type(message) is m.FreeKeys:
            for key in message.keys:
                if key in worker.data:
                    del worker.data[key]
                    self.held_nbytes -= self.nbytes[key]
                if key in worker.jobs and not worker.jobs[key].is_running:
                    del worker.jobs[key]
        elif type(message) is m.RemoveReplicas:
            self._remove(worker, message)
        elif type(message) is m.StealRequest:
            job = worker.jobs.get(message.key)
            state = None if job is None else "executing" if job.is_running else "ready"
            if state == "ready":
                del worker.jobs[message.key]
            reply = m.StealResponse(key=message.key, state=state, stimulus_id=message.stimulus_id)
            self.after(LATENCY_SECONDS, self.feed, reply, worker.address)

    def _remove(self, worker: Worker, message: m.RemoveReplicas) -> None:
        needed = {key for job in worker.jobs.values() for key in job.message.who_has}
        kept = [key for key in message.keys if key in worker.data and key in needed]
        for key in message.keys:
            if key in worker.data and key not in needed:
                del worker.data[key]
                self.held_nbytes -= self.nbytes[key]
        if kept:
            self.after(LATENCY_SECONDS, self.feed, m.AddKeys(keys=kept), worker.address)

    def _fetch(self, worker: Worker, key: Any) -> None:
        if key not in worker.fetching:
            worker.fetching[key] = None
            self.after(self.nbytes[key] / BYTES_PER_SECOND, self._fetched, worker, key)

    def _fetched(self, worker: Worker, key: Any) -> None:
        del worker.fetching[key]
        self._keep(worker, key)
        self.moved_nbytes += self.nbytes[key]
        for job in worker.jobs.values():
            job.missing.pop(key, None)
        self.feed(m.AddKeys(keys=[key]), worker.address)
        self._pump(worker)

    def _keep(self, worker: Worker, key: Any) -> None:
        if key not in worker.data:
            worker.data[key] = None
            self.held_nbytes += self.nbytes[key]
            self.peak_nbytes = max(self.peak_nbytes, self.held_nbytes)

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
        self._keep(worker, key)
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
