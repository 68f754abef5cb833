"""Choose the next queued task: the share group whose turn it is, its task, and the worker.

A group of the highest priority class goes first, among these the one with the least usage for its
weight. Within a group the highest priority goes first, with one exception for locality: a slot is
given to tasks whose data is on that worker, before tasks whose data is elsewhere. The latter move
if they would start sooner and no group whose turn is soon has a task for the slot. While several
groups of one class wait, such tasks are searched for once per ``MOVE_INTERVAL_SECONDS``. Tasks of a
higher user priority never wait for those of a lower one.

Most short tasks that use a result do not enter the queue, even while several groups have work: see
``immediate_worker``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, Final, TypeAlias

from paceline.scheduler.core.state.estimates import data_nbytes, expected_duration, occupancy
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import ShareGroup
from paceline.scheduler.core.state.sharing.fair_queue import Place, ShareQueue
from paceline.scheduler.core.state.workers.loads import (
    has_free_slot,
    is_available,
    taken_slots,
    usable_threads,
)

from . import admission, coassignment, placement, worker_ends

#: Dependencies considered to find the worker that has most of a task's data.
DEPENDENCIES_MAX: Final = 100
#: Workers with free slots, and workers whose tasks could run elsewhere, that are compared.
WORKERS_COMPARED_MAX = 20
#: Seconds by which a task has to start sooner on a worker that lacks its data.
MOVE_SECONDS = 0.1
#: Interval of the search for such tasks while several share groups wait, seconds.
MOVE_INTERVAL_SECONDS = 0.1

#: Seconds of the whole cluster by which a group may be served early to keep tasks near their data.
SLACK_SECONDS: Final = 0.5

#: Seconds of the whole cluster by which a group may be ahead of the others and still send its ready
#: tasks at once.
LEAD_SECONDS: Final = 0.01
#: A worker without a free slot is sent such tasks too, up to this many tasks per thread, while all
#: are expected to end within this many seconds.
AHEAD_TASKS: Final = 10
AHEAD_SECONDS: Final = 0.005
#: Tasks per thread that a worker is sent at once before it is sent a queued one. The lead does not
#: limit them on one worker of many, nor if they take no time.
EARLY_TASKS: Final = 100

#: The restrictions of a task without restrictions.
NO_RESTRICTIONS: Final = ((), (), (), False, ())

#: A task and the worker to send it to; None if no worker can run it any more.
Choice: TypeAlias = tuple[TaskState, WorkerState | None]
#: The priority of a task, followed by a choice of it.
Candidate: TypeAlias = tuple[Any, TaskState, WorkerState | None]


# ------------------------------------------------------------------ entering the queue


def place_of(state: SchedulerState, ts: TaskState) -> Place:
    """Return what the ready task `ts` waits for while it is held; that ends a claim to it."""
    limited = ts.group.prefix.name if worker_ends.is_limited(state, ts) else ""
    restrictions = restrictions_of(ts)
    if limited or restrictions != NO_RESTRICTIONS:
        return *restrictions, limited
    if not ts.dependencies or ts.actor or placement.is_rootish(state, ts):
        return state.queued.claims.pop(ts, None)
    return _main_holder(state, ts)


def immediate_worker(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """Return the worker that the ready task `ts` is sent to without being held, or None.

    That is the worker that has its data, if it has a free slot or tasks that end very soon, unless
    the queue would send another task of its share group first or the group is ahead of the others
    by ``LEAD_SECONDS``. With short tasks, holding each of them would cost as much as sending it.
    """
    shares, share = state.shares, ts.account.share
    if share.is_capped or shares.has_user_priorities or not ts.dependencies or ts.actor:
        return None
    if state.admission.is_short or state.worker_ends.workers or ts.details is not None:
        return None
    if ts.account.client not in state.clients or placement.is_rootish(state, ts):
        return None
    ws = _main_holder(state, ts)
    if ws is None or not _accepts_at_once(state, ws, ts):
        return None
    for queue in state.queued.waiting:
        other = queue.share
        if other.priority_class > share.priority_class:
            return None
        if other.priority_class == share.priority_class:
            if _is_ahead(state, share, other, LEAD_SECONDS):
                return None
    return ws


def _accepts_at_once(state: SchedulerState, ws: WorkerState, ts: TaskState) -> bool:
    """Return whether `ws` has a free slot for `ts`, or tasks with which `ts` ends very soon.

    Not if it is asked to give tasks back, or was sent many without a turn of the queue.
    """
    if state.queued.early.get(ws, 0) >= EARLY_TASKS * ws.nthreads or state.stealing.tasks.get(ws):
        return False
    if not has_free_slot(ws):
        if taken_slots(ws) >= AHEAD_TASKS * ws.nthreads:
            return False
        if occupancy(state, ws) + expected_duration(state, ts.group.prefix) > AHEAD_SECONDS:
            return False
    return state.queued.is_first_for(ws, ts)


def _is_ahead(state: SchedulerState, share: ShareGroup, other: ShareGroup, seconds: float) -> bool:
    """Return whether `share` has used more than `seconds` of the cluster beyond its part.

    Its part is what corresponds to the usage of `other`.
    """
    allowed = seconds * state.total_nthreads * state.shares.scale
    return share.usage - allowed > other.usage_per_weight * share.weight


def restrictions_of(ts: TaskState) -> tuple[Any, Any, Any, bool, Any]:
    """Return what `ts` is restricted to: see ``fair_queue.Restrictions``, without the prefix."""
    details = ts.details
    if details is None:
        return NO_RESTRICTIONS
    policies = details.policies
    avoided = tuple(policies.avoided) if policies is not None else ()
    workers = tuple(details.worker_restrictions or ())
    hosts = tuple(details.host_restrictions or ())
    resources = tuple((details.resource_restrictions or {}).items())
    if not (workers or hosts or resources or avoided):
        return NO_RESTRICTIONS
    return workers, hosts, resources, details.loose_restrictions, avoided


def is_outranked(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether a queued task of the share group of `ts` has a higher user priority."""
    if not state.shares.has_user_priorities or ts.priority is None or not state.shares.enabled:
        return False
    queue = state.queued.queues.get(ts.account.share)
    first = None if queue is None else queue.roots.peek()
    return first is not None and first.priority is not None and first.priority[0] < ts.priority[0]


