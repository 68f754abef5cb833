"""Keep tasks away from workers that end before the tasks are expected to finish.

While a worker ends too soon for a task, the task is queued with its prefix and restrictions as its
place, so that it waits for a slot of a worker that lasts long enough.
"""

from __future__ import annotations

from paceline.scheduler.core.state.estimates import expected_duration, usual_duration
from paceline.scheduler.core.state.model import TaskPrefix, TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState


def expected_seconds(state: SchedulerState, prefix: TaskPrefix) -> float:
    """Return how long a task of `prefix` is expected to take.

    A run that took long and ended without a result does not count once no other task of `prefix`
    runs. Otherwise none would start that could correct what is expected.
    """
    if prefix.processing_count:
        return expected_duration(state, prefix)
    usual = usual_duration(prefix)
    return usual if usual >= 0 else state.config.unknown_task_duration_seconds


def lasts(state: SchedulerState, prefix: TaskPrefix, ws: WorkerState) -> bool:
    """Return whether `ws` is expected to finish a task of `prefix` that starts now."""
    return not ws.ends_at or state.now + expected_seconds(state, prefix) <= ws.ends_at


def can_finish(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ws` is expected to finish `ts`, if it starts now."""
    return not ws.ends_at or lasts(state, ts.group.prefix, ws)


def is_limited(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether any worker ends too soon for `ts`."""
    ends = state.worker_ends
    if not ends.workers:
        return False
    return state.now + expected_seconds(state, ts.group.prefix) > ends.soonest


def without_time(state: SchedulerState, ws: WorkerState) -> list[TaskState]:
    """Return the tasks that `ws` has not begun, as far as known, and cannot finish any more."""
    prefixes = (*ws.task_prefix_count, *ws.unknown_duration_count)
    if all(lasts(state, prefix, ws) for prefix in prefixes):
        return []
    return [
        ts
        for ts in ws.processing
        if ts not in ws.executing and ts not in ws.long_running and not can_finish(state, ts, ws)
    ]
