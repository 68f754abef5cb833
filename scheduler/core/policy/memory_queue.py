"""Choose the next queued task while workers may run short of memory.

Share groups take turns as always. Within a group, tasks of a higher user priority go first, then
those that free memory, then those whose results are missing for such tasks (``missing_inputs``),
then those of a higher priority. Tasks that do not fit are passed over.

If no task fits, workers without tasks that can make room by spilling results are sent one. If few
workers have tasks that free memory, all free threads of such workers are filled. If few workers
have any work, the first task is sent where most memory is left, so that the work goes on. A worker
that cannot hold the result of a task does not get it while a larger worker may run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from paceline.scheduler.core.state.admission import TaskMemory
from paceline.scheduler.core.state.estimates import task_memory
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.fair_queue import Place, ShareQueue
from paceline.scheduler.core.state.workers.loads import is_available, taken_slots

from . import admission, fairness
from .admission import Condition
from .fairness import Choice
from .missing_inputs import MISSING_MAX, missing_inputs

#: Queued tasks considered of those that any worker can run, and with the same restrictions.
ANYWHERE_MAX, RESTRICTED_MAX = 16, 4
#: Queued tasks considered of those near workers, and the least number near each. Tasks that free
#: memory may be behind many others.
NEAR_MAX, NEAR_MIN = 128, 4
#: Workers whose queued tasks are considered, and sets of restrictions.
PLACES_MAX = 32
#: One of this many workers may have work while a task is sent that does not fit.
BUSY_PART = 4

#: The order of a task, the task, what it waits for, and whether it may go to any worker.
Candidate: TypeAlias = tuple[Any, TaskState, Place, bool]


def next_task(state: SchedulerState) -> Choice | None:
    """Return the queued task to send next and its worker, or None if none can be sent now."""
    if not state.admission.is_short:
        return fairness.next_task(state)
    if not state.queued.waiting or not state.loads.has_free_slots():
        return None
    candidates: dict[ShareQueue, list[Candidate]] = {}
    choice = _next(state, candidates)
    if choice is None and _has_idle_worker(state):
        choice = _next(state, candidates, admission.can_spill_when_idle)
    if choice is None and not _is_busy(state, admission.may_free):
        choice = _next(state, candidates, admission.can_spill)
    if choice is None and not _is_busy(state, admission.may_end):
        choice = _next(state, candidates, admission.is_large_enough)
    return choice


def _next(
    state: SchedulerState,
    candidates: dict[ShareQueue, list[Candidate]],
    accepts: Condition | None = None,
) -> Choice | None:
    """Return the next task and a worker that satisfies `accepts`, or by default has the memory.

    `candidates` keeps what ``_candidates`` returned for each group.
    """
    for queue in state.queued.in_turn():
        if queue not in candidates:
            candidates[queue] = _candidates(state, queue)
        choice = _choose(state, queue, candidates[queue], accepts)
        if choice is not None:
            return choice
    return None


def _has_idle_worker(state: SchedulerState) -> bool:
    least = state.loads.least_loaded()
    return least is not None and not taken_slots(least)


def _is_busy(
    state: SchedulerState, condition: Callable[[SchedulerState, WorkerState], bool]
) -> bool:
    """Return whether `condition` holds for enough workers to wait for the memory that they free."""
    n_missing = max(1, len(state.running) // BUSY_PART)
    for ws in state.running:
        n_missing -= condition(state, ws)
        if n_missing <= 0:
            return True
    return False


def _choose(
    state: SchedulerState,
    queue: ShareQueue,
    candidates: list[Candidate],
    accepts: Condition | None,
) -> Choice | None:
    is_capped = queue.share.is_capped
    failed: dict[TaskMemory, None] = {}
    for _, ts, place, runs_anywhere in candidates:
        is_root = runs_anywhere and not ts.dependencies
        if (is_root and task_memory(ts.group) in failed) or (
            is_capped and not fairness.may_start(state, ts)
        ):
            continue
        if isinstance(place, tuple):
            ws = fairness.worker_for_restricted(state, ts)
            if ws is None:
                if fairness.can_run(state, ts):
                    continue
                return ts, None
        else:
            ws = _first_worker(state, ts, place)
            if ws is None:
                continue
        if accepts is None:
            ws = admission.find_worker(state, ts, ws)
        elif not ts.actor and (place is None or admission.is_too_small(state, ts, ws)):
            ws = admission.roomiest_worker(state, ts, ws, accepts)
        elif not accepts(state, ts, ws):
            ws = admission.roomiest_worker(state, ts, ws, accepts) if runs_anywhere else None
        if ws is not None:
            return ts, ws
        if is_root:
            failed[task_memory(ts.group)] = None
    return None


def _candidates(state: SchedulerState, queue: ShareQueue) -> list[Candidate]:
    """Return the tasks of a group that are considered, in the order in which they go."""
    missing = missing_inputs(state, queue)
    found: dict[TaskState, Place] = {ts: ws for ts, (_, ws) in missing.items()}
    for heap in (queue.roots, queue.anywhere):
        for ts in heap.first(ANYWHERE_MAX):
            found.setdefault(ts, None)
    for heaps in (queue.batches, queue.near):
        workers = _first_places(state, heaps)
        for ws in workers:
            for ts in heaps[ws].first(max(NEAR_MIN, NEAR_MAX // len(workers))):
                found.setdefault(ts, ws)
    for place in _first_places(state, queue.restricted):
        for ts in queue.restricted[place].first(RESTRICTED_MAX):
            found.setdefault(ts, place)
    out: list[Candidate] = []
    for ts, place in found.items():
        priority = ts.priority or (0,)
        if admission.is_freeing(state, ts):
            rank = 0
        else:
            rank = missing[ts][0] if ts in missing else MISSING_MAX + 1
        runs_anywhere = place is None or ts in missing
        out.append(((priority[0], rank, priority), ts, place, runs_anywhere))
    out.sort(key=_order)
    return out


def _first_places(state: SchedulerState, heaps: Mapping[Any, Any]) -> list[Any]:
    """Return up to PLACES_MAX keys of `heaps`, those that can have a free slot first."""
    places = list(heaps)
    if len(places) > PLACES_MAX:
        places.sort(key=lambda place: _is_full(state, place))
    return places[:PLACES_MAX]


def _is_full(state: SchedulerState, place: Any) -> bool:
    """Return whether no worker of `place` has a free slot, as far as is known at little cost."""
    free = state.loads.idle_task_count.loads
    if isinstance(place, WorkerState):
        return place not in free
    workers, hosts, _, is_loose = place[:4]
    if not workers or hosts or is_loose:
        return False
    found = [state.workers.get(address) for address in workers]
    return all(ws in state.running and ws not in free for ws in found)


def _order(candidate: Candidate) -> Any:
    return candidate[0]


def _first_worker(state: SchedulerState, ts: TaskState, place: Place) -> WorkerState | None:
    """Return the worker with a free slot that `ts` is sent to if it fits; None if it waits."""
    if ts.actor:
        return fairness.for_actor(state)
    least = state.loads.least_loaded()
    if not isinstance(place, WorkerState) or least is None:
        return least
    if place in state.loads.idle_task_count:
        return place
    queue = state.queued.queues[ts.account.share]
    heap = queue.near[place] if ts in queue.places else queue.batches[place]
    if is_available(place) and not fairness.starts_sooner(state, ts, least, place, len(heap)):
        return None
    return least
