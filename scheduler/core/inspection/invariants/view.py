"""Shared parts of the checks: a view of the state, and the comparison of sums."""

from __future__ import annotations

from math import isclose

from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import ACTIVE_STATES

#: Relative tolerance, and tolerance in seconds, of sums of floating-point numbers.
SECONDS_TOLERANCE = 1e-6


class View:
    """The state, and what a later turn is going to check.

    Attributes:
        state: the scheduler state.
        pins: placeholder clients of the graphs that are being committed.
        pending: tasks that a later turn is going to check.
    """

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self.pins = [graph.placeholder_client for graph in state.deferred.commits]
        self.pending = state.deferred.pending()

    def is_wanted(self, ts: TaskState) -> bool:
        """Return whether a client other than a pin, or an active dependent, needs `ts`."""
        if any(d.state in ACTIVE_STATES for d in ts.dependents):
            return True
        return any(cs not in self.pins for cs in ts.who_wants)

    def retry_is_coming(self, ts: TaskState) -> bool:
        """Return whether a later turn retries `ts` or a failed task that it depends on."""
        stack = [ts]
        while stack:
            ts = stack.pop()
            if ts in self.pending:
                return True
            stack.extend(d for d in ts.dependencies if d.state == "erred")
        return False

    def is_known(self, ts: TaskState) -> bool:
        return self.state.tasks.get(ts.key) is ts


def is_close(found: float, expected: float) -> bool:
    """Return whether two sums are equal within the tolerance."""
    return isclose(found, expected, rel_tol=SECONDS_TOLERANCE, abs_tol=SECONDS_TOLERANCE)
