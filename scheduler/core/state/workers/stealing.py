"""Steal requests in flight, and how they will change the load of the workers.

A request is *void* once its task has left the worker or was sent to it again; the answer is then
ignored. Transitions do not maintain this table, so that it costs nothing per task: void requests
are detected on access (``live``) and removed with each balancing round.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.scheduler.core.state.model import TaskState, WorkerState

#: Cost levels: the cost of a move relative to that of the task, by powers of two (stock:
#: ``WorkStealing``). Those from 2 up are integers, because ``/metrics`` shows them as labels.
COST_MULTIPLIERS: tuple[float, ...] = (1.0, *(1 + 2 ** (i - 6) for i in range(1, 15)))


@dataclass(slots=True, eq=False)
class InFlightSteal:
    """A task that a worker was asked to give back.

    Attributes:
        victim: the worker that has the task.
        thief: the worker that is to get it; None to reschedule it.
        run_id: the run that is asked back.
        victim_seconds: work that the victim loses, transfers included.
        thief_seconds: work that the thief gains, transfers included.
        stimulus_id: id of the request, repeated in the answer.
    """

    victim: WorkerState
    thief: WorkerState | None
    run_id: int
    victim_seconds: float
    thief_seconds: float
    stimulus_id: str


class StealingState:
    """Requests in flight, and statistics.

    Attributes:
        running: whether work is balanced periodically.
        interval_seconds: time between rounds.
        timer: number of the timer of the next round, or 0.
        in_flight: task -> InFlightSteal.
        occupancy: worker -> seconds of work that it gains by requests in flight; negative for
            victims.
        tasks: worker -> number of tasks that it gains.
        offsets: victim with many tasks -> where the next round starts, counted from the latest
            task.
        cursor: where the next round starts among very many workers.
        rounds: number of rounds that moved a task (stock's ``count``).
        request_count: number of requests ever; used for their ids.
        level_counts, level_costs: requests, and seconds of work to be moved, by cost level.
    """

    def __init__(self, interval_seconds: float, workers: dict[str, WorkerState]) -> None:
        """Balance every `interval_seconds`; `workers` is the table of registered workers."""
        self._workers = workers
        self.running = False
        self.interval_seconds = interval_seconds
        self.timer = 0
        self.in_flight: dict[TaskState, InFlightSteal] = {}
        self.occupancy: dict[WorkerState, float] = {}
        self.tasks: dict[WorkerState, int] = {}
        self.offsets: dict[WorkerState, int] = {}
        self.cursor = 0
        self.rounds = 0
        self.request_count = 0
        self.level_counts = [0] * len(COST_MULTIPLIERS)
        self.level_costs = [0.0] * len(COST_MULTIPLIERS)

    def add(self, ts: TaskState, steal: InFlightSteal) -> None:
        """Add the request `steal` for `ts`."""
        self.in_flight[ts] = steal
        self._shift(steal.victim, -steal.victim_seconds, -1)
        if steal.thief is not None:
            self._shift(steal.thief, steal.thief_seconds, 1)

    def take(self, ts: TaskState) -> InFlightSteal | None:
        """Remove and return the request for `ts`, or return None if there is none."""
        steal = self.in_flight.pop(ts, None)
        if steal is None:
            return None
        if self.in_flight:
            self._shift(steal.victim, steal.victim_seconds, 1)
            if steal.thief is not None:
                self._shift(steal.thief, -steal.thief_seconds, -1)
        else:  # reset, because sums of floats accumulate errors
            self.occupancy.clear()
            self.tasks.clear()
        return steal

    def _shift(self, ws: WorkerState, seconds: float, tasks: int) -> None:
        self.occupancy[ws] = self.occupancy.get(ws, 0.0) + seconds
        self.tasks[ws] = self.tasks.get(ws, 0) + tasks

    def is_live(self, ts: TaskState, steal: InFlightSteal) -> bool:
        """Return whether the victim still processes the run of `ts` that was asked back."""
        victim = steal.victim
        return (
            ts.processing_on is victim
            and ts.run_id == steal.run_id
            and ts in victim.processing  # a restart forgets all tasks at once
            and self._workers.get(victim.address) is victim
        )

    def live(self, ts: TaskState) -> InFlightSteal | None:
        """Return the request for `ts` if there is one that is not void."""
        steal = self.in_flight.get(ts)
        return steal if steal is not None and self.is_live(ts, steal) else None

    def sweep(self) -> None:
        """Remove void requests, and offsets past the remaining tasks of their worker."""
        for ts in [ts for ts, steal in self.in_flight.items() if not self.is_live(ts, steal)]:
            self.take(ts)
        if self.offsets:
            self.offsets = {ws: n for ws, n in self.offsets.items() if n < len(ws.processing)}
