"""Adaptive scaling: the recommended number of workers, and the workers to close.

Stock's ``Adaptive`` requests the number periodically. If it is less than the number of workers that
were requested, it cancels those that have not arrived, and then closes ``workers_to_close``. So the
answer does not fall while workers are starting, and only by workers that may be closed:
``handlers/scaling.py`` remembers the requests. The functions here do not change the state.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import chain, islice
from math import inf
from typing import Any, Final

from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import ShareGroup
from paceline.scheduler.core.state.sharing.fair_queue import ShareQueue
from paceline.scheduler.core.state.workers.loads import is_available, usable_threads

from . import worker_ends

#: Default memory to keep, as a multiple of the data stored.
MEMORY_RATIO: Final = 2.0
#: Tasks without a worker from which the duration of all of them is estimated.
SAMPLED_TASKS: Final = 100
#: Tasks on workers whose restrictions are examined; at least eight on each worker.
EXAMINED_TASKS: Final = 4000
#: Share of memory in use above which more workers are recommended.
MEMORY_SHARE_MAX: Final = 0.6
#: Part of the time since it joined for which a worker may be idle before it is closed.
IDLE_SHARE: Final = 0.1
#: Limits of that time in seconds.
IDLE_SECONDS_MIN: Final = 1.0
IDLE_SECONDS_MAX: Final = 300.0
#: Expected start time of workers before one has started, seconds.
STARTUP_SECONDS: Final = 300.0
#: If no worker joins for this multiple of the known start time, no further worker is expected:
#: before the first of the requested workers has joined, and afterwards.
FIRST_STARTUPS: Final = 2.0
LATER_STARTUPS: Final = 0.5
#: Minimum of this time, seconds.
PATIENCE_SECONDS_MIN: Final = 10.0


def workers_to_close(
    state: SchedulerState,
    memory_ratio: float | None = None,
    n: int | None = None,
    key: Callable[[WorkerState], Hashable] | None = None,
    minimum: int | None = None,
    target: int | None = None,
    attribute: str = "address",
    candidates: Iterable[WorkerState] | None = None,
    unused_only: bool = False,
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
        unused_only: return only workers that are not in use (``may_close``). That is also done for
            a `target` that an adaptive cluster received.
    """
    workers = state.workers.values()
    answered = state.scaling.asked_at > 0
    is_answer = answered and target is not None and n is None and target >= state.scaling.asked
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
    kept: list[WorkerState] = []
    if unused_only or is_answer:
        for name in [name for name, group in groups.items() if not _all_unused(state, group)]:
            kept += groups.pop(name)
    closing = _cheapest(groups.values(), kept, len(workers), memory_ratio, n, minimum, target or 0)
    return [getattr(ws, attribute) for group in closing for ws in group]


def _cheapest(
    groups: Collection[list[WorkerState]],
    kept: list[WorkerState],
    n_workers: int,
    memory_ratio: float | None,
    n: int | None,
    minimum: int | None,
    target: int,
) -> list[list[WorkerState]]:
    """Return the groups to close. Data can move to the workers of the others, and to `kept`."""
    limit = sum(ws.memory_limit for ws in chain(kept, *groups))
    total = sum(ws.nbytes for ws in chain(kept, *groups))

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


def adaptive_target(state: SchedulerState, target_duration_seconds: float) -> int:
    """Return the number of workers for the present data, and to finish the work in this time.

    Workers that were asked for and are starting count like present ones. Workers that are in use
    (``may_close``) are kept.
    """
    n = len(state.workers)
    expected = expected_workers(state)
    target = needed_workers(state, target_duration_seconds)
    if expected > n:
        return max(target, expected)
    if target >= n:
        return target
    closing = workers_to_close(state, unused_only=state.scaling.asked_at > 0)
    return max(target, n - len(closing))


def needed_workers(state: SchedulerState, target_duration_seconds: float) -> int:
    """Return the number of workers for the present data, and to finish the work in this time."""
    return max(_for_data(state), _for_work(state, target_duration_seconds))


def expected_workers(state: SchedulerState) -> int:
    """Return the number of workers once those that were asked for have arrived; 0 if none is.

    Workers are no longer expected if none arrived for ``patience_seconds``, or if there was no work
    for ``adaptive_grace_seconds``.
    """
    scaling = state.scaling
    if not scaling.raised_at:
        return 0
    if state.now - scaling.grown_at > patience_seconds(state):
        return 0
    if state.now - scaling.worked_at > state.config.adaptive_grace_seconds:
        return 0
    return min(scaling.asked, scaling.ceiling) if scaling.ceiling else scaling.asked


