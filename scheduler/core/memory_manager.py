"""Copies of data, made and dropped while work goes on: what to do, and telling workers to.

Workers are asked, and may refuse: one that still needs a copy answers with ``add-keys``. Copies are counted as dropped
at once, so that nobody relies on them; those that are to be made count when they are there.

Must not know: when this is looked at (``extensions/memory_manager.py``, flows); how data travels.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from paceline.protocol.keys import Key
from paceline.protocol.messages import AcquireReplicas, RemoveReplicas

from . import mirrors
from .memory import measured
from .state import SchedulerState, TaskState, WorkerState
from .stimuli import MoveReplicas, Stimulus
from .turn import Turn

#: With this many dependents or more, nobody looks where each of them runs.
MANY_WAITERS = 20


class MemoryPlan:
    """What workers will use once what was decided so far is done.

    Args:
        measure: one of ``config.MEASURES``.

    Attributes:
        drops: worker -> tasks whose copies it is to drop, in order.
    """

    def __init__(self, measure: str) -> None:
        self.drops: dict[WorkerState, list[TaskState]] = {}
        self._measure = measure
        self._nbytes: dict[WorkerState, int] = {}

    def nbytes(self, ws: WorkerState) -> int:
        """What a worker will use."""
        found = self._nbytes.get(ws)
        if found is None:
            found = self._nbytes[ws] = measured(ws, self._measure)
        return found

    def drop(self, state: SchedulerState, ts: TaskState, ws: WorkerState) -> None:
        """One copy less."""
        self.drops.setdefault(ws, []).append(ts)
        self._nbytes[ws] = max(0, self.nbytes(ws) - mirrors.data_nbytes(state, ts))


def reduce_replicas(state: SchedulerState, plan: MemoryPlan, count: int) -> None:
    """Copies that nobody needs any more go, of the ``count`` replicated tasks that were looked at longest ago."""
    replicated = state.replicated_tasks
    for ts in list(islice(replicated, count)):
        del replicated[ts]
        replicated[ts] = None  # to the end
        if ts.actor:
            continue
        surplus = len(ts.who_has) - max(1, _wanted_copies(ts))
        holders = list(ts.who_has)
        for _ in range(surplus):
            ws = _dropper(plan, ts, holders)
            if ws is None:
                break
            holders.remove(ws)
            plan.drop(state, ts, ws)


def _wanted_copies(ts: TaskState) -> int:
    """One for each worker that has a dependent to run, and for each dependent that has no worker yet."""
    count = ts.waiters_count
    if 1 < count < MANY_WAITERS:
        return len({dts.processing_on or dts for dts in ts.waiters})
    return count


def _dropper(plan: MemoryPlan, ts: TaskState, holders: list[WorkerState]) -> WorkerState | None:
    """The holder that can best do without; None where each needs its copy."""
    busy = {dts.processing_on for dts in ts.dependents} if ts.waiters_count else set()
    free = [ws for ws in holders if ws not in busy]
    if not free:
        return None
    choice = max(free, key=lambda ws: (ws.status != "running", plan.nbytes(ws)))
    leaving = [ws for ws in holders if ws in busy]
    if len(free) == 1 and choice.status == "running" and leaving:
        # the only copy on a worker that stays is not given up for those that are about to go
        if all(ws.status != "running" for ws in leaving):
            return None
    return choice


# ------------------------------------------------------------------ telling workers


def handle_move_replicas(turn: Turn, stimulus: Stimulus) -> None:
    """A flow, or a policy of a plugin, has decided."""
    command: MoveReplicas = stimulus.message
    state = turn.state
    for address, keys in command.acquire.items():
        ws = state.workers.get(address)
        if ws is not None:
            acquire(turn, ws, _known(state, keys))
    for address, keys in command.drop.items():
        ws = state.workers.get(address)
        if ws is not None:
            drop(turn, ws, _known(state, keys))


def _known(state: SchedulerState, keys: Iterable[Key]) -> list[TaskState]:
    return [ts for ts in map(state.tasks.get, keys) if ts is not None]


def acquire(turn: Turn, ws: WorkerState, tasks: Iterable[TaskState]) -> None:
    """Ask a worker to fetch copies when it has time."""
    who_has = {}
    nbytes = {}
    for ts in tasks:
        if ts.state == "memory" and ts.who_has and not ts.actor and ws not in ts.who_has:
            who_has[ts.key] = [holder.address for holder in ts.who_has]
            nbytes[ts.key] = ts.nbytes
    if who_has:
        turn.to_worker(
            ws.address,
            AcquireReplicas(who_has=who_has, nbytes=nbytes, stimulus_id=turn.stimulus_id),
        )


def drop(turn: Turn, ws: WorkerState, tasks: Iterable[TaskState]) -> None:
    """Ask a worker to drop copies; never the last one, nor one that a task needs there."""
    keys = []
    for ts in tasks:
        if ts.state != "memory" or ws not in ts.who_has or len(ts.who_has) < 2 or ts.actor:
            continue
        if ts.waiters_count and any(dts.processing_on is ws for dts in ts.dependents):
            continue
        mirrors.remove_replica(turn.state, ts, ws)
        keys.append(ts.key)
    if keys:
        turn.to_worker(ws.address, RemoveReplicas(keys=keys, stimulus_id=turn.stimulus_id))
