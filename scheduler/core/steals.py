"""Which tasks workers were asked to give back for others, and what that will make of the workers' load.

A request is *void* once its task has left the worker, or was sent to it again: then the answer says nothing any more.
Nobody tells this table of that, so that it costs tasks nothing: void requests are found when somebody looks
(``live``), and swept with each look at the balance.

Must not know: when work is moved, and why (``stealing.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .state import SchedulerState, TaskState, WorkerState

#: Levels of cost: what a move costs against what the task costs, by powers of two (stock: ``WorkStealing``).
COST_MULTIPLIERS = (1.0, *(1 + 2.0 ** (i - 6) for i in range(1, 15)))


@dataclass(slots=True, eq=False)
class Steal:
    """A task that a worker was asked to give back.

    Attributes:
        victim: who has it.
        thief: who is to get it; None where it is to be placed anew.
        run_id: the attempt that is asked back.
        victim_seconds: work that the victim is rid of, transfers included.
        thief_seconds: work that the thief gets, transfers included.
        stimulus_id: of the request; the answer repeats it.
    """

    victim: WorkerState
    thief: WorkerState | None
    run_id: int
    victim_seconds: float
    thief_seconds: float
    stimulus_id: str


class Steals:
    """All that are on their way, and counts of what was.

    Attributes:
        running: whether the balance is looked at every so often.
        interval_seconds: how often.
        timer: number of the timer that looks next, or 0.
        in_flight: task -> Steal.
        occupancy: worker -> seconds of work that it gains by what is in flight; negative for victims.
        tasks: worker -> tasks that it gains.
        offsets: victim -> where the next look at its many tasks begins, counted from the latest.
        cursor: where the next look at very many workers begins.
        rounds: looks at the balance that moved something (stock's ``count``).
        request_count: requests ever; names them.
        level_counts, level_costs: requests, and seconds of work that was to move, by level of cost.
    """

    __slots__ = (
        "cursor", "in_flight", "interval_seconds", "level_costs", "level_counts", "occupancy", "offsets",
        "request_count", "rounds", "running", "tasks", "timer",
    )  # fmt: skip

    def __init__(self, interval_seconds: float) -> None:
        self.running = False
        self.interval_seconds = interval_seconds
        self.timer = 0
        self.in_flight: dict[TaskState, Steal] = {}
        self.occupancy: dict[WorkerState, float] = {}
        self.tasks: dict[WorkerState, int] = {}
        self.offsets: dict[WorkerState, int] = {}
        self.cursor = 0
        self.rounds = 0
        self.request_count = 0
        self.level_counts = [0] * len(COST_MULTIPLIERS)
        self.level_costs = [0.0] * len(COST_MULTIPLIERS)

    def add(self, ts: TaskState, steal: Steal) -> None:
        """A worker is asked for a task."""
        self.in_flight[ts] = steal
        self._shift(steal.victim, -steal.victim_seconds, -1)
        if steal.thief is not None:
            self._shift(steal.thief, steal.thief_seconds, 1)

    def take(self, ts: TaskState) -> Steal | None:
        """The request is answered, or void; None where there is none."""
        steal = self.in_flight.pop(ts, None)
        if steal is None:
            return None
        if self.in_flight:
            self._shift(steal.victim, steal.victim_seconds, 1)
            if steal.thief is not None:
                self._shift(steal.thief, -steal.thief_seconds, -1)
        else:  # sums of floating-point numbers begin anew
            self.occupancy.clear()
            self.tasks.clear()
        return steal

    def _shift(self, ws: WorkerState, seconds: float, tasks: int) -> None:
        self.occupancy[ws] = self.occupancy.get(ws, 0.0) + seconds
        self.tasks[ws] = self.tasks.get(ws, 0) + tasks

    def sweep(self, state: SchedulerState) -> None:
        """Forget void requests, and where looks at workers that are gone or have little left were to go on."""
        for ts in [ts for ts, steal in self.in_flight.items() if not is_live(state, ts, steal)]:
            self.take(ts)
        if self.offsets:
            self.offsets = {ws: n for ws, n in self.offsets.items() if n < len(ws.processing)}


def is_live(state: SchedulerState, ts: TaskState, steal: Steal) -> bool:
    """Whether the worker is still at the attempt that it was asked for."""
    victim = steal.victim
    return (
        ts.processing_on is victim
        and ts.run_id == steal.run_id
        and state.workers.get(victim.address) is victim
        and state.tasks.get(ts.key) is ts
    )


def live(state: SchedulerState, ts: TaskState) -> Steal | None:
    """The request for a task that is on its way and not void."""
    steal = state.steals.in_flight.get(ts)
    return steal if steal is not None and is_live(state, ts, steal) else None