def patience_seconds(state: SchedulerState) -> float:
    """Return the time after which no further worker is expected if none joins, in seconds."""
    scaling = state.scaling
    if not scaling.startup_seconds:
        return STARTUP_SECONDS
    factor = LATER_STARTUPS if scaling.arrived else FIRST_STARTUPS
    return max(PATIENCE_SECONDS_MIN, factor * scaling.startup_seconds)


def _all_unused(state: SchedulerState, group: list[WorkerState]) -> bool:
    return all(may_close(state, ws) for ws in group)


def may_close(state: SchedulerState, ws: WorkerState) -> bool:
    """Return whether an adaptive cluster may close `ws`.

    It may not if `ws` has tasks or had some lately, compared with the time since it joined. Only
    while the last tasks run and no other waits for them, further work is not expected. A worker
    that never had a task stays while it is needed, and for ``adaptive_grace_seconds``. Runs that
    were given up do not keep a worker.
    """
    if ws.processing or state.task_policies.has_second_run(ws.address):
        return False
    use = state.scaling.uses.get(ws)
    if use is None:
        return False  # it has just joined
    if not use.busy_at:
        since = max(use.joined_at, state.scaling.wanted_at)
        return state.now - since >= state.config.adaptive_grace_seconds
    allowed = IDLE_SECONDS_MIN
    if not state.scaling.is_tail:
        age = state.now - use.joined_at
        allowed = min(max(IDLE_SHARE * age, IDLE_SECONDS_MIN), IDLE_SECONDS_MAX)
    return state.now - use.busy_at >= allowed


# ------------------------------------------------------------------ the number that is needed


def _for_work(state: SchedulerState, target_duration_seconds: float) -> int:
    n_tasks, waiting_seconds, is_new = _unrunnable_work(state)
    for queue in state.queued.waiting:
        n, queued_seconds = _queued_work(state, queue, target_duration_seconds)
        n_tasks += n
        waiting_seconds += queued_seconds
    n_ready, seconds = n_tasks, state.total_occupancy + waiting_seconds
    startup = state.scaling.startup_seconds
    limited_end = state.now + _longest_limited(state)
    free = 0  # threads that the tasks may use
    for ws in state.workers.values():
        n, restricted_seconds = _restricted_work(state, ws)
        n_tasks += len(ws.processing) - n
        seconds -= restricted_seconds
        n = min(n, int(restricted_seconds / max(target_duration_seconds, startup)))
        n_free = max(0, ws.nthreads - len(ws.extra_runs) - n)
        is_closed = ws.reserved_for is not None or (n_ready and not is_available(ws))
        if is_closed or 0 < ws.ends_at < limited_end:  # its idle threads are of no use
            n_free = min(n_free, len(ws.processing))
        free += n_free
    seconds = max(0.0, seconds)
    wanted = math.ceil(seconds / target_duration_seconds)
    if startup and wanted > free > 0:  # further workers start when part of the work is done
        later = math.ceil(max(0.0, seconds - free * startup) / target_duration_seconds)
        wanted = min(wanted, free + later)
    wanted = min(n_tasks, wanted)  # a few long tasks cannot use many workers

    if state.workers:  # from threads to workers
        wanted += state.total_nthreads - free if wanted else 0
        target = math.ceil(wanted * len(state.workers) / state.total_nthreads)
    else:
        target = max(1, math.ceil(wanted / state.scaling.nthreads)) if n_ready else 0
    if not is_new or 0 < state.scaling.ceiling <= len(state.workers):
        return target
    n_open = sum([ws.status != "closing_gracefully" for ws in state.workers.values()])
    return max(target, n_open + 1)


def _is_restricted(ts: TaskState) -> bool:
    """Return whether `ts` is restricted to workers or hosts, so that a new one cannot run it."""
    return bool(ts.worker_restrictions or ts.host_restrictions) and not ts.loose_restrictions


def _first_and_last(tasks: dict[TaskState, float], n: int) -> list[TaskState]:
    """Return the first and the last `n` of `tasks`."""
    return list(dict.fromkeys(chain(islice(tasks, n), islice(reversed(tasks), n))))


