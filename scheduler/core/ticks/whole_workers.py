"""Retry tasks alone on a worker, after their worker ran out of memory.

Such a task is in state no-worker until a worker is empty. With each tick, workers are reserved for
these tasks: an empty one, or else one that is sent nothing until it is empty. Tasks that it has not
begun are recalled. The reservation ends with the task. A share group with a cap keeps a place for
it.

Heartbeats are too rare to show all memory that a worker used before it died. Nannies report which
workers they restart because of their memory, but the report may follow the loss.
"""

from __future__ import annotations

from math import inf
from typing import Any

from paceline.scheduler.core.lifecycle.availability import availability_changed
from paceline.scheduler.core.lifecycle.recommendations import priority_of
from paceline.scheduler.core.lifecycle.removal import learn_peaks
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run, transition
from paceline.scheduler.core.policy import admission, fairness, placement
from paceline.scheduler.core.policy.worker_ends import can_finish
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.estimates import inputs_nbytes, occupancy
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import ACTIVE_STATES
from paceline.scheduler.core.state.workers.loads import taken_slots
from paceline.scheduler.core.stealing.recall import recall_tasks
from paceline.scheduler.core.turn import Turn

#: A task is light if it has been executing for longer than this, in seconds, while its worker uses
#: less than this share of its memory limit.
LIGHT_SECONDS, LIGHT_SHARE = 10.0, 0.5
#: Topic of the events of nannies that restart a worker because of its memory.
MEMORY_TOPIC = "worker-restart-memory"


def check_whole_workers(turn: Turn) -> None:
    """Reserve workers for tasks that wait for a whole one, and end reservations."""
    whole = turn.state.whole_workers
    if not whole:
        return
    whole.forget_old(turn.now)
    for ws, ts in list(whole.reserved.items()):
        if not _is_kept(turn.state, ws, ts):
            _release(turn, ws)
    kept = bool(whole.first)
    whole.first.clear()
    if whole.due:
        _reserve(turn)
        _send(turn)
    if kept:
        fill_slots(turn)


# ------------------------------------------------------------------ reservations


def _is_kept(state: SchedulerState, ws: WorkerState, ts: TaskState) -> bool:
    """Return whether `ws` stays reserved for `ts`."""
    if ts not in state.whole_workers.due:
        return False
    if ts.processing_on is ws:
        waits = not state.running and admission.has_subtasks(ts)
        ends = waits or ts in ws.long_running
        return not ends and not _is_light(ts, ws)
    if ts.state != "no-worker" or ws.status != "running" or ws.backpressured:
        return False
    if not can_finish(state, ts, ws) or not fairness.may_start(state, ts):
        return False
    if not placement.is_allowed(state, ts, ws):
        return False
    return is_empty(ws) or _best_worker(state, ts, only_empty=True) is None


