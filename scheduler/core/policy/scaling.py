"""Adaptive scaling: the recommended number of workers, and the workers to close.

The functions here do not change the state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import chain, islice
from typing import Any, Final

from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.state.model import WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState

#: Default memory to keep, as a multiple of the data stored.
MEMORY_RATIO: Final = 2.0
#: Default duration of the present work that the cluster is sized for, seconds.
TARGET_DURATION_SECONDS: Final = 5.0
#: Tasks without a worker from which the duration of all of them is estimated.
SAMPLED_TASKS: Final = 100
#: Share of memory in use above which more workers are recommended.
MEMORY_SHARE_MAX: Final = 0.6


def workers_to_close(
    state: SchedulerState,
    memory_ratio: float | None = None,
    n: int | None = None,
    key: Callable[[WorkerState], Hashable] | None = None,
    minimum: int | None = None,
    target: int | None = None,
    attribute: str = "address",
    candidates: Iterable[WorkerState] | None = None,
) -> list[Any]:
    """Return workers that can be closed at low cost: idle ones with little data first.

    Args:
        state: the scheduler's state.
        memory_ratio: memory to keep, as a multiple of the data stored; 2 if neither it nor
            ``n`` is given.
        n: number of workers to close.
        key: groups workers that are closed together, for example by host.
        minimum: number of workers to keep.
        target: number of workers to keep, if ``n`` is None.
        attribute: attribute returned for each worker, "address" or "name".
        candidates: workers that may be closed; default: all that run no seceded task.
    """
    workers = state.workers.values()
    if target is not None and n is None:
        n = len(workers) - target
    if n is not None:
        n = max(0, n)
        target = len(workers) - n
    if n is None and memory_ratio is None:
        memory_ratio = MEMORY_RATIO
    if not n and all(ws.processing for ws in workers):
        return []
    if candidates is None:
        # a seceded task waits for tasks that it submitted and would start over elsewhere
        candidates = [ws for ws in workers if not ws.long_running]
    groups: dict[Hashable, list[WorkerState]] = {}
    for ws in candidates:
        groups.setdefault(ws.address if key is None else key(ws), []).append(ws)
    closing = _cheapest(groups.values(), len(workers), memory_ratio, n, minimum, target or 0)
    return [getattr(ws, attribute) for group in closing for ws in group]


def _cheapest(
    groups: Collection[list[WorkerState]],
    n_workers: int,
    memory_ratio: float | None,
    n: int | None,
    minimum: int | None,
    target: int,
) -> list[list[WorkerState]]:
    limit = sum(ws.memory_limit for group in groups for ws in group)
    total = sum(ws.nbytes for group in groups for ws in group)

    def cost(group: list[WorkerState]) -> tuple[bool, int]:
        return any(ws.processing for ws in group), sum(ws.nbytes for ws in group)

    closing: list[list[WorkerState]] = []
    remaining = n_workers
    for group in sorted(groups, key=cost):
        if n is None and any(ws.processing for ws in group):
            break
        if minimum and remaining - len(group) < minimum:
            break
        limit -= sum(ws.memory_limit for ws in group)
        enough_workers = n is not None and remaining - len(group) >= target
        enough_memory = memory_ratio is not None and limit >= memory_ratio * total
        if not (enough_workers or enough_memory):
            break
        closing.append(group)
        remaining -= len(group)
    return closing


def adaptive_target(
    state: SchedulerState, target_duration_seconds: float = TARGET_DURATION_SECONDS
) -> int:
    """Return the number of workers for the present data, and to finish the work in this time."""
    target = max(_for_data(state), _for_work(state, target_duration_seconds))
    if target >= len(state.workers):
        return target
    return len(state.workers) - len(workers_to_close(state))


def _for_work(state: SchedulerState, target_duration_seconds: float) -> int:
    n_ready = len(state.queued) + len(state.unrunnable)
    sample = list(islice(chain(state.queued, state.unrunnable), SAMPLED_TASKS))
    waiting_seconds = sum(accounting.expected_duration(state, ts.group.prefix) for ts in sample)
    if n_ready > SAMPLED_TASKS:
        waiting_seconds *= n_ready / SAMPLED_TASKS
    wanted = math.ceil((state.total_occupancy + waiting_seconds) / target_duration_seconds)

    # a few long tasks cannot use many workers
    for ws in state.workers.values():
        if n_ready > wanted:
            break
        n_ready += len(ws.processing)
    else:
        wanted = min(n_ready, wanted)

    if state.workers:  # from threads to workers
        wanted = math.ceil(wanted / state.total_nthreads * len(state.workers))
    elif state.unrunnable or len(state.queued):
        wanted = max(1, wanted)
    return wanted


def _for_data(state: SchedulerState) -> int:
    """Return twice the number of workers if their memory is nearly full, else 0."""
    used = sum(ws.nbytes for ws in state.workers.values())
    is_full = used > MEMORY_SHARE_MAX * state.total_memory > 0
    return 2 * len(state.workers) if is_full else 0
