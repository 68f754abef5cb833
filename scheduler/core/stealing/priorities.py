"""Priorities in a round of work stealing: which tasks may move before which."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import ShareGroup


def uses_priorities(state: SchedulerState) -> bool:
    """Return whether tasks differ in user priority, or share groups in priority class."""
    return state.shares.enabled and (state.shares.has_user_priorities or state.shares.has_classes)


def steal_rank(ts: TaskState) -> tuple[float, float]:
    """Return the priority class and the user priority of `ts`; the smallest rank goes first."""
    return -ts.account.share.priority_class, ts.priority[0] if ts.priority else 0.0


def is_restricted(ts: TaskState) -> bool:
    """Return whether `ts` may run on some workers only."""
    details = ts.details
    return details is not None and bool(
        details.worker_restrictions or details.host_restrictions or details.resource_restrictions
    )


class StealPriorities:
    """Tasks that their victims keep in one round, so that tasks of a lower priority stay too."""

    def __init__(self) -> None:
        self._classes: dict[WorkerState, float] = {}
        self._priorities: dict[tuple[WorkerState, ShareGroup], float] = {}

    def order(self, ws: WorkerState) -> Iterable[TaskState]:
        """Return the tasks of `ws`, the highest priority first, of equal ones the latest."""
        latest_first = list(reversed(ws.processing))
        latest_first.sort(key=steal_rank)
        return latest_first

    def sort(self, tasks: Iterable[tuple[int, TaskState]]) -> list[tuple[int, TaskState]]:
        """Return `tasks`, (cost level, task), the highest priority first."""
        return sorted(tasks, key=lambda each: steal_rank(each[1]))

    def keep(self, ts: TaskState) -> None:
        """Record that `ts` stays on its worker. Tasks that cannot run elsewhere do not count."""
        ws = ts.processing_on
        if ws is None or is_restricted(ts):
            return
        rank, priority = steal_rank(ts)
        share = ts.account.share
        self._classes[ws] = min(rank, self._classes.get(ws, rank))
        self._priorities[ws, share] = min(priority, self._priorities.get((ws, share), priority))

    def is_outranked(self, ts: TaskState) -> bool:
        """Return whether the worker of `ts` keeps a task that must not start after `ts`."""
        ws = ts.processing_on
        assert ws is not None
        rank, priority = steal_rank(ts)
        if self._classes.get(ws, rank) < rank:
            return True
        return self._priorities.get((ws, ts.account.share), priority) < priority
