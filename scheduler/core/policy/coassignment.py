"""Co-assign root-ish tasks: siblings, whose results the same tasks take, go to the same worker.

Dask's queue sends root-ish tasks one by one to whichever worker has a free slot, so that neighbours
in the graph land on different workers and their results travel. Here the worker that is sent the
first task *claims* its siblings, those with the nearest common dependents first. It is sent them as
soon as they are ready, also beyond its slots, because tasks that follow the first ones would take
these. Tasks without a claim start new batches.

A worker that is sent the next root-ish task while it has yet to run tasks that use the last results
holds the data of both. Root-ish tasks with large results wait for that: see ``worker_for_root``.

While workers are short of memory, claimed tasks wait in the *batch* of their worker: see
``memory_queue``.
"""

from __future__ import annotations

import math
from itertools import chain, islice
from typing import Any, Final

from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.estimates import task_memory, usual_duration
from paceline.scheduler.core.state.model import TaskGroup, TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.fair_queue import ShareQueue
from paceline.scheduler.core.state.task_states import count_in
from paceline.scheduler.core.state.workers.loads import has_free_slot, taken_slots

from . import admission, placement, worker_ends

#: The dependencies of a task with more dependencies than this are not siblings. If a task has more,
#: only these are examined.
DEPENDENCIES_MAX: Final = 32
#: Maximum number of dependents of a task that are compared to find the first in dask's order.
DEPENDENTS_MAX: Final = 32
#: Maximum number of levels of dependents above a task, below which siblings are searched.
LEVELS_MAX: Final = 8
#: All that the nearest common dependent takes are claimed if they are at most this many tasks.
FAMILY_MAX: Final = 4
#: Tasks are not siblings if what is made from their results takes less than this part of them when
#: it meets. To move it costs less than to hold the results of several reductions at a time.
REDUCED_PART: Final = 0.3
#: Root-ish tasks wait for others unless more than this, the default, is configured as
#: ``distributed.scheduler.worker-saturation``.
SATURATION_MAX: Final = 1.1
#: A result is large for a worker if it takes this part of its memory for each of its threads.
LARGE_PART: Final = 0.0001
#: The same for tasks that take less than ``QUICK_SECONDS``, because waiting costs them more.
QUICK_LARGE_PART, QUICK_SECONDS = 0.0005, 0.005
#: Root-ish tasks that make large results wait for others that take at most this part of their own
#: duration, and at most this long, in seconds. Longer waits cost time and save little memory.
SHORT_PART, SHORT_SECONDS = 0.5, 0.1
#: Maximum number of workers of each load that are compared for a task with a large result.
WORKERS_COMPARED_MAX: Final = 8
#: Maximum number of tasks on a worker that are examined, for each of its threads.
TASKS_PER_THREAD_MAX: Final = 8
#: Maximum number of tasks examined for each task that may be claimed.
VISITS_PER_TASK: Final = 4

#: States of a task that is not on a worker and may be claimed.
_UNSENT: Final = ("released", "waiting", "queued")


def place_rootish(state: SchedulerState, ts: TaskState, recs: Recs) -> WorkerState | None:
    """Return the worker to send the ready, root-ish task `ts` to, or None to queue it.

    Recommend sending its queued siblings to that worker.
    """
    claims = state.queued.claims
    if ts in claims:
        ws = claimed_worker(state, ts)
        if ws is not None:
            del claims[ts]
        return ws
    least = state.loads.least_loaded()
    ws = None if least is None else worker_for_root(state, ts, least)
    if ws is not None and state.admission.is_short:
        ws = admission.find_worker(state, ts, ws)
    if ws is not None:
        claim(state, ts, ws, recs)
    return ws


