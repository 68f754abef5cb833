"""Learn what tasks take in memory from heartbeats, and recall tasks of workers that run short."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.protocol.keys import key_split
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.task_memory import learn_peak
from paceline.scheduler.core.policy.admission import (
    allowed_nbytes,
    free_nbytes,
    has_large_tasks,
    in_use_nbytes,
    is_last_use,
    is_watched,
    usable_nbytes,
    watched_nbytes,
)
from paceline.scheduler.core.state.admission import MEASURED_SECONDS, UNLIMITED_NBYTES
from paceline.scheduler.core.state.estimates import task_memory
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stealing.recall import recall_tasks
from paceline.scheduler.core.turn import Turn

#: Metric of workers whose plugin ``workers_compat/task_peaks.py`` measures what tasks take: name of
#: a group -> bytes, or None.
PEAKS = "task_peaks"
#: The memory of a worker without tasks is that of the idle process if its results have changed by
#: at most this share of the limit since the last heartbeat.
STEADY = 0.01
#: Tasks of a worker are recalled if its expected memory exceeds the limit by more than this share
#: of it.
EXCESS = 0.1


def learn_memory(state: SchedulerState, ws: WorkerState, metrics: Mapping[str, Any]) -> None:
    """Update what the process and the tasks of `ws` use, from the `metrics` of a heartbeat.

    ``ws.metrics`` are those of the heartbeat before. A measurement in it is not used again.
    """
    allowed = allowed_nbytes(state, ws)
    _add_measured_peaks(state, metrics.get(PEAKS))
    process = int(metrics.get("memory", 0))
    measured_at = metrics.get("time")
    if process and (not measured_at or measured_at != ws.metrics.get("time")):
        managed = max(0, int(metrics.get("managed_bytes", ws.nbytes)))
        incoming = int((metrics.get("transfer") or {}).get("incoming_bytes", 0))
        spilled = ws.spilled_nbytes
        resident = max(managed - spilled, in_use_nbytes(state, ws)) if spilled else managed
        unmanaged = max(0, process - resident - incoming)
        change = abs(managed - ws.reported_nbytes)
        ws.reported_nbytes = managed
        if ws.idle_nbytes < 0:
            ws.idle_nbytes = unmanaged
        elif ws.executing:
            if PEAKS not in metrics:
                _learn_peak(ws, float(unmanaged - ws.idle_nbytes - change))
        elif not ws.processing and change <= STEADY * allowed:
            ws.idle_nbytes = unmanaged
    ws.watched_nbytes = watched_nbytes(state, ws)
    smallest = state.admission.smallest_nbytes
    _add_size(state, ws)
    is_smaller = state.admission.smallest_nbytes < smallest
    if is_watched(state, ws) or (is_smaller and has_large_tasks(state)):
        state.admission.is_short = True


def _add_size(state: SchedulerState, ws: WorkerState) -> None:
    """Let the smallest and the largest size of workers include that of `ws`."""
    nbytes = usable_nbytes(state, ws)
    state.admission.smallest_nbytes = min(state.admission.smallest_nbytes, nbytes)
    state.admission.largest_nbytes = max(state.admission.largest_nbytes, nbytes)


def _add_measured_peaks(state: SchedulerState, peaks: object) -> None:
    """Add what tasks of each group took at most since the last heartbeat."""
    if isinstance(peaks, dict):
        for name, nbytes in peaks.items():
            if not isinstance(nbytes, int) or nbytes <= 0:
                continue
            if (group := state.task_groups.get(name)) is not None:
                learn_peak(group, float(nbytes))
            elif (prefix := state.task_prefixes.get(key_split(name))) is not None:
                prefix.memory.add_peak(float(nbytes))  # all tasks of the group are forgotten


def _learn_peak(ws: WorkerState, nbytes: float) -> None:
    """Divide `nbytes` bytes that tasks on `ws` take between those that it executes."""
    if nbytes > 0 and min(ws.executing.values()) >= MEASURED_SECONDS:
        each = nbytes / float(len(ws.executing))
        for ts in ws.executing:
            learn_peak(ts.group, each)


def check_memory(turn: Turn) -> None:
    """Recall tasks that workers have no memory for, and send queued ones that fit now."""
    state = turn.state
    if not state.admission.is_short:
        return
    state.admission.smallest_nbytes = float(UNLIMITED_NBYTES)
    state.admission.largest_nbytes = 0.0
    for ws in state.workers.values():
        _add_size(state, ws)
    is_short = any(is_watched(state, ws) for ws in state.workers.values())
    state.admission.is_short = is_short or has_large_tasks(state)
    for ws in state.workers.values():
        if len(ws.processing) > ws.nthreads and -free_nbytes(state, ws) > EXCESS * ws.memory_limit:
            tasks = _excess(state, ws)
            state.admission.recalled += len(tasks)
            recall_tasks(turn, ws, tasks)
    fill_slots(turn)


def _excess(state: SchedulerState, ws: WorkerState) -> list[TaskState]:
    """Return the last tasks of `ws` that it has not begun and has no memory for."""
    asked = [ts for ts in ws.processing if state.stealing.live(ts) is not None]
    excess = -free_nbytes(state, ws) - float(sum(task_memory(ts.group).task_nbytes for ts in asked))
    found: list[TaskState] = []
    n_left = len(ws.processing) - len(asked)
    for ts in reversed(ws.processing):
        if excess <= 0 or n_left <= ws.nthreads:
            break
        if ts in ws.executing or ts in ws.long_running or ts.actor or ts in asked:
            continue
        nbytes = task_memory(ts.group).task_nbytes
        if not nbytes or any(is_last_use(dts) for dts in ts.dependencies):
            continue
        found.append(ts)
        excess -= float(nbytes)
        n_left -= 1
    return found
