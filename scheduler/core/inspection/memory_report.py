"""Report what tasks are expected to take in memory, and how much of it workers have left."""

from __future__ import annotations

from typing import Any, Final

from paceline.scheduler.core.policy import admission
from paceline.scheduler.core.state.admission import TaskMemory
from paceline.scheduler.core.state.estimates import task_memory
from paceline.scheduler.core.state.model import TaskGroup, TaskPrefix, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState

#: Text of the dashboard page if the memory of workers does not limit what they are sent.
ADMISSION_OFF: Final = (
    "Tasks are sent without regard to memory: paceline.scheduler.memory-admission is off, or no "
    "worker has a memory limit."
)
#: Prefixes that are listed, those whose tasks take most first.
PREFIXES_MAX: Final = 1_000
#: Workers that are listed, those with least memory left first.
WORKERS_MAX: Final = 1_000


def memory_report(state: SchedulerState) -> dict[str, Any]:
    """Return what tasks of each prefix are expected to take, and the expected use of workers.

    Returns:
        "share" of their limit that workers may be expected to use, 0 if nothing is limited;
        "is_short", whether a worker may soon reach it; "waiting", the number of tasks that wait
        for memory; "recalled", the number ever recalled; "n_prefixes" and "n_workers" in total.
        "prefixes" is a list of dicts of prefixes, and of groups that differ from theirs: "name",
        "result_nbytes", "peak_nbytes" (what running takes besides results), "task_nbytes" (what is
        expected, None if nothing is known yet), "processing", "queued" and "memory" (numbers of
        tasks). "workers" is a list of dicts: "address", "name", "status", "limit_nbytes" (its
        memory limit), "allowed_nbytes" (the share of it that it may be expected to use),
        "expected_nbytes", which is the sum of "idle_nbytes", "results_nbytes" and "tasks_nbytes",
        "free_nbytes" and "processing".
    """
    prefixes: list[TaskPrefix | TaskGroup] = []
    for prefix in state.task_prefixes.values():
        if prefix.groups:
            prefixes.append(prefix)
        if prefix.memory.groups_differ:
            prefixes += [group for group in prefix.groups if group.own_memory is not None]
    prefixes.sort(key=lambda tasks: -_memory(tasks).task_nbytes)
    share = state.admission.share
    limited = [ws for ws in state.workers.values() if share and ws.memory_limit]
    workers = [_worker(state, ws) for ws in limited]
    workers.sort(key=lambda each: int(each["free_nbytes"]))
    return {
        "share": share if limited else 0.0,
        "is_short": state.admission.is_short,
        "waiting": admission.waiting_count(state),
        "recalled": state.admission.recalled,
        "n_prefixes": len(prefixes),
        "n_workers": len(workers),
        "prefixes": [_row(tasks) for tasks in prefixes[:PREFIXES_MAX]],
        "workers": workers[:WORKERS_MAX],
    }


def _memory(tasks: TaskPrefix | TaskGroup) -> TaskMemory:
    return tasks.memory if isinstance(tasks, TaskPrefix) else task_memory(tasks)


def _row(tasks: TaskPrefix | TaskGroup) -> dict[str, Any]:
    memory, states = _memory(tasks), tasks.states
    return {
        "name": str(tasks.name),
        "result_nbytes": int(memory.result_nbytes),
        "peak_nbytes": int(memory.peak_nbytes),
        "task_nbytes": memory.task_nbytes if memory.is_known else None,
        **{name: states[name] for name in ("processing", "queued", "memory")},
    }


def _worker(state: SchedulerState, ws: WorkerState) -> dict[str, Any]:
    allowed = int(admission.allowed_nbytes(state, ws))
    idle = int(admission.idle_nbytes(state, ws))
    held = admission.resident_nbytes(state, ws)
    expected = idle + admission.results_nbytes(state, ws)
    return {
        "address": ws.address,
        "name": str(ws.name),
        "status": ws.status,
        "limit_nbytes": ws.memory_limit,
        "allowed_nbytes": allowed,
        "expected_nbytes": expected,
        "idle_nbytes": idle,
        "results_nbytes": held,
        "tasks_nbytes": expected - idle - held,
        "free_nbytes": allowed - expected,
        "processing": len(ws.processing),
    }