def _main_holder(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """Return the running worker that has most bytes of the inputs of `ts`, or None.

    Of several, return one with a free slot.
    """
    if len(ts.dependencies) == 1 and len(ts.dependencies[0].who_has) == 1:
        (ws,) = ts.dependencies[0].who_has
        return ws if ws in state.running else None
    state.loads.refresh_slots()
    free = state.loads.idle_task_count.loads
    local: dict[WorkerState, int] = {}
    for dts in ts.dependencies[:DEPENDENCIES_MAX]:
        nbytes = data_nbytes(state, dts)
        for ws in dts.who_has:
            if ws in state.running:
                local[ws] = local.get(ws, 0) + nbytes
    best: WorkerState | None = None
    most = 0
    for ws, nbytes in local.items():
        if nbytes > most or (nbytes == most and ws in free and best not in free):
            best, most = ws, nbytes
    return best


# ------------------------------------------------------------------ leaving the queue


def next_task(state: SchedulerState) -> Choice | None:
    """Return the queued task to send next and its worker, or None if none can be sent now.

    While several groups of one priority class wait, tasks move away from their data only if
    ``state.queued.may_move`` is set. Even then the groups whose turn is soon are first tried
    without moving data.
    """
    queued = state.queued
    least = state.loads.least_loaded() if queued.waiting else None
    if least is None:
        return None
    is_alone = len(queued.waiting) == 1
    if not (is_alone or queued.may_move or state.shares.has_classes):
        if not queued.has_task_for(state.loads.idle_task_count.loads):
            return None
    queues = queued.in_turn()
    choice = _choose(state, queues[0], least, is_alone)
    if choice is not None or is_alone:
        return choice
    first = queues[0].share
    may_move = queued.may_move or queues[-1].share.priority_class != first.priority_class
    for queue in queues[1:]:
        share = queue.share
        if may_move and (
            share.priority_class != first.priority_class
            or _is_ahead(state, share, first, SLACK_SECONDS)
        ):
            break
        choice = _choose(state, queue, least, False)
        if choice is not None:
            return choice
    for queue in queues if may_move else ():
        choice = _choose(state, queue, least, True)
        if choice is not None:
            return choice
    return None


def may_start(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether the caps of its share group let `ts` start.

    A group at its cap of memory runs tasks that may free memory one by one. Otherwise it could not
    finish, and free its memory. One place is kept for a task that waits for a whole worker.
    """
    share = ts.account.share
    if not share.is_capped:
        return True
    n_kept = state.whole_workers.n_kept(share, ts)
    cap = share.cap_reached(n_kept)
    if cap != "memory":
        return not cap
    return not share.n_processing and not n_kept and may_free_memory(ts)


def may_free_memory(ts: TaskState) -> bool:
    """Return whether `ts` uses intermediate results, or other tasks wait for it."""
    return ts.waiters_count > 0 or any(not dts.who_wants for dts in ts.dependencies)


def _choose(
    state: SchedulerState, queue: ShareQueue, least: WorkerState, may_move: bool
) -> Choice | None:
    """Return the next task of a group and its worker, or None if all have to wait."""
    root = coassignment.next_root(state, queue, least)
    is_capped = queue.share.is_capped
    if not queue.places and not is_capped:
        return root
    found: list[Candidate] = []
    if root is not None:
        found.append((root[0].priority, *root))
    ts = queue.anywhere.peek()
    if ts is not None:
        found.append((ts.priority, ts, for_actor(state) if ts.actor else least))
    if queue.near:
        _add_local(state, queue, found)
    for heap in queue.restricted.values():
        ts = heap.peek()
        if ts is not None:
            _add_restricted(state, ts, found)
    if queue.near and (state.shares.has_user_priorities if found else may_move):
        _add_remote(state, queue, least, found)
    if is_capped:
        found = [each for each in found if each[2] is None or may_start(state, each[1])]
    if not found:
        return None
    best = found[0]
    for each in found:
        if each[0] < best[0]:
            best = each
    return best[1], best[2]


def for_actor(state: SchedulerState) -> WorkerState | None:
    """Return the worker with a free slot and the fewest actors."""
    best: WorkerState | None = None
    for ws in state.loads.idle_task_count.loads:
        if best is None or len(ws.actors) < len(best.actors):
            best = ws
    return best


def _add_local(state: SchedulerState, queue: ShareQueue, found: list[Candidate]) -> None:
    """Add the first task near each worker with a free slot."""
    near = queue.near
    free = state.loads.idle_task_count.loads
    n = 0
    for ws in free if len(free) < len(near) else near:
        if ws in near and ws in free:
            ts = near[ws].peek()
            if ts is not None:
                found.append((ts.priority, ts, ws))
                n += 1
                if n == WORKERS_COMPARED_MAX:
                    break


def _add_remote(
    state: SchedulerState, queue: ShareQueue, least: WorkerState, found: list[Candidate]
) -> None:
    """Add to `found` tasks that `least` should run although their data is on full workers.

    These are tasks that start sooner on `least`, tasks whose worker accepts no tasks, and tasks
    whose user priority is higher than that of all tasks in `found`.
    """
    user_priority = min([each[0][0] for each in found]) if found else None
    free = state.loads.idle_task_count.loads
    compared: Iterable[WorkerState] = queue.near
    is_limited = user_priority is None and not state.shares.has_user_priorities
    if is_limited and len(queue.near) > WORKERS_COMPARED_MAX:
        start = WORKERS_COMPARED_MAX * int(state.now) % len(queue.near)  # others each second
        places = chain(islice(queue.near, start, None), queue.near)
        compared = islice(places, WORKERS_COMPARED_MAX)
    for ws in compared:
        heap = queue.near[ws]
        ts = heap.peek()
        if ts is None or ws in free:
            continue
        if user_priority is None:
            if is_available(ws) and not starts_sooner(state, ts, least, ws, len(heap)):
                continue
        elif ts.priority is None or ts.priority[0] >= user_priority:
            continue
        found.append((ts.priority, ts, least))


def starts_sooner(
    state: SchedulerState,
    ts: TaskState,
    elsewhere: WorkerState,
    ws: WorkerState,
    n_waiting: int,
) -> bool:
    """Return whether `ts` would start sooner on the free worker `elsewhere` than on `ws`.

    The `n_waiting` tasks that wait for `ws` in the queue count as its work.
    """
    seconds = n_waiting * expected_duration(state, ts.group.prefix)
    wait = (occupancy(state, ws) + seconds) / usable_threads(ws)
    return (
        wait > MOVE_SECONDS and placement.fetch_seconds(state, ts, elsewhere) + MOVE_SECONDS < wait
    )


# ------------------------------------------------------------------ restricted tasks


def _add_restricted(state: SchedulerState, ts: TaskState, found: list[Candidate]) -> None:
    """Add the restricted task `ts` if a worker has a slot and the resources for it, or none can."""
    ws = worker_for_restricted(state, ts)
    if ws is not None or not can_run(state, ts):
        found.append((ts.priority, ts, ws))


def can_run(
    state: SchedulerState, ts: TaskState, among: dict[WorkerState, None] | None = None
) -> bool:
    """Return whether any running worker, or any `among` the given ones, may run `ts`."""
    workers = state.running if among is None else among
    allowed = placement.allowed_workers(state, ts, workers)
    return bool(workers) and (allowed is None or bool(allowed))


def worker_for_restricted(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """Return the worker with a free slot and free resources on which `ts` starts soonest."""
    valid = placement.valid_workers(state, ts)
    if valid and ts.loose_restrictions and state.worker_ends.workers:
        able = {ws: None for ws in valid if worker_ends.can_finish(state, ts, ws)}
        valid = able or placement.allowed_workers(state, ts)
    if valid is not None:
        free = [ws for ws in valid if has_free_slot(ws) and _has_resources(state, ts, ws)]
        return _starts_soonest(state, ts, free)
    least = state.loads.least_loaded()
    if least is None or not worker_ends.is_limited(state, ts):
        return least
    return _starts_soonest(state, ts, state.loads.idle_task_count)


def _starts_soonest(
    state: SchedulerState, ts: TaskState, workers: Iterable[WorkerState]
) -> WorkerState | None:
    """Return the one of `workers` on which `ts` starts soonest and can finish, or None."""
    able = [ws for ws in workers if worker_ends.can_finish(state, ts, ws)]
    return placement.soonest(state, ts, able)


def _has_resources(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ws` has the resources that `ts` needs, or soon has: see ``task_slots``."""
    saturation = state.config.worker_saturation
    for resource, amount in (ts.resource_restrictions or {}).items():
        supplied = ws.resources.get(resource, 0.0)
        used = ws.used_resources.get(resource, 0.0)
        if used + amount > max(saturation * supplied, supplied + amount):
            return False
    return True


def worker_for(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """Return a worker with a free slot for the queued task `ts`, or None.

    Other queued tasks that would be sent first are ignored.
    """
    least = state.loads.least_loaded()
    if least is None or not may_start(state, ts):
        return None
    place = state.queued.place(ts)
    if place is not None and not isinstance(place, WorkerState):
        found = worker_for_restricted(state, ts)
    else:
        found = place if place is not None and place in state.loads.idle_task_count else least
        if not worker_ends.can_finish(state, ts, found):
            return None
    if found is not None and state.admission.is_short and not admission.fits(state, ts, found):
        return None
    return found
