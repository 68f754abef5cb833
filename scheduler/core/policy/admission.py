"""Send workers only tasks whose results they have memory for.

A worker is expected to use: the results that it holds in memory, those that it has to fetch, what
its process uses while it is idle, and for each task that it was sent the larger of the mean result
and of what running such a task takes, of its prefix or group. A task fits if the sum stays below a
share of the memory limit (``paceline.scheduler.memory-admission``). A task that frees at least as
much as it makes always fits where its inputs are in memory.

All of this is computed only while ``state.admission.is_short``, and for tasks of which nothing is
known and that are more than threads with a common input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TypeAlias

from paceline.scheduler.core.config import heartbeat_interval
from paceline.scheduler.core.state.admission import UNLIMITED_NBYTES, WATCHED
from paceline.scheduler.core.state.estimates import data_nbytes, task_memory
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.workers.loads import has_free_slot, taken_slots, usable_threads

from . import placement, worker_ends
from .memory import held_nbytes

#: The memory of the idle process counts as at most this share of the limit, because a process may
#: keep freed memory and use it again.
IDLE_MAX = 0.5
#: The peak of one task counts as at most this share of the limit minus the idle process.
PEAK_MAX = 0.5
#: A task that needs at most this share of the limit always fits.
SMALL = 0.001
#: A task that is not expected to free memory is expected to end soon until it has executed for this
#: time, seconds.
FRUITLESS_SECONDS = 2.0
#: A task that is expected to free memory is expected to end soon until it has executed for this
#: time, or for this multiple of its average duration if that is longer.
WAIT_SECONDS, WAIT_FACTOR = 60.0, 3.0
#: A task is expected to free memory when it ends if it uses more than this share of the limit
#: besides its result.
LARGE = 0.25
#: A task that frees as much as it makes and loads fits if its worker then fetches, or reads from
#: disk, at most this share of the limit.
LOADED_MAX = 0.1
#: A worker that cannot hold the result of a task is too small for it if another worker that may run
#: it can hold more than this multiple. Workers with equal limits differ by their idle process.
LARGER = 1.25
#: The expected use of a worker may reach this share of its limit before a heartbeat shows what it
#: has spilled. Stock workers are killed at 0.95.
SPILLING_MAX = 0.9
#: Time within which a heartbeat is expected to show what a worker has spilled, seconds.
REPORT_SECONDS = 2.0
#: Heartbeats of workers that may soon run short of memory: least number of seconds between two, and
#: most in a second of all workers.
HEARTBEAT_SECONDS_MIN, HEARTBEATS_PER_SECOND_MAX = 0.1, 100
#: Maximum number of dependencies of a task that are examined.
DEPENDENCIES_MAX = 100
#: Maximum number of tasks of a worker, besides one for each thread, that are examined one by one.
TASKS_MAX = 64
#: Maximum number of workers that are examined for one task. If there are more, others are examined
#: after each transition, and in each second.
WORKERS_MAX = 128

#: Whether a worker may be sent a task.
Condition: TypeAlias = Callable[[SchedulerState, TaskState, WorkerState], bool]


def allowed_nbytes(state: SchedulerState, ws: WorkerState) -> float:
    """Return the bytes that `ws` may be expected to use."""
    share = state.admission.share
    return ws.memory_limit * share if share and ws.memory_limit else float(UNLIMITED_NBYTES)


def idle_nbytes(state: SchedulerState, ws: WorkerState) -> float:
    """Return the bytes that the process of `ws` uses without tasks and results."""
    return min(float(max(0, ws.idle_nbytes)), IDLE_MAX * allowed_nbytes(state, ws))


def usable_nbytes(state: SchedulerState, ws: WorkerState) -> float:
    """Return the bytes that tasks and results on `ws` may be expected to use."""
    return allowed_nbytes(state, ws) - idle_nbytes(state, ws)


def watched_nbytes(state: SchedulerState, ws: WorkerState) -> int:
    """Return the bytes of present and expected results from which `ws` is watched."""
    return int(WATCHED * allowed_nbytes(state, ws) - idle_nbytes(state, ws))


def results_nbytes(state: SchedulerState, ws: WorkerState) -> int:
    """Return the bytes of present and expected results of `ws`, without those it spilled."""
    return resident_nbytes(state, ws) + expected_nbytes(ws)


def expected_nbytes(ws: WorkerState) -> int:
    """Return the bytes that `ws` has to fetch, and that its tasks are expected to take."""
    total = ws.network_occ
    groups_differ = False
    for prefix, count in chain(ws.task_prefix_count.items(), ws.unknown_duration_count.items()):
        total += prefix.memory.task_nbytes * count
        groups_differ = groups_differ or prefix.memory.groups_differ
    if groups_differ:
        for ts in _first_tasks(ws):
            total += task_memory(ts.group).task_nbytes - ts.group.prefix.memory.task_nbytes
    return total


def _first_tasks(ws: WorkerState) -> Iterator[TaskState]:
    """Return the tasks that `ws` runs first, without those that have seceded."""
    first = islice(ws.processing, ws.nthreads + TASKS_MAX)
    return (ts for ts in first if ts not in ws.long_running)


def resident_nbytes(state: SchedulerState, ws: WorkerState) -> int:
    """Return the bytes of the results that `ws` has in memory.

    The inputs of a running task are in memory even if they were spilled.
    """
    if not ws.spilled_nbytes:
        return ws.nbytes
    return max(held_nbytes(ws), in_use_nbytes(state, ws))


def in_use_nbytes(state: SchedulerState, ws: WorkerState) -> int:
    """Return the bytes of the results on `ws` that the tasks which it runs first take."""
    return sum([data_nbytes(state, dts) for dts in inputs_in_use(ws)])


def unused_nbytes(state: SchedulerState, ws: WorkerState) -> int:
    """Return the bytes of the results that `ws` has in memory and that no running task takes."""
    return max(0, held_nbytes(ws) - in_use_nbytes(state, ws))


def inputs_in_use(ws: WorkerState) -> dict[TaskState, None]:
    """Return the results on `ws` that the tasks which it runs first take."""
    inputs: dict[TaskState, None] = {}
    for ts in islice(_first_tasks(ws), ws.nthreads):
        for dts in ts.dependencies[:DEPENDENCIES_MAX]:
            if ws in dts.who_has:
                inputs[dts] = None
    return inputs


def heartbeat_seconds(state: SchedulerState, address: str) -> float:
    """Return the seconds until the next heartbeat of a worker, which may have been removed.

    Workers that may run short of memory send more heartbeats.
    """
    n_workers = len(state.workers)
    seconds = heartbeat_interval(n_workers)
    ws = state.workers.get(address)
    if ws is not None and state.admission.is_short and is_watched(state, ws):
        seconds = min(seconds, max(HEARTBEAT_SECONDS_MIN, n_workers / HEARTBEATS_PER_SECOND_MAX))
    return seconds


def is_watched(state: SchedulerState, ws: WorkerState) -> bool:
    """Return whether `ws` may soon run short of memory."""
    return results_nbytes(state, ws) > ws.watched_nbytes


def free_nbytes(state: SchedulerState, ws: WorkerState) -> float:
    """Return the bytes that `ws` has left for further tasks; negative if it was sent too many."""
    return usable_nbytes(state, ws) - float(results_nbytes(state, ws))


def fits(state: SchedulerState, ts: TaskState, ws: WorkerState, may_spill: bool = False) -> bool:
    """Return whether `ws` is expected to have the memory for `ts`.

    If `may_spill`, it is expected to spill results that no task uses.
    """
    allowed = allowed_nbytes(state, ws)
    if allowed >= UNLIMITED_NBYTES or ts.actor:
        return True
    memory = task_memory(ts.group)
    spilled = spilled_inputs_nbytes(state, ts, ws)
    fetched = fetched_nbytes(state, ts, ws)
    missing = spilled + fetched
    freed = 0
    for dts in ts.dependencies[:DEPENDENCIES_MAX]:
        if ws in dts.who_has and is_last_use(dts):
            freed += data_nbytes(state, dts)
    if freed and freed >= memory.result_nbytes + missing:
        loads_little = not missing or missing + ws.network_occ <= LOADED_MAX * ws.memory_limit
        if loads_little and _may_run_beside(state, ts, ws):
            return True
    if not memory.is_known and _unknown_count(ws) >= ws.nthreads:
        return False
    if is_too_small(state, ts, ws):
        return False
    most = usable_nbytes(state, ws)
    needs = max(memory.result_nbytes, min(memory.peak_nbytes, PEAK_MAX * most)) + float(spilled)
    needs = min(most, needs) + float(fetched)
    spillable = _spillable_nbytes(state, ws) if may_spill else 0.0
    return needs <= SMALL * allowed or needs <= free_nbytes(state, ws) + spillable


def _may_run_beside(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ws` can hold the inputs and results of its tasks and of `ts`, or has none."""
    if len(ws.processing) == len(ws.long_running):
        return True
    inputs = inputs_in_use(ws) | dict.fromkeys(ts.dependencies[:DEPENDENCIES_MAX])
    used = sum([data_nbytes(state, dts) for dts in inputs])
    made = expected_nbytes(ws) + task_memory(ts.group).task_nbytes
    return used + made <= usable_nbytes(state, ws)


