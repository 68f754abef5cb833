"""Active memory manager: choose surplus replicas to drop.

Large intermediate results are also checked as soon as a worker has fetched them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from paceline.protocol.keys import Key
from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_policies import second_run
from paceline.scheduler.core.state.task_states import ACTIVE_STATES

from .memory import measured
from .second_copies import SECONDS_MIN

#: Dependents from which the number of waiters is used instead of the number of their workers.
MANY_WAITERS = 20
#: Size from which a result that a worker has fetched is checked at once, in bytes.
LARGE_NBYTES = 100_000


class MemoryPlan:
    """Drops decided so far, and the memory that workers will use after them.

    Args:
        measure: one of ``config.MEASURES``.

    Attributes:
        drops: worker -> tasks whose replicas it drops, in order.
    """

    def __init__(self, measure: str) -> None:
        self.drops: dict[WorkerState, list[TaskState]] = {}
        self._measure = measure
        self._nbytes: dict[WorkerState, int] = {}

    def nbytes(self, ws: WorkerState) -> int:
        """Return the bytes that ``ws`` will use."""
        found = self._nbytes.get(ws)
        if found is None:
            found = self._nbytes[ws] = measured(ws, self._measure)
        return found

    def drop(self, state: SchedulerState, ts: TaskState, ws: WorkerState) -> None:
        """Drop the replica of ``ts`` on ``ws``."""
        self.drops.setdefault(ws, []).append(ts)
        self._nbytes[ws] = max(0, self.nbytes(ws) - estimates.data_nbytes(state, ts))


def reduce_replicas(state: SchedulerState, plan: MemoryPlan, count: int) -> None:
    """Add to ``plan`` surplus replicas of the ``count`` tasks that were checked longest ago."""
    replicated = state.replicated_tasks
    for ts in list(islice(replicated, count)):
        del replicated[ts]
        replicated[ts] = None  # to the end
        reduce_replicas_of(state, plan, ts)


def reduce_replicas_of(state: SchedulerState, plan: MemoryPlan, ts: TaskState) -> None:
    """Add to ``plan`` surplus replicas of ``ts``."""
    if ts.actor:
        return
    fewest = 2 if ts in state.second_copies.kept else 1
    surplus = len(ts.who_has) - max(fewest, _wanted_copies(ts))
    holders = list(ts.who_has)
    for _ in range(surplus):
        ws = _dropper(plan, users_of(state, ts), holders)
        if ws is None:
            break
        holders.remove(ws)
        plan.drop(state, ts, ws)


def large_inputs(state: SchedulerState, ws: WorkerState, keys: Iterable[Key]) -> list[TaskState]:
    """Return the tasks among ``keys`` that ``ws`` fetches and whose replicas are checked then.

    These are large intermediate results with few dependents. Results that clients want are often
    used again. Copies of results that take long to compute save work if a worker is lost, as all do
    while workers are expected to be lost.
    """
    found: list[TaskState] = []
    if state.second_copies.is_active:
        return found
    for ts in map(state.tasks.get, keys):
        if (
            ts is not None
            and ts in ws.needs_what
            and ts.nbytes >= LARGE_NBYTES
            and not ts.who_wants
            and len(ts.dependents) < MANY_WAITERS
            and estimates.expected_duration(state, ts.group.prefix) < SECONDS_MIN
        ):
            found.append(ts)
    return found


def may_be_fetched(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether a worker may need a copy of ``ts`` that it does not have yet.

    A worker that runs a dependent may be fetching it from any holder. A dependent that is being
    stolen, or that waits with restrictions, may have to run where a certain copy is.
    """
    for dts in ts.dependents:
        ws = dts.processing_on
        if ws is None:
            if dts.details is not None and dts.state in ACTIVE_STATES:
                return True
        elif ts in ws.needs_what or dts in state.stealing.in_flight:
            return True
    return False


def _wanted_copies(ts: TaskState) -> int:
    """Return the number of replicas that ``ts`` needs.

    It needs one per worker that runs a dependent, and one per dependent without a worker.
    """
    count = ts.waiters_count
    if 1 < count < MANY_WAITERS:
        return len({dts.processing_on or dts for dts in ts.waiters})
    return count


def users_of(state: SchedulerState, ts: TaskState) -> set[WorkerState | None]:
    """Return the workers that run dependents of ``ts``, also second runs, and so need a replica."""
    if not ts.waiters_count:
        return set()
    users = {dts.processing_on for dts in ts.dependents}
    if state.task_policies.second_runs:
        runs = [run for dts in ts.dependents if (run := second_run(dts.policies)) is not None]
        users.update([state.workers.get(run.address) for run in runs])
    return users


def _dropper(
    plan: MemoryPlan, busy: set[WorkerState | None], holders: list[WorkerState]
) -> WorkerState | None:
    """Return the one of `holders` whose replica to drop; None if all are `busy` and need theirs."""
    free = [ws for ws in holders if ws not in busy]
    if not free:
        return None
    choice = max(free, key=lambda ws: (ws.status != "running", bool(ws.ends_at), plan.nbytes(ws)))
    leaving = [ws for ws in holders if ws in busy]
    if len(free) == 1 and choice.status == "running" and leaving:
        # keep the only replica on a running worker if the others are about to leave
        if all(ws.status != "running" for ws in leaving):
            return None
    return choice
