"""The lifecycle of a task. Only this module and ``steps.py`` assign task states.

    released ──► waiting ──► processing ──► memory ──► released ──► forgotten
                   │  ▲          │                        ▲
                   │  │          ├──► erred ──────────────┤
                   ▼  │          └──► released            │
        queued / no-worker ───────────────────────────────┘

- *released*: known, but not being computed. Every task starts here; if it is needed again, it goes
  on to waiting at once.
- *waiting*: needed, and some dependencies have no data yet (``waiting_count`` of them).
- *queued*: ready and root-ish, and no worker has a free slot.
- *no-worker*: ready, and no running worker may run it.
- *processing*: sent to a worker.
- *memory*: its result is on workers (``who_has``).
- *erred*: it, or a task it depends on, failed (``exception_blame``).
- *forgotten*: no longer in ``state.tasks``.

A stimulus makes *recommendations* ({task: state to go to}). ``run`` takes them last in, first out,
until none is left, and each transition may add more. A pair of states that is not in TRANSITIONS
goes through released. Transitions write to ``recs`` and to the turn, and never read a clock.

A turn makes at most ``config.turn_tasks_max`` transitions. Remaining recommendations are deferred
and continued with ``Continue`` (``lifecycle/deferred.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from paceline.protocol.messages import KeyInMemory, LostData, TaskFinished, TaskRetried
from paceline.scheduler.core.policy import (
    admission,
    coassignment,
    fairness,
    placement,
    second_copies,
    worker_ends,
)
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import ACTIVE_STATES, STATE_NUMBERS
from paceline.scheduler.core.turn import Turn

from . import accounting, charges, steps
from .failures import Failure, clear_failure, huge_inputs_failure, inherited_failure, report_erred
from .outgoing import compute_message
from .recommendations import (
    end_fire_and_forget,
    erred_dependency,
    is_failure_relevant,
    is_wanted,
    recommend_ready_dependents,
    release_finished_dependencies,
    release_unneeded_dependencies,
    waits_for_retry,
)
from .second_runs import drop_second_run
from .task_memory import check_task_size, expect_results, learn_result

# ------------------------------------------------------------------ running recommendations


def run(turn: Turn, recs: Recs) -> None:
    """Carry out `recs` until none is left or the budget of the turn is used up; defer the rest.

    If a transition raises, which is a bug, the others are carried out in the next turn.
    """
    try:
        while recs and turn.budget > 0:
            ts, finish = recs.popitem()
            if finish == "waiting" and ts.state == "released" and not is_wanted(ts):
                continue  # no longer needed
            transition(turn, ts, finish, recs)
            turn.budget -= 1
    finally:
        if recs:
            turn.state.deferred.push(recs)
            recs.clear()
            turn.wants_continue()


#: States that follow released at once. No other transition in between may release the dependencies
#: as unneeded, or wait for lost data.
_AT_ONCE: Final = frozenset(("waiting", "forgotten"))


def transition(turn: Turn, ts: TaskState, finish: str, recs: Recs, detail: Any = None) -> None:
    """Move `ts` to state `finish`, through released if there is no direct transition.

    Recommendations that follow are added to `recs`. Some transitions need `detail`, the cause: a
    TaskFinished or a Failure.
    """
    start = ts.state
    function = TRANSITIONS.get((start, finish))
    if function is None:
        if start not in (finish, "forgotten"):
            _transition_through_released(turn, ts, finish, recs)
        return
    state = turn.state
    state.transition_counter += 1
    made: Recs = {}
    plugins = state.plugins
    edges = None
    if plugins is not None and finish == "forgotten":
        edges = ts.dependencies, ts.dependents
    function(turn, ts, made, detail)
    actual = ts.state
    group = ts.group
    if actual != start:
        steps.count_move(group, start, actual)
    stimulus_id = turn.stimulus_id
    state.transition_log.append((ts.key, start, actual, made, stimulus_id, turn.now))
    if plugins is not None:
        plugins.transition(ts, start, actual, stimulus_id, detail, edges)
    if actual == "forgotten":
        # only now, because hooks read them; not later, because the log refers to the task
        ts.details = ts.run_spec = None
        if group.empty:
            accounting.forget_group(state, group)
    if not made:
        return
    if actual == "released" and made.get(ts) in _AT_ONCE:
        at_once = made.pop(ts)
        recs.update(made)
        transition(turn, ts, at_once, recs)
    else:
        recs.update(made)


def _transition_through_released(turn: Turn, ts: TaskState, finish: str, recs: Recs) -> None:
    start = ts.state
    if "released" in (start, finish):
        raise AssertionError(
            f"impossible transition from {start} to {finish} for {ts.key!r}: {turn.stimulus_id}"
        )
    recs.pop(ts, None)
    transition(turn, ts, "released", recs)
    if ts.state != "released":
        return  # it has gone on to waiting or forgotten
    following = recs.pop(ts, finish)
    if following == "waiting":
        if ts.run_spec is None:
            following = "forgotten"
        elif start in ACTIVE_STATES and not is_wanted(ts):
            # it was to run again, and is no longer needed
            if ts.dependents:
                return
            following = "forgotten"
        elif start == "erred":
            if not is_failure_relevant(ts) and ts.dependents:
                return  # a dependency is retried, but no task needs this one
            for dts in ts.dependencies:
                if recs.get(dts) == "released":
                    del recs[dts]  # needed again
    transition(turn, ts, following, recs)


# ------------------------------------------------------------------ released -> ...


def transition_released_waiting(turn: Turn, ts: TaskState, recs: Recs, detail: Any) -> None:
    """Start the task, which is needed; its missing dependencies become needed too."""
    if ts.has_lost_dependencies or ts.run_spec is None:
        recs[ts] = "forgotten"
        return
    missing = 0
    for dts in ts.dependencies:
        if not dts.who_has:
            missing += 1
            if dts.state == "released":
                recs[dts] = "waiting"
            elif dts.state == "erred" and erred_dependency(ts) is not None:
                recs.clear()  # compute nothing for a task that cannot run
                transition_released_erred(turn, ts, recs, None)
                return
    steps.enter(ts, "waiting")
    ts.waiting_count = missing
    if not missing:
        recs[ts] = "processing"


def transition_released_erred(
    turn: Turn, ts: TaskState, recs: Recs, detail: Failure | None
) -> None:
    """Mark the task as erred because a dependency has failed."""
    blame = detail.cause if detail is not None else erred_dependency(ts)
    if blame is None:
        return  # the cause is being retried
    for dts in ts.dependents:
        if not dts.who_has and dts.state != "erred":
            recs[dts] = "erred"
    steps.enter(ts, "erred")
    ts.ensure_details().exception_blame = blame
    release_unneeded_dependencies(turn, ts, recs)
    report_erred(turn, ts, blame)
    end_fire_and_forget(turn.state, ts, recs)


# ---------------------------------------------------------------- waiting, queued, no-worker -> ...


def transition_waiting_processing(turn: Turn, ts: TaskState, recs: Recs, detail: Any) -> None:
    """Send the ready task to a worker, or move it to queued or no-worker."""
    if ts.waiting_count or (ts.details is not None and waits_for_retry(ts)):
        return
    state = turn.state
    if state.whole_workers.due and ts in state.whole_workers.due:
        steps.set_unrunnable(turn, ts)
        return
    check_task_size(state, ts.group)
    charges.replace_account(state, ts)
    shares = state.shares
    ws: WorkerState | None
    if _is_held(state, ts):
        ws = fairness.immediate_worker(state, ts)
        if ws is None:
            steps.hold(turn, ts)
            return
        state.queued.count_early(ws)
    elif placement.is_rootish(state, ts):
        if ts.queueable and not math.isinf(state.config.worker_saturation):
            ws = coassignment.place_rootish(state, ts, recs)
            if ws is None:
                steps.enter(ts, "queued")
                state.queued.add(ts)
                return
        else:
            ws = placement.place_rootish_together(state, ts)
            shares.unheld = True
    else:
        ws = placement.place_non_rootish(state, ts)
        shares.unheld = True
    if ws is None:
        steps.set_unrunnable(turn, ts)
        return
    if state.admission.is_short or admission.is_unknown_fan_out(state, ts):
        ws = admission.find_worker(state, ts, ws)
        if ws is None:
            _wait_for_memory(turn, ts)
            return
    _dispatch(turn, ts, ws, recs)


def _is_held(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether the ready task `ts` is queued until the queue chooses it."""
    share = ts.account.share
    if state.shares.holds(share) or (share.n_queued and fairness.is_outranked(state, ts)):
        return True
    return bool(state.worker_ends.workers) and worker_ends.is_limited(state, ts)