def _spillable_nbytes(state: SchedulerState, ws: WorkerState) -> float:
    """Return the bytes that `ws` is expected to spill if that is necessary."""
    most = SPILLING_MAX * ws.memory_limit - allowed_nbytes(state, ws)
    return max(0.0, min(float(unused_nbytes(state, ws)), most))


def may_spill(state: SchedulerState, ws: WorkerState) -> bool:
    """Return whether `ws` may have spilled results since its last heartbeat, or be about to."""
    return ws.nbytes > ws.heartbeat_nbytes and state.now - ws.last_seen < REPORT_SECONDS


def missing_nbytes(state: SchedulerState, ts: TaskState, ws: WorkerState) -> int:
    """Return the bytes of the dependencies of `ts` that `ws` would have to load in addition."""
    return spilled_inputs_nbytes(state, ts, ws) + fetched_nbytes(state, ts, ws)


def fetched_nbytes(state: SchedulerState, ts: TaskState, ws: WorkerState) -> int:
    """Return the bytes of the dependencies of `ts` that `ws` would have to fetch in addition."""
    total = 0
    for dts in ts.dependencies[:DEPENDENCIES_MAX]:
        if ws not in dts.who_has and dts not in ws.needs_what:
            total += data_nbytes(state, dts)
    return total