def _restricted_work(state: SchedulerState, ws: WorkerState) -> tuple[int, float]:
    """Return the number of tasks sent to `ws` that new workers cannot run, and their time.

    They count only if `ws` has more tasks than threads.
    """
    tasks = ws.processing
    if len(tasks) <= usable_threads(ws):
        return 0, 0.0
    sample = _first_and_last(tasks, max(4, EXAMINED_TASKS // 2 // len(state.workers)))
    restricted = [ts for ts in sample if _is_restricted(ts)]
    n = math.ceil(len(tasks) * len(restricted) / len(sample))
    return n, _expected_seconds(state, restricted, n)


def _longest_limited(state: SchedulerState) -> float:
    """Return the longest time of queued tasks for which workers end too soon, in seconds.

    Tasks do not count for which the present workers that were asked for ended too soon when they
    joined: further ones would not help.
    """
    if not state.worker_ends.workers:
        return 0.0
    places = chain.from_iterable(queue.restricted.items() for queue in state.queued.waiting)
    tasks = [next(iter(queue.members)) for place, queue in places if place[-1]]
    prefixes = [ts.group.prefix for ts in tasks if not _is_restricted(ts)]
    lifetimes = [use.lifetime_seconds for use in state.scaling.uses.values()]
    most = max(lifetimes, default=0.0) or inf
    times = [worker_ends.expected_seconds(state, each) for each in prefixes]
    return max([seconds for seconds in times if seconds <= most], default=0.0)


def _queued_work(
    state: SchedulerState, queue: ShareQueue, target_duration_seconds: float
) -> tuple[int, float]:
    """Return the number of queued tasks of a group that more workers could run, and their time.

    The caps of the group limit both.
    """
    share = queue.share
    queues = [q.members for q in queue.queues() if q.members]
    queues = [tasks for tasks in queues if not _is_restricted(next(iter(tasks)))]
    n = sum(map(len, queues))
    seconds = _expected_seconds(state, chain.from_iterable(queues), n)
    if not share.is_capped:
        return n, seconds
    n = _within_caps(share, n)
    return n, min(seconds, n * target_duration_seconds)


def _within_caps(share: ShareGroup, n: int) -> int:
    """Return how many of `n` more tasks the caps of `share` allow."""
    free = float(n)
    if share.max_tasks >= 0:
        free = min(free, share.max_tasks - share.n_on_workers)
    if share.max_threads >= 0:
        free = min(free, share.max_threads - share.n_threads)
    if share.cap_reached() == "memory":
        free = min(free, 1 - share.n_processing)
    return max(0, int(free))


def _unrunnable_work(state: SchedulerState) -> tuple[int, float, bool]:
    """Return the number of tasks in no-worker that new workers may run, their time, and `is_new`.

    `is_new` is whether no worker has joined since one of them became ready. The caps of groups
    limit all. Tasks that need a resource that no worker ever had count only for `is_new`.
    """
    joined_at = state.scaling.joined_at
    sample = _first_and_last(state.unrunnable, SAMPLED_TASKS // 2)
    free = [ts for ts in sample if not _is_restricted(ts)]
    latest = [ts for ts in free if state.unrunnable[ts] >= joined_at]
    latest = [ts for ts in latest if ts not in state.whole_workers.due]
    is_new = any(_within_caps(ts.account.share, 1) for ts in latest)
    if joined_at:
        free = [ts for ts in free if _may_be_supplied(state, ts)]
    n = 0
    for share, count in Counter(ts.account.share for ts in free).items():
        n += _within_caps(share, math.ceil(len(state.unrunnable) * count / len(sample)))
    return n, _expected_seconds(state, free, n), is_new


def _may_be_supplied(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether workers supply, or have supplied, each resource that `ts` needs."""
    for resource, amount in (ts.resource_restrictions or {}).items():
        supplied = state.resources.get(resource)
        if supplied is None or (supplied and max(supplied.values()) < amount):
            return False
    return True


def _expected_seconds(state: SchedulerState, tasks: Iterable[TaskState], n: int) -> float:
    """Return the expected time of `n` tasks, from the first ones of `tasks`."""
    sample = list(islice(tasks, SAMPLED_TASKS))
    seconds = sum([estimates.expected_duration(state, ts.group.prefix) for ts in sample])
    return seconds * n / len(sample) if sample else 0.0


def is_tail(state: SchedulerState) -> bool:
    """Return whether tasks run and none waits, so that idle workers are not needed for them."""
    if len(state.queued) or state.unrunnable or state.graphs or state.deferred:
        return False
    if state.has_waiting_tasks:
        return False
    return any(ws.processing for ws in state.workers.values())


def memory_is_full(state: SchedulerState) -> bool:
    """Return whether the memory of all workers together is nearly full."""
    used = sum([ws.nbytes for ws in state.workers.values()])
    return used > MEMORY_SHARE_MAX * state.total_memory > 0


def _for_data(state: SchedulerState) -> int:
    """Return twice the number of workers at which their memory became nearly full, else 0."""
    return 2 * (state.scaling.n_when_full or len(state.workers)) if memory_is_full(state) else 0
