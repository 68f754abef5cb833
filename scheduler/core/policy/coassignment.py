"""Co-assign root-ish tasks: siblings, whose results the same tasks take, go to the same worker.

Dask's queue sends root-ish tasks one by one to whichever worker has a free slot, so that neighbours
in the graph land on different workers and their results travel. Here the worker that is sent the
first task *claims* its siblings, those with the nearest common consumers first. They wait in its
*batch* and take its slots in order of priority. Tasks without a claim start new batches. If none is
left, a worker with a free slot takes over the last task of another one's batch, if that is worth
moving its result.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

from paceline.scheduler.core.lifecycle.accounting import expected_duration, occupancy
from paceline.scheduler.core.state.fair_queue import ShareQueue
from paceline.scheduler.core.state.model import TaskGroup, TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.worker_loads import usable_threads

from . import admission, placement

#: The dependencies of consumers with more of them are not siblings.
DEPENDENCIES_MAX = 32
#: Consumers of a task among which the first in dask's order is looked for.
DEPENDENTS_MAX = 32
#: Consumers above each other that are looked at.
LEVELS_MAX = 8
#: Tasks looked at for each one that may be claimed.
VISITS_PER_TASK = 4
#: Free workers, and batches to take tasks over from, that are compared.
WORKERS_COMPARED_MAX = 20
#: Seconds that the message about a task, and the one about its end, take at least.
MOVE_SECONDS = 0.005

#: States of a task that is not on a worker and may be claimed.
_UNSENT = frozenset(("released", "waiting", "queued"))


def place_rootish(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """Return the worker to send the ready, root-ish task `ts` to, or None to queue it."""
    claims = state.queued.claims
    claimed = claims.get(ts) if claims else None
    if claimed is None:
        least = state.loads.least_loaded()
        if least is not None and state.admission.is_short:
            least = admission.find_worker(state, ts, least)
        if least is not None:
            claim(state, ts, least)
        return least
    state.loads.refresh_slots()
    if claimed not in state.loads.idle_task_count.loads:
        return None
    if state.admission.is_short and not admission.fits(state, ts, claimed):
        return None
    del claims[ts]
    return claimed


# ------------------------------------------------------------------ claims


def claim(state: SchedulerState, ts: TaskState, ws: WorkerState) -> None:
    """Let `ws`, which is sent `ts`, claim its siblings if `ts` is root-ish."""
    config = state.config
    if not ts.dependents or not config.coassigned_tasks or state.shares.has_user_priorities:
        return
    consumer = _first_consumer(ts)
    if consumer is None or len(consumer.dependencies) > DEPENDENCIES_MAX:
        return
    if math.isinf(config.worker_saturation) or not placement.is_rootish(state, ts):
        return
    n_left = _batch_size(state, ts.group, ws) - 1
    n_visits = VISITS_PER_TASK * n_left
    claims = state.queued.claims
    seen: dict[TaskState, None] = {ts: None}
    for _ in range(LEVELS_MAX):
        if consumer is None:
            return
        stack = [consumer]
        while stack and n_left > 0:
            each = stack.pop()
            if each in seen or each.state not in _UNSENT:
                continue
            seen[each] = None
            n_visits -= 1
            if n_visits < 0 or len(each.dependencies) > DEPENDENCIES_MAX:
                return
            missing = [dts for dts in each.dependencies if not dts.who_has]
            if missing:
                stack += reversed(missing)
            elif each not in claims and each.queueable and placement.is_rootish(state, each):
                state.queued.claim(each, ws)
                n_left -= 1
        if n_left <= 0:
            return
        consumer = _first_consumer(consumer)


def _batch_size(state: SchedulerState, group: TaskGroup, ws: WorkerState) -> int:
    """Return the number of tasks of `group` that `ws` is assigned together.

    That is at most its share of those that have not been sent.
    """
    states = group.states
    n_unsent = states["waiting"] + states["queued"] + states["released"]
    share = n_unsent * ws.nthreads // state.total_nthreads
    return min(share, state.config.coassigned_tasks * ws.nthreads)


def _first_consumer(ts: TaskState) -> TaskState | None:
    """Return the dependent of `ts` that is first in dask's order, or None."""
    dependents = ts.dependents
    if len(dependents) == 1:
        return next(iter(dependents))
    best: TaskState | None = None
    first: Any = None
    for dts in islice(dependents, DEPENDENTS_MAX):
        priority: Any = dts.priority
        if priority is not None and (best is None or priority < first):
            best, first = dts, priority
    return best


# ------------------------------------------------------------------ leaving the queue


def next_root(
    state: SchedulerState, queue: ShareQueue, least: WorkerState
) -> tuple[TaskState, WorkerState] | None:
    """Return the next root-ish task of `queue` and its worker, or None if all have to wait."""
    root = queue.roots.peek()
    if not queue.batches:
        return None if root is None else (root, least)
    best: tuple[TaskState, WorkerState] | None = None if root is None else (root, least)
    first: Any = None if root is None else root.priority
    batches, free = queue.batches, state.loads.idle_task_count.loads
    for ws in islice(free if len(free) < len(batches) else batches, WORKERS_COMPARED_MAX):
        if ws in free and ws in batches:
            ts = batches[ws].peek()
            if ts is not None and (best is None or ts.priority < first):
                best, first = (ts, ws), ts.priority
    return best or _taken_over(state, queue, least)


def _taken_over(
    state: SchedulerState, queue: ShareQueue, least: WorkerState
) -> tuple[TaskState, WorkerState] | None:
    """Return the last task of the longest batch, if it would start sooner on the free worker."""
    longest: WorkerState | None = None
    most = 0.0
    for ws, batch in islice(queue.batches.items(), WORKERS_COMPARED_MAX):
        n = len(batch) / usable_threads(ws)
        if n > most:
            longest, most = ws, n
    if longest is None:
        return None
    ts = queue.batches[longest].last()
    assert ts is not None
    wait = occupancy(state, longest) / usable_threads(longest)
    wait += most * expected_duration(state, ts.group.prefix)
    move = MOVE_SECONDS + ts.group.prefix.memory.result_nbytes / state.bandwidth
    return (ts, least) if move < wait else None