def spilled_inputs_nbytes(state: SchedulerState, ts: TaskState, ws: WorkerState) -> int:
    """Return the bytes of the dependencies of `ts` that `ws` is expected to have spilled.

    Results that no running task takes are spilled first.
    """
    if not ws.spilled_nbytes:
        return 0
    in_use = inputs_in_use(ws)
    total = 0
    for dts in ts.dependencies[:DEPENDENCIES_MAX]:
        if ws in dts.who_has and dts not in in_use:
            total += data_nbytes(state, dts)
    return max(0, total - unused_nbytes(state, ws))


def is_too_small(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ws` cannot hold the result of `ts`, and a larger worker may run `ts`."""
    most = usable_nbytes(state, ws)
    if task_memory(ts.group).result_nbytes <= most:
        return False
    if state.admission.largest_nbytes <= LARGER * most:
        return False
    valid = placement.valid_workers(state, ts)
    others = state.running if valid is None else valid
    return any(usable_nbytes(state, other) > LARGER * most for other in others)


def has_large_tasks(state: SchedulerState) -> bool:
    """Return whether tasks that have yet to end may not fit on a worker that is not watched."""
    most = state.admission.unchecked_nbytes
    for prefix in state.task_prefixes.values():
        if prefix.memory.task_nbytes > most or prefix.memory.groups_differ:
            for group in prefix.groups:
                if task_memory(group).task_nbytes > most and not group.done:
                    return True
    return False


def is_unknown_fan_out(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether nothing is known of `ts`, and more tasks than threads take its first input.

    Such tasks often read data that is much larger than their inputs, as a part of a file.
    """
    if task_memory(ts.group).is_known or not ts.dependencies:
        return False
    return ts.dependencies[0].waiters_count > state.total_nthreads


def is_last_use(dts: TaskState) -> bool:
    """Return whether the only task that waits for `dts` will free it."""
    return dts.waiters_count == 1 and not dts.who_wants


def is_freeing(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether `ts` is expected to free at least as much as it makes, on all workers."""
    freed = 0
    for dts in ts.dependencies[:DEPENDENCIES_MAX]:
        if is_last_use(dts):
            freed += data_nbytes(state, dts)
    return freed > 0 and freed >= task_memory(ts.group).result_nbytes


def may_free(state: SchedulerState, ws: WorkerState) -> bool:
    """Return whether a task that `ws` was sent is expected to free memory when it ends."""
    for ts in ws.processing:
        if ts not in ws.long_running and _frees(state, ts, ws, ws.executing.get(ts, 0.0)):
            return True
    return False


def may_end(state: SchedulerState, ws: WorkerState) -> bool:
    """Return whether tasks on `ws` may soon end, so that less memory is needed.

    Tasks that it has not begun do not end while all threads execute tasks that free nothing.
    """
    if may_spill(state, ws):
        return True
    n_tasks = len(ws.processing) - len(ws.long_running)
    n_fruitless = 0
    for ts, seconds in ws.executing.items():  # as of the last heartbeat
        if seconds > FRUITLESS_SECONDS and ts.processing_on is ws and ts not in ws.long_running:
            n_fruitless += not _frees(state, ts, ws, seconds)
    return n_fruitless < min(n_tasks, usable_threads(ws))


def _frees(state: SchedulerState, ts: TaskState, ws: WorkerState, seconds: float) -> bool:
    """Return whether `ts`, which `ws` has executed for `seconds`, may soon end and free memory.

    A task of which nothing is known may. A task may wait for tasks that wait for memory, as by a
    queue or because it submitted them.
    """
    memory = task_memory(ts.group)
    if seconds <= FRUITLESS_SECONDS and not memory.is_known:
        return True
    usual = ts.group.prefix.duration_average
    if has_subtasks(ts) or seconds > max(WAIT_SECONDS, WAIT_FACTOR * usual):
        return False
    surplus = memory.task_nbytes - int(memory.result_nbytes)
    if ts.waiters_count or surplus > LARGE * allowed_nbytes(state, ws):
        return True
    return any(map(is_last_use, ts.dependencies[:DEPENDENCIES_MAX]))


def has_subtasks(ts: TaskState) -> bool:
    """Return whether the present run of `ts` has submitted tasks, for which it may wait."""
    return ts.details is not None and ts.details.parent_run_id == ts.run_id


def _unknown_count(ws: WorkerState) -> int:
    """Return the number of tasks of `ws` of which nothing is known."""
    total = 0
    for prefix, count in chain(ws.unknown_duration_count.items(), ws.task_prefix_count.items()):
        if not prefix.memory.is_known:
            total += count
    return total


def waiting_count(state: SchedulerState) -> int:
    """Return the number of queued tasks if workers have free slots, but too little memory.

    Tasks of share groups at a cap wait for that. Reports call this between turns. It does not
    refresh ``state.loads``, because the order in which these are refreshed decides between workers,
    and a replay has no reports.
    """
    if not state.admission.is_short or not any(map(has_free_slot, state.running)):
        return 0
    shares = [queue.share for queue in state.queued.waiting]
    kept = state.whole_workers.n_kept
    return sum([share.n_queued for share in shares if not share.cap_reached(kept(share))])


# ------------------------------------------------------------------ which worker


def find_worker(state: SchedulerState, ts: TaskState, first: WorkerState) -> WorkerState | None:
    """Return `first` if `ts` fits there, else the worker with a free slot where it starts soonest.

    Return None if it fits on none of the workers considered.
    """
    if fits(state, ts, first):
        return first
    others = [ws for ws in candidates(state, ts) if ws is not first and fits(state, ts, ws)]
    return placement.soonest(state, ts, others)


def roomiest_worker(
    state: SchedulerState, ts: TaskState, first: WorkerState, accepts: Condition
) -> WorkerState | None:
    """Return the one of `first` and other workers with a free slot that has most memory left.

    Only those count that satisfy `accepts`. Return None if there is none.
    """
    best, most = None, 0.0
    for ws in chain((first,), candidates(state, ts)):
        left = free_nbytes(state, ws)
        if (best is None or left > most) and accepts(state, ts, ws):
            best, most = ws, left
    return best


def can_spill_when_idle(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ws` has no task, and memory for `ts` if it spills what it holds."""
    return not taken_slots(ws) and can_spill(state, ts, ws)


def can_spill(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ws` has a free thread, and memory for `ts` if it spills what it holds."""
    n_tasks = len(ws.processing) - len(ws.long_running)
    return n_tasks < usable_threads(ws) and fits(state, ts, ws, True)


def is_large_enough(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ws` is not too small for `ts`."""
    return not is_too_small(state, ts, ws)


def candidates(state: SchedulerState, ts: TaskState) -> Iterable[WorkerState]:
    """Return up to WORKERS_MAX workers with a free slot that may run `ts` and have the time."""
    valid = None if ts.details is None else placement.valid_workers(state, ts)
    if valid is not None:
        found = [ws for ws in valid if has_free_slot(ws)]
    else:
        state.loads.refresh_slots()
        found = list(state.loads.idle_task_count.loads)
    n = len(found)
    if n > WORKERS_MAX:
        start = (state.transition_counter + WORKERS_MAX * int(state.now)) % n
        found = list(islice(chain(found[start:], found[:start]), WORKERS_MAX))
    if state.worker_ends.workers:
        return [ws for ws in found if worker_ends.can_finish(state, ts, ws)]
    return found
