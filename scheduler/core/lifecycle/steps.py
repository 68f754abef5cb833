"""Steps that several transitions share; with ``transitions.py`` they assign task states."""

from __future__ import annotations

from typing import Any

from paceline.protocol.messages import CancelledKeys
from paceline.scheduler.core.policy import admission, fairness, placement
from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.containers import without_item
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import TaskGroup, TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import ACTIVE_STATES, STATE_NUMBERS
from paceline.scheduler.core.turn import Turn

from . import accounting, charges
from .extra_runs import add_extra_run
from .failures import Failure, inherited_failure, record_failure, report_erred
from .recommendations import (
    EDGES_MIN,
    defer_if_many,
    end_fire_and_forget,
    erred_dependency,
    is_wanted,
    release_unneeded_dependencies,
)
from .second_runs import drop_second_run


def enter(ts: TaskState, state: str) -> None:
    """Assign `state` to `ts`, and update `waiters_count` of its dependencies."""
    before = ts.state
    ts.state = state
    if before in ACTIVE_STATES:
        if state not in ACTIVE_STATES:
            for dts in ts.dependencies:
                dts.waiters_count -= 1
            ts.waiting_count = 0
            if ts.details is not None and ts.details.policies is not None:
                ts.details.policies.pending_retry = None
    elif state in ACTIVE_STATES:
        for dts in ts.dependencies:
            dts.waiters_count += 1


def hold(turn: Turn, ts: TaskState) -> None:
    """Queue the ready task `ts` until it is its turn at its place, or make it unrunnable.

    If its client left, it waits for the turn of another client that needs it.
    """
    state = turn.state
    charges.replace_account(state, ts)
    if fairness.can_run(state, ts) or placement.is_rootish(state, ts):
        place = fairness.place_of(state, ts)
        enter(ts, "queued")
        state.queued.hold(ts, place)
        share = ts.account.share
        if state.admission.is_short or state.shares.holds(share):
            share.is_draining = True
    else:
        set_unrunnable(turn, ts)


def set_unrunnable(turn: Turn, ts: TaskState) -> None:
    """Move the ready task `ts`, which no running worker may run, to no-worker."""
    enter(ts, "no-worker")
    turn.state.unrunnable[ts] = turn.now


def count_move(group: TaskGroup, start: str, finish: str) -> None:
    """Count the move of a task of `group` from state `start` to `finish`."""
    counts, entered = group.counts, group.prefix.entered
    before, after = STATE_NUMBERS[start], STATE_NUMBERS[finish]
    counts[before] -= 1
    counts[after] += 1
    entered[after] += 1


def inputs_exceed(state: SchedulerState, ts: TaskState, limit: int) -> bool:
    """Return whether the inputs of `ts` are larger than `limit` bytes."""
    total = 0
    for dts in ts.dependencies:
        nbytes = dts.nbytes
        if nbytes < 0:  # unknown
            return estimates.inputs_nbytes(state, ts) > limit
        total += nbytes
    return total > limit


def free_replicas(turn: Turn, ts: TaskState) -> None:
    """Ask the workers that hold the data of `ts` to free it."""
    for ws in ts.who_has:
        if ts.actor:
            ws.actors.pop(ts, None)
        turn.free_keys(ws.address, ts.key)
    accounting.remove_all_replicas(turn.state, ts)


def leave_worker(turn: Turn, ts: TaskState) -> WorkerState | None:
    """Remove `ts` from the work of its worker. Return the worker, or None if it was removed."""
    state = turn.state
    if state.task_policies.second_runs:
        drop_second_run(turn, ts)
    if ts.processing_on is not None:
        charges.charge_ended(state, ts, ts.processing_on)
    ws = accounting.stop_processing(state, ts)
    if ts.actor:
        ws.actors.pop(ts, None)
    if state.workers.get(ws.address) is not ws:
        return None
    state.loads.touch(ws)
    return ws


