"""Who needs a task's data, what failed above it, and what follows for others: recommendations, nothing more.

Must not know: transitions; messages; what a turn sends.
"""

from __future__ import annotations

from typing import Any

from . import mirrors
from .state import ACTIVE_STATES, ClientState, SchedulerState, TaskState
from .turn import Turn

#: What is to become of tasks: task -> state to go to, the last one first.
Recommendations = dict[TaskState, str]

#: A task with more dependencies than this costs a turn as much as so many more transitions as it has times this many.
EDGES_MIN = 16


# ------------------------------------------------------------------ who needs it


def is_wanted(ts: TaskState) -> bool:
    """Whether a client or a dependent that is to run needs the task's data."""
    return bool(ts.who_wants) or ts.waiters_count > 0


def is_missed(ts: TaskState) -> bool:
    """Whether it matters that an erred task has failed: somebody wants it, or others failed with it."""
    return is_wanted(ts) or any(d.state == "erred" for d in ts.dependents)


def erred_dependency(ts: TaskState) -> TaskState | None:
    """The task to blame for a failed dependency of this one.

    None where none has failed, or where what failed runs again already and the dependency is about to.
    """
    for dts in ts.dependencies:
        if dts.state == "erred":
            blame = dts.exception_blame
            if blame is not None and blame.state == "erred":
                return blame
    return None


# ------------------------------------------------------------------ what follows for others


def let_go_of_dependencies(turn: Turn, ts: TaskState, recs: Recommendations) -> None:
    """It needs them no longer; perhaps nobody does (then what was recommended for them before is void)."""
    dependencies = ts.dependencies
    if len(dependencies) > EDGES_MIN and are_for_later(turn, dependencies):
        return
    for dts in dependencies:
        if not dts.waiters_count and not dts.who_wants and dts.state != "erred":
            recs[dts] = "released"


def needs_no_more(turn: Turn, ts: TaskState, recs: Recommendations) -> None:
    """It has had its run: its dependencies have a waiter less, and those that nobody needs are let go."""
    dependencies = ts.dependencies
    if len(dependencies) > EDGES_MIN:
        for dts in dependencies:
            dts.waiters_count -= 1
        let_go_of_dependencies(turn, ts, recs)
        return
    for dts in dependencies:
        left = dts.waiters_count = dts.waiters_count - 1
        if not left and not dts.who_wants and dts.state != "erred":
            recs[dts] = "released"


def are_for_later(turn: Turn, tasks: tuple[TaskState, ...]) -> bool:
    """Whether these many tasks, which somebody needs no longer, are looked at in later turns (``due`` decides then).

    Where they are not, they count as some more of this turn's transitions.
    """
    if len(tasks) <= turn.budget:
        turn.budget -= len(tasks) // EDGES_MIN
        return False
    turn.budget -= len(tasks) // EDGES_MIN
    turn.state.let_go.add(tasks)
    turn.wants_continue()
    return True


def recommend_ready_dependents(ts: TaskState, recs: Recommendations) -> None:
    """Dependents that now have all their dependencies run next, the best placed of them first."""
    ready = [d for d in ts.dependents if d.state == "waiting" and not d.waiting_count]
    if len(ready) > 1:
        ready.sort(key=priority_of, reverse=True)
    for dts in ready:
        recs[dts] = "processing"


def priority_of(ts: TaskState) -> Any:
    return ts.priority or ()


def release_wish(ts: TaskState, cs: ClientState, recs: Recommendations) -> None:
    """A client gives up its future: what nobody needs any more is let go."""
    if ts not in cs.wants_what:
        return
    mirrors.remove_wish(ts, cs)
    if ts.who_wants:
        return
    if not ts.dependents:
        recs[ts] = "forgotten"
    elif ts.state != "erred" and not ts.waiters_count:
        recs[ts] = "released"


def end_fire_and_forget(state: SchedulerState, ts: TaskState, recs: Recommendations) -> None:
    """A task that nobody waits for has had its run."""
    cs = state.clients["fire-and-forget"]
    if ts in cs.wants_what:
        release_wish(ts, cs, recs)


# ------------------------------------------------------------------ what was put off


def due(state: SchedulerState, ts: TaskState, finish: str) -> str | None:
    """What follows for a task whose recommendation was put off, as things are now; None for nothing.

    A later recommendation may have taken the place of an earlier one in the backlog, so ``finish`` is a
    hint at most: the task is looked at anew.
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
        return "waiting" if is_missed(ts) else "released"
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
    if now == "processing":
        ws = ts.processing_on
        gone = ws is None or state.workers.get(ws.address) is not ws
        return "released" if gone else None
    return "processing" if finish == "processing" else None