def claimed_worker(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """Return the worker that has claimed `ts` if it can be sent `ts` now, or None."""
    ws = state.queued.claims.get(ts)
    if ws is None or not worker_ends.can_finish(state, ts, ws):
        return None
    if state.admission.is_short and not (has_free_slot(ws) and admission.fits(state, ts, ws)):
        return None
    return ws


def worker_for_root(state: SchedulerState, ts: TaskState, least: WorkerState) -> WorkerState | None:
    """Return the worker that the root-ish task `ts`, without a claim, is sent to; None if it waits.

    That is `least`, the least loaded one. If the result is large, it is the least loaded one with a
    free thread and no short tasks to finish first. Slots beyond the threads bridge the time until a
    worker receives its next task. But a thread then makes new data before it is sent the task that
    uses the last.
    """
    if not may_wait_for_results(state, ts, least):
        return least
    if taken_slots(least) >= max(1, least.nthreads):
        return None
    for ws in chain((least,), state.loads.idle_task_count.below(1.0, WORKERS_COMPARED_MAX)):
        if not _has_to_finish(state, ts, ws):
            return ws
    return None


def may_wait_for_results(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether the root-ish task `ts` may wait for tasks on `ws` that use results.

    It may if other tasks use its result, the result is large for `ws`, waiting is not turned off,
    and no other tasks could take the slot that it leaves free.
    """
    is_quick = usual_duration(ts.group.prefix) < QUICK_SECONDS
    part = QUICK_LARGE_PART if is_quick else LARGE_PART
    large = part * ws.memory_limit / max(1, ws.nthreads)
    if not large or task_memory(ts.group).result_nbytes < large:
        return False
    if not ts.dependents or state.config.worker_saturation > SATURATION_MAX:
        return False
    return not state.shares.has_user_priorities and len(state.queued.waiting) <= 1


def _has_to_finish(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ws` runs short tasks that use results, and has at most one free thread.

    Short are those that usually take at most ``SHORT_PART`` as long as `ts`, and at most
    ``SHORT_SECONDS``. Those that have taken longer do not count, nor do seceded and root-ish ones,
    nor those that wait: for inputs that `ws` has to fetch, or for resources.
    """
    if taken_slots(ws) < max(1, ws.nthreads - 1):
        return False
    short = min(SHORT_SECONDS, SHORT_PART * usual_duration(ts.group.prefix))
    for other in islice(reversed(ws.processing), TASKS_PER_THREAD_MAX * ws.nthreads):
        if (
            other.dependencies
            and other not in ws.long_running
            and 0 <= usual_duration(other.group.prefix) <= short
            and ws.executing.get(other, 0.0) <= short
            and not other.resource_restrictions
            and not placement.is_rootish(state, other)
            and all(ws in dts.who_has for dts in other.dependencies[:DEPENDENCIES_MAX])
        ):
            return True
    return False


# ------------------------------------------------------------------ claims


def claim(state: SchedulerState, ts: TaskState, ws: WorkerState, recs: Recs) -> None:
    """Let `ws`, which is sent `ts`, claim its siblings if `ts` is root-ish.

    Recommend sending it those that are queued, unless it is not the turn of their share group.
    Tasks whose results meet only after they have been reduced are not siblings.
    """
    consumer = _consumer_of_siblings(state, ts)
    if consumer is None or not placement.is_rootish(state, ts):
        return
    share = _unsent_share(ts.group, ws, state.total_nthreads)
    n_left = min(share, state.config.coassigned_tasks * ws.nthreads) - 1
    n_family = min(share, FAMILY_MAX) - 1
    seen: dict[TaskState, None] = {ts: None}
    n_visits = VISITS_PER_TASK * max(n_left, n_family)
    for _ in range(LEVELS_MAX):
        most = max(n_left, n_family)
        if consumer is None or most <= 0 or len(seen) > n_visits:
            return
        siblings: list[TaskState] = []
        if len(consumer.dependencies) == 1:  # part of a chain
            seen[consumer] = None
        else:
            siblings = _siblings(state, consumer, seen, n_visits, most + 1)
        n_claimed = len(siblings) if len(siblings) <= n_family else max(0, n_left)
        for each in siblings[:n_claimed]:
            state.queued.claim(each, ws)
            if each.state == "queued" and each in state.queued.claims and each not in recs:
                if not state.shares.holds(each.account.share):
                    recs[each] = "processing"
        n_left -= len(siblings)
        n_family -= len(siblings)
        if (siblings and n_left <= 0) or _is_reduced(ts, consumer):
            return
        consumer = _first_consumer(consumer)


def _siblings(
    state: SchedulerState,
    consumer: TaskState,
    seen: dict[TaskState, None],
    n_visits: int,
    most: int,
) -> list[TaskState]:
    """Return up to `most` unclaimed root-ish tasks that `consumer` depends on, in dask's order.

    Tasks in `seen` have been examined. Stop when these are more than `n_visits`.
    """
    found: list[TaskState] = []
    stack = [consumer]
    while stack and len(found) < most and len(seen) <= n_visits:
        each = stack.pop()
        if each in seen or each.state not in _UNSENT:
            continue
        seen[each] = None
        if len(each.dependencies) > DEPENDENCIES_MAX:
            continue
        missing = [dts for dts in each.dependencies if not dts.who_has]
        if missing:
            stack += reversed(missing)
        elif each.state != "released" and each.queueable and each not in state.queued.claims:
            if placement.is_rootish(state, each):
                found.append(each)
    return found


def _is_reduced(ts: TaskState, dependent: TaskState) -> bool:
    """Return whether the result of `dependent` is much smaller than that of the root-ish `ts`."""
    memory = task_memory(dependent.group)
    nbytes = task_memory(ts.group).result_nbytes
    return memory.is_known and memory.result_nbytes < REDUCED_PART * nbytes


def _consumer_of_siblings(state: SchedulerState, ts: TaskState) -> TaskState | None:
    """Return the first dependent of `ts`, or None if its dependencies are not co-assigned."""
    config = state.config
    if not ts.dependents or not config.coassigned_tasks or state.shares.has_user_priorities:
        return None
    if math.isinf(config.worker_saturation):
        return None
    consumer = _first_consumer(ts)
    if consumer is None or len(consumer.dependencies) > DEPENDENCIES_MAX:
        return None
    return consumer


def _unsent_share(group: TaskGroup, ws: WorkerState, total_nthreads: int) -> int:
    """Return the share of the threads of `ws` in the tasks of `group` that have not been sent."""
    return count_in(group.counts, *_UNSENT) * ws.nthreads // total_nthreads


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
    for ws, batch in queue.batches.items():  # left from when memory was short
        ts = batch.peek()
        if ts is not None:
            return ts, ws
    root = queue.roots.peek()
    found = None if root is None else worker_for_root(state, root, least)
    return None if root is None or found is None else (root, found)