def _needs_no_slot(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether the queued task `ts` was held for a reason that no longer applies."""
    if not state.queued.is_held(ts) or state.admission.is_short or _is_held(state, ts):
        return False
    return not admission.is_unknown_fan_out(state, ts)


def _wait_for_memory(turn: Turn, ts: TaskState) -> None:
    """Queue the ready task `ts`, which fits on no worker."""
    if placement.is_rootish(turn.state, ts):
        steps.enter(ts, "queued")
        turn.state.queued.add(ts)
    else:
        steps.hold(turn, ts)


def transition_queued_processing(turn: Turn, ts: TaskState, recs: Recs, detail: Any) -> None:
    """Send the task to worker `detail`, or one with a free slot; without one it stays queued."""
    state = turn.state
    ws = detail or coassignment.claimed_worker(state, ts) or fairness.worker_for(state, ts)
    if ws is None and _needs_no_slot(state, ts):
        ws = placement.place_non_rootish(state, ts)
        state.shares.unheld = True
    if ws is not None and all(d.who_has for d in ts.dependencies):
        _dispatch(turn, ts, ws, recs)
        if state.queued.is_unclaimed(ts):
            coassignment.claim(state, ts, ws, recs)
        state.queued.sent(ts, ws)


def transition_no_worker_processing(turn: Turn, ts: TaskState, recs: Recs, detail: Any) -> None:
    """Send the task to the reserved worker `detail`, or one that may run it, or let it stay."""
    state = turn.state
    ws: WorkerState | None = detail
    if ws is None:
        if state.whole_workers.due and ts in state.whole_workers.due:
            return
        if _is_held(state, ts):
            if fairness.can_run(state, ts):
                del state.unrunnable[ts]
                steps.hold(turn, ts)
            return
        ws = placement.place_non_rootish(state, ts)
        if ws is not None and state.admission.is_short and not admission.fits(state, ts, ws):
            del state.unrunnable[ts]
            steps.hold(turn, ts)
            return
    if ws is not None and all(d.who_has for d in ts.dependencies):
        state.shares.unheld = True
        state.unrunnable.pop(ts, None)
        _dispatch(turn, ts, ws, recs)


# ------------------------------------------------------------------ processing -> ...


def transition_processing_memory(
    turn: Turn, ts: TaskState, recs: Recs, detail: TaskFinished
) -> None:
    """Record that the worker has finished the task."""
    state = turn.state
    ws = ts.processing_on
    assert ws is not None
    group = ts.group
    if state.task_policies.second_runs:
        drop_second_run(turn, ts)
    seceded = ts in ws.long_running
    ws.executing.pop(ts, None)
    accounting.stop_processing(state, ts)
    account = ts.account
    account.n_finished += 1
    for startstop in detail.startstops:
        action, start, stop = startstop.action, startstop.start, startstop.stop
        accounting.add_duration(state, group, action, start, stop)
        if action == "compute" and not seceded:
            charges.charge(state, account, stop - start)
    nbytes = detail.nbytes
    if nbytes is not None:
        accounting.set_nbytes(state, ts, nbytes)
        was_known = group.prefix.memory.is_known
        learn_result(state, group, nbytes)
        if not was_known:
            for held in state.queued.held_of(group.prefix):
                if _needs_no_slot(state, held):
                    recs[held] = "processing"
    state.loads.touch(ws)
    accounting.add_replica(state, ts, ws)
    expect_results(state, group, ws)
    if ts.dependents:
        recommend_ready_dependents(ts, recs)
    ts.state = "memory"
    if state.second_copies.is_active:
        second_copies.note_result(state, ts, turn.now)
    release_finished_dependencies(turn, ts, recs)
    typename = detail.typename or ""
    ts.type = typename
    types = group.type_counts
    types[typename] = types.get(typename, 0) + 1
    if ts.who_wants:
        turn.to_clients(ts.who_wants, KeyInMemory(key=ts.key, type=detail.type))
        end_fire_and_forget(state, ts, recs)
    elif not ts.waiters_count:
        recs[ts] = "released"


def transition_processing_released(turn: Turn, ts: TaskState, recs: Recs, detail: Any) -> None:
    """Release the task: it is not needed, its worker was removed, or it has to start again."""
    steps.give_up_run(turn, ts)
    steps.release_active(turn, ts, recs)


def transition_processing_erred(
    turn: Turn, ts: TaskState, recs: Recs, detail: Failure | None
) -> None:
    """Mark the task as erred: it failed, lost too many workers, or a dependency failed."""
    failure = detail or inherited_failure(ts)
    if failure is None:
        return
    ws = ts.processing_on
    if ws is not None and failure.worker == ws.address:
        steps.leave_worker(turn, ts)
    else:
        steps.give_up_run(turn, ts)
    steps.mark_erred(turn, ts, recs, failure)


# ------------------------------------------------------------------ memory -> ...


def transition_memory_released(turn: Turn, ts: TaskState, recs: Recs, detail: Any) -> None:
    """Release the task: its result is not needed, or the last replica was lost."""
    if ts.actor and ts.who_wants:
        recs[ts] = "erred"
        return
    if ts.waiters_count:
        _recall_dependents(turn, ts, recs)
    steps.free_replicas(turn, ts)
    ts.state = "released"
    if ts.who_wants:
        turn.to_clients(ts.who_wants, LostData(key=ts.key))
    if ts.run_spec is None or ts.has_lost_dependencies:
        recs[ts] = "forgotten"
    elif is_wanted(ts):
        recs[ts] = "waiting" if erred_dependency(ts) is None else "erred"
    if ts.waiters_count:
        for dts in ts.dependents:
            if dts.state in ("no-worker", "queued"):
                recs[dts] = "waiting"


def transition_memory_erred(turn: Turn, ts: TaskState, recs: Recs, detail: Failure | None) -> None:
    """Mark the actor as erred because its worker was lost."""
    steps.free_replicas(turn, ts)
    failure = Failure(
        cause=ts,
        exception=turn.state.errors.actor_lost(),
        exception_text="RuntimeError('Worker holding Actor was lost')",
    )
    steps.mark_erred(turn, ts, recs, failure)


# ------------------------------------------------------------------ erred -> ...


def transition_erred_released(turn: Turn, ts: TaskState, recs: Recs, detail: Any) -> None:
    """Release the task: it is retried, or no longer needed."""
    clear_failure(turn, ts, recs)
    turn.to_clients(ts.who_wants, TaskRetried(key=ts.key))
    steps.enter(ts, "released")
    release_unneeded_dependencies(turn, ts, recs)  # they may have been retried only for this task


# ------------------------------------------------------------------ shared steps


def _dispatch(turn: Turn, ts: TaskState, ws: WorkerState, recs: Recs) -> None:
    """Send `ts` to `ws`, or fail it if its inputs exceed the memory limit of `ws`."""
    state = turn.state
    accounting.start_processing(state, ts, ws)
    state.loads.touch(ws)
    state.n_tasks += 1
    if ts.actor:
        ws.actors[ts] = None
    message = compute_message(turn, ts)
    limit = ws.memory_limit if ts.dependencies and state.config.memory_terminate else 0
    if limit and steps.inputs_exceed(state, ts, limit):
        _refuse(turn, ts, ws, recs)
        return
    ts.state = "processing"
    turn.to_worker(ws.address, message)


def _refuse(turn: Turn, ts: TaskState, ws: WorkerState, recs: Recs) -> None:
    """Mark `ts` as erred on its way to `ws`, which cannot hold its inputs."""
    start, ts.state = ts.state, "processing"
    steps.count_move(ts.group, start, "processing")
    transition(turn, ts, "erred", recs, huge_inputs_failure(turn, ts, ws))
    erred = STATE_NUMBERS["erred"]  # the transition under way counts the move from its start
    ts.group.counts[erred] -= 1
    ts.group.counts[STATE_NUMBERS[start]] += 1
    ts.group.prefix.entered[erred] -= 1


def _recall_dependents(turn: Turn, ts: TaskState, recs: Recs) -> None:
    """Take back dependents of `ts` that are processing, before its data is lost or freed.

    A stock worker that receives the request to free the data first misses the data when it runs
    the dependent. If it is fetching the data, receives a request to compute it, and only then one
    to free the dependent, it forgets the data with the dependent and never computes it.
    """
    for dts in list(ts.dependents):
        if dts.state == "processing":
            recs.pop(dts, None)
            transition(turn, dts, "waiting", recs)


#: (start, finish) -> function(turn, task, recommendations to add to, detail of the cause).
TRANSITIONS: Final[dict[tuple[str, str], Callable[[Turn, TaskState, Recs, Any], None]]] = {
    ("released", "waiting"): transition_released_waiting,
    ("released", "erred"): transition_released_erred,
    ("released", "forgotten"): steps.forget,
    ("waiting", "processing"): transition_waiting_processing,
    ("waiting", "released"): steps.release_active,
    ("waiting", "erred"): steps.mark_erred,
    ("queued", "processing"): transition_queued_processing,
    ("queued", "released"): steps.release_active,
    ("queued", "erred"): steps.mark_erred,
    ("no-worker", "processing"): transition_no_worker_processing,
    ("no-worker", "released"): steps.release_active,
    ("no-worker", "erred"): steps.mark_erred,
    ("processing", "memory"): transition_processing_memory,
    ("processing", "released"): transition_processing_released,
    ("processing", "erred"): transition_processing_erred,
    ("memory", "released"): transition_memory_released,
    ("memory", "erred"): transition_memory_erred,
    ("memory", "forgotten"): steps.forget,
    ("erred", "released"): transition_erred_released,
}
