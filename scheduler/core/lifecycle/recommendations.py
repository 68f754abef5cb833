"""Decide whether a task is needed or blocked by a failure, and recommend what follows."""

from __future__ import annotations

from typing import Any, Final

from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import ClientState, TaskState
from paceline.scheduler.core.state.scheduler_state import FIRE_AND_FORGET, SchedulerState
from paceline.scheduler.core.state.task_states import ACTIVE_STATES
from paceline.scheduler.core.turn import Turn

from . import accounting

#: Dependencies that cost as much of a turn's budget as one transition, for tasks with more.
EDGES_MIN: Final = 16


# ------------------------------------------------------------------ whether a task is needed


def is_wanted(ts: TaskState) -> bool:
    """Return whether a client or an active dependent needs the result of `ts`."""
    return bool(ts.who_wants) or ts.waiters_count > 0


def waits_for_retry(ts: TaskState) -> bool:
    """Return whether `ts`, which failed, waits for its retry."""
    return ts.policies is not None and ts.policies.pending_retry is not None


def is_failure_relevant(ts: TaskState) -> bool:
    """Return whether the failure of `ts` matters: it is wanted, or other tasks failed with it."""
    return is_wanted(ts) or any(d.state == "erred" for d in ts.dependents)


def erred_dependency(ts: TaskState) -> TaskState | None:
    """Return the task to blame for a failed dependency of `ts`.

    None if no dependency failed, or if the cause is already running again, so that the dependency
    follows.
    """
    for dts in ts.dependencies:
        if dts.state == "erred":
            blame = dts.exception_blame
            if blame is not None and blame.state == "erred":
                return blame
    return None


# ------------------------------------------------------------------ recommendations for other tasks


def release_unneeded_dependencies(turn: Turn, ts: TaskState, recs: Recs) -> None:
    """Recommend releasing the dependencies of `ts` that are no longer needed.

    This replaces earlier recommendations for them.
    """
    dependencies = ts.dependencies
    if len(dependencies) > EDGES_MIN and defer_if_many(turn, dependencies):
        return
    for dts in dependencies:
        if not dts.waiters_count and not dts.who_wants and dts.state != "erred":
            recs[dts] = "released"


def release_finished_dependencies(turn: Turn, ts: TaskState, recs: Recs) -> None:
    """Decrement `waiters_count` of the dependencies of `ts`; recommend releasing unneeded ones."""
    dependencies = ts.dependencies
    if len(dependencies) > EDGES_MIN:
        for dts in dependencies:
            dts.waiters_count -= 1
        release_unneeded_dependencies(turn, ts, recs)
        return
    for dts in dependencies:
        left = dts.waiters_count = dts.waiters_count - 1
        if not left and not dts.who_wants and dts.state != "erred":
            recs[dts] = "released"


def defer_if_many(turn: Turn, tasks: tuple[TaskState, ...]) -> bool:
    """Charge `tasks`, which one task no longer needs, to the budget, or defer them.

    Return whether they exceed the budget and are deferred. ``due`` then decides about each.
    """
    fits = len(tasks) <= turn.budget
    turn.budget -= len(tasks) // EDGES_MIN
    if fits:
        return False
    turn.state.deferred.releases.extend(tasks)
    turn.wants_continue()
    return True


def recommend_ready_dependents(ts: TaskState, recs: Recs) -> None:
    """Recommend processing the dependents of `ts` that are ready, the highest priority first."""
    ready = [d for d in ts.dependents if d.state == "waiting" and not d.waiting_count]
    if len(ready) > 1:
        ready.sort(key=priority_of, reverse=True)
    for dts in ready:
        recs[dts] = "processing"


def priority_of(ts: TaskState) -> Any:
    """Return the priority of `ts`, or an empty tuple that sorts before all others."""
    return ts.priority or ()


def release_desire(ts: TaskState, cs: ClientState, recs: Recs) -> None:
    """Release the future of `ts` that `cs` holds; recommend what follows if `ts` is not needed."""
    if ts not in cs.wants_what:
        return
    accounting.remove_desire(ts, cs)
    if ts.who_wants:
        return
    if not ts.dependents:
        recs[ts] = "forgotten"
    elif ts.state != "erred" and not ts.waiters_count:
        recs[ts] = "released"


def end_fire_and_forget(state: SchedulerState, ts: TaskState, recs: Recs) -> None:
    """Release the desire of ``fire-and-forget`` for `ts`, which has finished."""
    cs = state.clients[FIRE_AND_FORGET]
    if ts in cs.wants_what:
        release_desire(ts, cs, recs)


# ------------------------------------------------------------------ deferred recommendations


def due(state: SchedulerState, ts: TaskState, finish: str) -> str | None:
    """Return the state to go to for `ts`, whose recommendation was deferred, or None for nothing.

    A later recommendation may have replaced an earlier one in the queue. `finish` is therefore
    only a hint, and the current state of `ts` decides.
    """
    if state.tasks.get(ts.key) is not ts:
        return None
    now = ts.state
    if not ts.who_wants and not ts.dependents:
        return "forgotten"
    if now in ACTIVE_STATES:
        return _due_while_active(state, ts, finish)
    if now == "memory":
        if ts.who_has:
            return None if is_wanted(ts) else "released"
        return "erred" if ts.actor else "released"
    if now == "erred":
        blame = ts.exception_blame
        retried = finish == "waiting" or blame is None or blame.state != "erred"
        if not retried:
            return None
        return "waiting" if is_failure_relevant(ts) else "released"
    if ts.has_lost_dependencies:
        return "forgotten"
    if finish == "erred" and erred_dependency(ts) is not None:
        return "erred"
    return "waiting" if is_wanted(ts) and ts.run_spec is not None else None


def _due_while_active(state: SchedulerState, ts: TaskState, finish: str) -> str | None:
    if ts.has_lost_dependencies:
        return "forgotten"
    if not is_wanted(ts):
        return "released"
    if erred_dependency(ts) is not None:
        return "erred"
    now = ts.state
    if now == "waiting":
        return None if ts.waiting_count else "processing"
    if not all(dts.who_has for dts in ts.dependencies):
        return "waiting"
    if now == "queued" and ts in state.whole_workers.due:
        return "waiting"  # it waits for a whole worker outside of the queue
    if now == "processing":
        ws = ts.processing_on
        gone = ws is None or state.workers.get(ws.address) is not ws
        return "released" if gone else None
    return "processing" if finish == "processing" else None