def _is_light(ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ts` has been executing on `ws` for long without taking much memory.

    It may wait for a task that waits for a whole worker.
    """
    memory = float(ws.metrics.get("memory", 0))
    return ws.executing.get(ts, 0.0) > LIGHT_SECONDS and memory < LIGHT_SHARE * ws.memory_limit


def _release(turn: Turn, ws: WorkerState) -> None:
    """End the reservation of `ws`."""
    del turn.state.whole_workers.reserved[ws]
    ws.reserved_for = None
    availability_changed(turn, ws)


def _reserve(turn: Turn) -> None:
    """Reserve workers for the tasks that wait for one, up to half of all workers.

    Only one of them at a time is a worker that has to finish other tasks first.
    """
    state = turn.state
    whole = state.whole_workers
    having = dict.fromkeys(whole.reserved.values())
    for ts in having:
        _keep_place(state, ts)
    tasks = [ts for ts in whole.due if ts.state == "no-worker" and ts not in having]
    tasks.sort(key=priority_of)
    n_max = max(1, len(state.workers) // 2)
    is_draining = any(
        not is_empty(ws) and task.state == "no-worker" for ws, task in whole.reserved.items()
    )
    for ts in tasks:
        if len(whole.reserved) >= n_max:
            return
        ws = _best_worker(state, ts, only_empty=is_draining)
        if ws is None:
            continue
        _keep_place(state, ts)
        if not fairness.may_start(state, ts):
            continue  # a worker that is reserved now would be idle
        whole.reserved[ws] = ts
        ws.reserved_for = ts
        availability_changed(turn, ws)
        if not is_empty(ws):
            is_draining = True
            not_begun = [each for each in reversed(ws.processing) if each not in ws.executing]
            recall_tasks(turn, ws, not_begun)


def _keep_place(state: SchedulerState, ts: TaskState) -> None:
    """Let the share group of `ts` keep a place for it, if the group has a cap.

    At a cap of memory, a task that cannot free memory would keep those waiting that can.
    """
    share = ts.account.share
    if share.is_capped and (share.cap_reached() != "memory" or fairness.may_free_memory(ts)):
        state.whole_workers.first.setdefault(share, ts)


def _best_worker(state: SchedulerState, ts: TaskState, only_empty: bool) -> WorkerState | None:
    """Return the worker to reserve for `ts`: an empty one with most free memory, if there is one.

    Otherwise, return the one that is empty soonest; None if `only_empty`, or if no worker may run
    `ts`.
    """
    valid = placement.valid_workers(state, ts)
    if valid is None:
        valid = state.running
    inputs = inputs_nbytes(state, ts) if state.config.memory_terminate else 0
    largest = _largest_limit(state, ts) if inputs else 0.0
    best: WorkerState | None = None
    best_cost: tuple[float, float] = (0.0, 0.0)
    for ws in valid:
        is_busy = not is_empty(ws)
        if (only_empty and is_busy) or not can_finish(state, ts, ws):
            continue
        if admission.is_too_small(state, ts, ws):
            continue
        if 0 < ws.memory_limit < min(inputs, largest):
            continue
        free = ws.memory_limit - float(ws.metrics.get("memory", 0))
        # a busy worker counts as empty later than any empty one
        cost = (1.0 + occupancy(state, ws) / ws.nthreads if is_busy else 0.0, -free)
        if best is None or cost < best_cost:
            best, best_cost = ws, cost
    return best


def _largest_limit(state: SchedulerState, ts: TaskState) -> float:
    """Return the largest memory limit of workers that may run `ts`, also of those that pause."""
    workers = dict.fromkeys(state.workers.values())
    allowed = placement.allowed_workers(state, ts, workers)
    limits = [ws.memory_limit or inf for ws in (workers if allowed is None else allowed)]
    return max(limits, default=0.0)


def is_empty(ws: WorkerState) -> bool:
    """Return whether `ws` runs only seceded tasks, or light ones with a free thread beside them."""
    taken = taken_slots(ws)
    return taken == 0 or (
        taken < ws.nthreads
        and not ws.extra_runs
        and all(ts in ws.long_running or _is_light(ts, ws) for ts in ws.processing)
    )


def _send(turn: Turn) -> None:
    """Send tasks to the empty workers that are reserved for them."""
    state = turn.state
    for ws, ts in list(state.whole_workers.reserved.items()):
        if ts.state != "no-worker" or not is_empty(ws) or not fairness.may_start(state, ts):
            continue
        recs: Recs = {}
        transition(turn, ts, "processing", recs, ws)
        run(turn, recs)
        if ts.processing_on is ws:
            state.whole_workers.retried[ts] = None
            state.whole_workers.sent_count += 1
            event = {"action": "whole-worker-retry", "key": ts.key, "worker": ws.address}
            turn.log_event("scheduler", event)


# ------------------------------------------------------------------ reports of nannies


def note_memory_report(turn: Turn, event: Any) -> None:
    """Take the report of a nanny that it restarts its worker because of its memory.

    If the worker was already removed, the tasks that were blamed for its loss are tried again with
    whole workers, and are not blamed.
    """
    state = turn.state
    address = event.get("worker") if isinstance(event, dict) else None
    if not isinstance(address, str) or not state.config.whole_worker_retry:
        return
    if address in state.workers:
        state.whole_workers.note_report(address, turn.now)
        return
    lost = state.whole_workers.lost.pop(address, None)
    if lost is None:
        return
    learn_peaks(lost.blamed, lost.nbytes)
    recs: Recs = {}
    for ts in lost.blamed:
        if ts.state in ACTIVE_STATES and not ts.actor and ts not in state.whole_workers.due:
            _make_due(turn, ts, recs)
    run(turn, recs)
    fill_slots(turn)


def _make_due(turn: Turn, ts: TaskState, recs: Recs) -> None:
    """Let `ts`, which was blamed for a loss and placed again since, run with a whole worker."""
    whole = turn.state.whole_workers
    whole.due[ts] = None
    if ts not in whole.retried:
        ts.suspicious -= 1
        ts.group.prefix.suspicious -= 1
    ws = ts.processing_on
    if ws is not None:
        if turn.state.workers.get(ws.address) is ws:
            recall_tasks(turn, ws, [ts])
    elif ts.state != "waiting":  # not deferred, so that the queue does not send it before
        transition(turn, ts, "waiting", recs)