def give_up_run(turn: Turn, ts: TaskState) -> None:
    """Remove `ts` from the work of its worker, and ask that to forget its run, which may go on.

    If its share group has a cap, a run that has started counts until a heartbeat does not report
    it. Others count if a heartbeat reports that they go on.
    """
    before = ts.processing_on
    has_seceded = before is not None and ts in before.long_running
    has_started = before is not None and ts in before.executing
    ws = leave_worker(turn, ts)
    if ws is None:
        return
    turn.free_keys(ws.address, ts.key)
    if has_seceded or admission.has_subtasks(ts):
        return
    if has_started and ts.account.share.is_capped:
        add_extra_run(turn.state, ws, ts.key, ts.account)
    else:
        ws.released_runs[ts.key] = ts.account


def release_active(turn: Turn, ts: TaskState, recs: Recs, detail: Any = None) -> None:
    """Move `ts` from an active state to released, and on to waiting if it is needed."""
    turn.state.queued.discard(ts)
    turn.state.unrunnable.pop(ts, None)
    enter(ts, "released")
    if ts.has_lost_dependencies:
        recs[ts] = "forgotten"
    elif is_wanted(ts) and erred_dependency(ts) is None:
        recs[ts] = "waiting"
        return
    release_unneeded_dependencies(turn, ts, recs)


def mark_erred(turn: Turn, ts: TaskState, recs: Recs, failure: Failure | None) -> None:
    """Mark `ts` as erred; recommend the same for active dependents, and release its dependencies.

    Without `failure`, inherit that of a dependency, or do nothing if its cause is being retried.
    """
    failure = failure or inherited_failure(ts)
    if failure is None:
        return
    state = turn.state
    state.queued.discard(ts)
    state.unrunnable.pop(ts, None)
    waiting = [d for d in ts.dependents if d.state in ACTIVE_STATES]
    enter(ts, "erred")
    blame = record_failure(state, ts, failure, turn.now)
    for dts in waiting:
        recs[dts] = "erred"
    release_unneeded_dependencies(turn, ts, recs)
    report_erred(turn, ts, blame)
    end_fire_and_forget(state, ts, recs)


def forget(turn: Turn, ts: TaskState, recs: Recs, detail: Any = None) -> None:
    """Remove `ts` from the state; dependents can never run again, unneeded dependencies follow."""
    state = turn.state
    if state.queued.claims:
        state.queued.claims.pop(ts, None)
    if ts.who_has:
        free_replicas(turn, ts)
    dependents, ts.dependents = ts.dependents, ()
    for dts in dependents:
        dts.has_lost_dependencies = True
        accounting.remove_dependency(state, dts, ts)
        if dts.state not in ("memory", "erred"):
            recs[dts] = "forgotten"
    enter(ts, "forgotten")
    dependencies, ts.dependencies = ts.dependencies, ()
    later = len(dependencies) > EDGES_MIN and defer_if_many(turn, dependencies)
    for dts in dependencies:
        dependents = dts.dependents
        # fast path: usually `ts` is the only dependent
        dts.dependents = () if len(dependents) == 1 else without_item(dependents, ts)
        if not dts.dependents and not dts.who_wants and not later:
            recs[dts] = "forgotten"
    if ts.who_wants:
        turn.to_clients(ts.who_wants, CancelledKeys(keys=[ts.key], reason="already forgotten"))
        for cs in ts.who_wants:
            del cs.wants_what[ts]
        ts.who_wants = ()
    del state.tasks[ts.key]
    ts.account.n_tasks -= 1
    if state.shares.n_prioritized and ts.priority is not None and ts.priority[0]:
        state.shares.n_prioritized -= 1
    if state.task_metadata:
        state.task_metadata.pop(ts.key, None)
    ts.processing_on = None


def mark_forgotten(ts: TaskState) -> None:
    """Mark `ts` as forgotten with all other tasks. Keep what hooks of plugins may read."""
    ts.state = "forgotten"
    ts.who_has = ts.who_wants = ()
    ts.processing_on = None


def clear_references(ts: TaskState) -> None:
    """Clear the references of `ts`, which was forgotten with all other tasks.

    Each of them is then freed by itself.
    """
    mark_forgotten(ts)
    ts.dependencies = ts.dependents = ()
    ts.details = ts.run_spec = None
