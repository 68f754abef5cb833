"""Find queued tasks whose results are missing for tasks that free memory.

Dask's order may compute all chunks of one source before those of another with which they are
combined. If workers run short of memory meanwhile, chunks of the second source free more memory
than they take, because the tasks that combine them release those of the first.
"""

from __future__ import annotations

from itertools import islice
from typing import TypeAlias

from paceline.scheduler.core.state.estimates import data_nbytes, task_memory
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.fair_queue import ShareQueue

from . import admission
from .surplus_replicas import LARGE_NBYTES

#: Workers with free slots that are examined, and on each the latest results.
WORKERS_MAX, RESULTS_MAX = 16, 16
#: Maximum number of queued tasks that are found.
TASKS_MAX = 16
#: Dependents of a result, and dependencies of a dependent, that are examined.
DEPENDENTS_MAX, DEPENDENCIES_MAX = 32, 32
#: Maximum number of inputs that a task may lack.
MISSING_MAX = 4
#: Levels of dependencies of a task that are searched for a queued one.
LEVELS_MAX = 4

#: The number of inputs that a task lacks, and the worker that has the others.
MissingInput: TypeAlias = tuple[int, WorkerState]


def missing_inputs(state: SchedulerState, queue: ShareQueue) -> dict[TaskState, MissingInput]:
    """Return the queued tasks of a group whose results are missing for tasks that free memory.

    The latter free at least as much of what workers hold as they make, and at least
    ``LARGE_NBYTES``.
    """
    out: dict[TaskState, MissingInput] = {}
    for ws in islice(state.loads.idle_task_count.loads, WORKERS_MAX):
        for result in islice(reversed(ws.has_what), RESULTS_MAX):
            consumer = _last_consumer(result)
            if consumer is None or not _frees_enough(state, consumer):
                continue
            ts = _first_queued(queue, consumer)
            if ts is not None and (ts not in out or out[ts][0] > consumer.waiting_count):
                out[ts] = consumer.waiting_count, ws
                if len(out) == TASKS_MAX:
                    return out
    return out


def _last_consumer(result: TaskState) -> TaskState | None:
    """Return the only task that uses `result`, if it will free it and lacks few other inputs."""
    if admission.is_last_use(result):
        for ts in islice(result.dependents, DEPENDENTS_MAX):
            if ts.state == "waiting":
                return ts if ts.waiting_count <= MISSING_MAX else None
    return None


def _frees_enough(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether `ts` frees as much of what workers hold as it makes, and not too little.

    Return False if an input cannot be computed.
    """
    freed = 0
    for dts in ts.dependencies[:DEPENDENCIES_MAX]:
        if dts.state == "no-worker":
            return False
        if dts.who_has and admission.is_last_use(dts):
            freed += data_nbytes(state, dts)
    return freed >= LARGE_NBYTES and freed >= task_memory(ts.group).result_nbytes


def _first_queued(queue: ShareQueue, ts: TaskState) -> TaskState | None:
    """Return the first task of `queue` that any worker can run and that `ts` waits for, or None."""
    waiting: TaskState | None = ts
    for _ in range(LEVELS_MAX):
        if waiting is None:
            break
        dependencies = waiting.dependencies[:DEPENDENCIES_MAX]
        waiting = None
        for dts in dependencies:
            if dts.state == "queued" and _can_run_anywhere(queue, dts):
                return dts
            if waiting is None and dts.state == "waiting" and dts.waiting_count <= MISSING_MAX:
                waiting = dts
    return None


def _can_run_anywhere(queue: ShareQueue, ts: TaskState) -> bool:
    """Return whether `ts` is a task of `queue`, without restrictions, that any worker can run."""
    if ts.account.share is not queue.share or ts.actor:
        return False
    return not isinstance(queue.places.get(ts), tuple)
