"""Find out whether a queued task waits for memory of workers, and describe it."""

from __future__ import annotations

from itertools import islice
from typing import Any

from paceline.scheduler.core.policy import admission
from paceline.scheduler.core.policy.placement import allowed_workers
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.text import format_megabytes


def memory_facts(state: SchedulerState, ts: TaskState) -> dict[str, Any] | None:
    """Return what the queued task `ts` is expected to take, and the worker with most memory left.

    Returns:
        "nbytes" that the task takes, None if unknown; "worker" with "free_nbytes" of
        "limit_nbytes"; "share" of their limit that workers may use. None if it fits on a worker.
    """
    if not state.admission.is_short:
        return None
    allowed = allowed_workers(state, ts)
    workers = state.running if allowed is None else allowed
    best, most = None, 0.0
    for ws in islice(workers, admission.WORKERS_MAX):
        if admission.fits(state, ts, ws):
            return None
        left = admission.free_nbytes(state, ws)
        if best is None or left > most:
            best, most = ws, left
    if best is None:
        return None
    memory = ts.group.prefix.memory
    return {
        "nbytes": memory.task_nbytes if memory.is_known else None,
        "worker": best.address,
        "free_nbytes": max(0, int(most)),
        "limit_nbytes": int(admission.limit_nbytes(state, best)),
        "share": state.admission.share,
    }


def excess_facts(state: SchedulerState, ts: TaskState) -> dict[str, Any] | None:
    """Return what the worker of the processing task `ts` is expected to use, if it is too much.

    Returns:
        "worker", its "expected_nbytes", "limit_nbytes" and "share". None if `ts` takes no memory.
    """
    ws = ts.processing_on
    if not state.admission.is_short or ws is None or not ts.group.prefix.memory.task_nbytes:
        return None
    left, limit = admission.free_nbytes(state, ws), admission.limit_nbytes(state, ws)
    if left >= 0:
        return None
    return {
        "worker": ws.address,
        "expected_nbytes": int(limit - left),
        "limit_nbytes": int(limit),
        "share": state.admission.share,
    }


def exceeds_memory(facts: dict[str, Any] | None) -> list[str]:
    """Describe the result of ``excess_facts``."""
    if facts is None:
        return []
    return [
        f"{facts['worker']} is expected to use {format_megabytes(facts['expected_nbytes'])} of "
        f"{format_megabytes(facts['limit_nbytes'])} (paceline.scheduler.memory-admission: "
        f"{facts['share']:g}) and may spill: nothing fits, and no task is expected to free "
        "memory, or the tasks there take more than was expected."
    ]


def waits_for_memory(facts: dict[str, Any]) -> str:
    """Describe the result of ``memory_facts``."""
    nbytes = facts["nbytes"]
    takes = "of unknown size" if nbytes is None else f"expected to take {format_megabytes(nbytes)}"
    free, limit = format_megabytes(facts["free_nbytes"]), format_megabytes(facts["limit_nbytes"])
    return (
        f"it waits for memory: it is {takes}, and {facts['worker']}, which has most left, has "
        f"{free} free of {limit} (paceline.scheduler.memory-admission: {facts['share']:g})."
    )
