"""One worker of 20 is ten times slower: with second runs, it hardly delays the end."""

from __future__ import annotations

from random import Random
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.inspection.invariants import validate_state
from paceline.scheduler.core.instructions import SetTimer, WantsContinue
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.stimuli import (
    ClientJoined,
    ConfigureStealing,
    Continue,
    Stimulus,
    Tick,
    TimerDue,
    WorkerHeartbeat,
    WorkerJoined,
)
from paceline.testing import FakeErrors, Rows, compile_rows

from tests.simulation.sim_time import Agenda
from tests.simulation.sim_worker import Job, ModelWorker

N_WORKERS, N_TASKS = 20, 1_000
BEAT_SECONDS, TICK_SECONDS = 1.0, 0.25


class Results:
    """Sizes of results."""

    def nbytes(self, key: Any) -> int:
        return 8


class SlowWorkerCluster:
    """A cluster that runs independent tasks, and the simulated time that they take.

    Args:
        slowness: factor by which the first worker is slower.
        speculation: whether stragglers get a second run.
    """

    def __init__(self, slowness: float, speculation: bool, seed: int) -> None:
        self.rng = Random(seed)
        self.agenda = Agenda(1000.0)
        self.workload = Results()
        self.workers: dict[str, Any] = {}
        self.slowness = slowness
        self.core = SchedulerCore(
            SchedulerConfig(speculation=speculation), FakeErrors(), EventLog(100)
        )
        self.feed(ClientJoined("alice"), "alice")
        for i in range(N_WORKERS):
            self._add_worker(f"w{i}")
        self.feed(ConfigureStealing(True, 1.0))
        self._tick()

    def _add_worker(self, address: str) -> None:
        worker = self.workers[address] = ModelWorker(self, address, 1)  # type: ignore[arg-type]
        message = m.RegisterWorker(address=address, name=address, nthreads=1)
        self.feed(WorkerJoined(address, "host", message), address)
        self._beat(worker)

    def feed(self, message: Any, source: str = "") -> None:
        outbox = self.core.handle(Stimulus(source, message, "turn"), self.agenda.now)
        for instruction in outbox.instructions:
            if type(instruction) is WantsContinue:
                self.agenda.after(0.0, self.feed, Continue())
            elif type(instruction) is SetTimer:
                self.agenda.at(instruction.when, self.feed, TimerDue(instruction.timer_id))
        for address, messages in outbox.workers.items():
            for each in messages:
                self.agenda.after(0.001, self.workers[address].receive, each)

    def _tick(self) -> None:
        self.feed(Tick())
        self.later(TICK_SECONDS, self._tick)

    def _beat(self, worker: Any) -> None:
        message = m.HeartbeatWorker(address=worker.address, executing=worker.executing())
        self.feed(WorkerHeartbeat(worker.address, message), worker.address)
        self.later(BEAT_SECONDS, self._beat, worker)

    # called by workers

    def later(self, seconds: float, what: Any, *args: Any) -> None:
        self.agenda.after(seconds, what, *args)

    def latency(self) -> float:
        return 0.001

    def from_worker(self, worker: Any, message: Any) -> None:
        self.agenda.after(0.001, self.feed, message, worker.address)

    def executes(self, worker: Any, job: Job) -> None:
        seconds = self.rng.uniform(0.5, 1.5)
        if worker.address == "w0":
            seconds *= self.slowness
        self.later(seconds, worker.done, job, "ok")

    def run(self) -> float:
        """Run the tasks. Return the seconds until the last of them has finished."""
        graph: dict[Any, list[Any]] = {("x", i): [] for i in range(N_TASKS)}
        rows = Rows(commit={"received_at": self.agenda.now})
        for part in compile_rows(graph, 1, list(graph), "alice", rows):
            self.feed(part, "alice")
        started = self.agenda.now
        tasks = self.core.state.tasks
        while not all(tasks[key].state == "memory" for key in graph):
            for _ in range(20):
                self.agenda.step()
        validate_state(self.core.state)
        return self.agenda.now - started


def test_a_slow_worker_hardly_delays_the_end() -> None:
    for seed in range(3):
        even = SlowWorkerCluster(1.0, False, seed).run()
        without = SlowWorkerCluster(10.0, False, seed).run()
        cluster = SlowWorkerCluster(10.0, True, seed)
        seconds = cluster.run()
        assert seconds <= 1.15 * even, (even, without, seconds)
        assert seconds <= without
        assert cluster.core.state.task_policies.second_run_count <= 0.02 * N_TASKS
