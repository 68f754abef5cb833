"""Sizes of results, expected durations of tasks, and the work that is assigned to a worker."""

from __future__ import annotations

from .admission import TaskMemory
from .model import TaskGroup, TaskPrefix, TaskState, WorkerState
from .scheduler_state import SchedulerState


def data_nbytes(state: SchedulerState, ts: TaskState) -> int:
    """Return the size of the result of `ts` in bytes; the configured default if unknown."""
    return ts.nbytes if ts.nbytes >= 0 else state.config.default_data_size_nbytes


def inputs_nbytes(state: SchedulerState, ts: TaskState) -> int:
    """Return the size of the dependencies of `ts` in bytes, with the default if unknown."""
    return sum([data_nbytes(state, dts) for dts in ts.dependencies])


def task_memory(group: TaskGroup) -> TaskMemory:
    """Return what a task of `group` is expected to take in memory."""
    return group.own_memory if group.own_memory is not None else group.prefix.memory


def expected_duration(state: SchedulerState, prefix: TaskPrefix) -> float:
    """Return the expected compute time of a task of `prefix` in seconds."""
    duration = prefix.duration_average
    if duration >= 0:
        return duration
    if prefix.max_exec_time > 0:
        return 2 * prefix.max_exec_time
    return state.config.unknown_task_duration_seconds


def usual_duration(prefix: TaskPrefix) -> float:
    """Return the usual compute time of the tasks of `prefix` in seconds; negative if unknown.

    Unlike ``expected_duration``, it does not grow while a task takes longer.
    """
    average = prefix.duration_average
    return average if average >= 0 else prefix.duration_before


def is_duration_known(prefix: TaskPrefix) -> bool:
    """Return whether tasks of `prefix` have finished, or have been seen executing."""
    return prefix.duration_average >= 0 or prefix.max_exec_time > 0


def occupancy(state: SchedulerState, ws: WorkerState) -> float:
    """Return the work assigned to `ws` in seconds, transfers included."""
    seconds = (
        ws.unknown_duration_total * state.config.unknown_task_duration_seconds
        if ws.unknown_duration_total
        else 0.0
    )
    for prefix, count in ws.task_prefix_count.items():
        duration = prefix.duration_average
        if duration < 0:
            duration = expected_duration(state, prefix)
        seconds += duration * count
    if ws.network_occ:
        seconds += ws.network_occ / state.bandwidth
    return seconds
