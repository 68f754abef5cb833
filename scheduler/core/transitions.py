"""The lifecycle of a task, and the only code that assigns a task's state.

    released ──► waiting ──► processing ──► memory ──► released ──► forgotten
                   │  ▲          │                        ▲
                   │  │          ├──► erred ──────────────┤
                   ▼  │          └──► released            │
        queued / no-worker ──────────────────────────────-┘

- *released*: known, and nothing is being done about it. Where every task begins; what is wanted again
  leaves at once for waiting.
- *waiting*: wanted, and some dependency has no data yet (``waiting_count`` of them).
- *queued*: could run, is root-ish, and every worker has enough of those.
- *no-worker*: could run, and no running worker may run it.
- *processing*: sent to a worker.
- *memory*: its data lies on workers (``who_has``).
- *erred*: it, or what it depends on, failed (``exception_blame``).
- *forgotten*: gone from ``state.tasks``.

A stimulus *recommends* ({task: state to go to}); ``run`` takes recommendations last in, first out, until none
is left, and a transition may recommend more. A pair that TRANSITIONS does not hold goes through released.
A transition writes to ``recs`` and to the turn, and never looks at a clock.

No turn makes more than ``config.turn_tasks_max`` transitions. What is left goes to ``state.backlog`` and comes
back with ``Continue`` (``later.py``).

Must not know: message formats beyond those it sends; how placement decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from paceline.protocol.messages import (
    CancelledKeys,
    KeyInMemory,
    LostData,
    TaskFinished,
    TaskRetried,
)

from . import mirrors, placement
from .failures import Failure as Failure
from .failures import (
    clear_failure,
    huge_inputs_failure,
    inherited_failure,
    record_failure,
    report_erred,
)
from .groups import TASK_STATES, TaskGroup
from .needs import (
    EDGES_MIN,
    are_for_later,
    end_fire_and_forget,
    erred_dependency,
    is_wanted,
    let_go_of_dependencies,
    needs_no_more,
    recommend_ready_dependents,
)
from .needs import Recommendations as Recommendations
from .outgoing import compute_message
from .small_set import without_item
from .state import ACTIVE_STATES, SchedulerState, TaskState, WorkerState
from .turn import Turn

# ------------------------------------------------------------------ the one place where states change


def _count(group: TaskGroup, start: str, finish: str) -> None:
    """A task of the group went from one state to another: the counts that mirror states."""
    counts = group.states
    counts[start] -= 1
    counts[finish] += 1
    group.prefix.state_counts[finish] += 1


def _enter(ts: TaskState, state: str) -> None:
    """Assign a task's state, where it may need its dependencies more or less than before."""
    before = ts.state
    ts.state = state
    if before in ACTIVE_STATES:
        if state not in ACTIVE_STATES:
            for dts in ts.dependencies:
                dts.waiters_count -= 1
            ts.waiting_count = 0
        elif before == "waiting":
            ts.waiting_count = 0
    elif state in ACTIVE_STATES:
        for dts in ts.dependencies:
            dts.waiters_count += 1


# ------------------------------------------------------------------ running recommendations


def run(turn: Turn, recs: Recommendations) -> None:
    """Carry out recommendations until none is left, or the turn is long enough.

    Where one fails, which is a bug of ours, the others are carried out in the next turn.
    """
    try:
        while recs and turn.budget > 0:
            ts, finish = recs.popitem()
            if finish == "waiting" and ts.state == "released" and not is_wanted(ts):
                continue  # recommended before that was known
            transition(turn, ts, finish, recs)
            turn.budget -= 1
    finally:
        if recs:
            # the order of a turn (last in, first out) becomes first in, first out
            turn.state.backlog.update(reversed(recs.items()))
            recs.clear()
            turn.wants_continue()


#: Where a task goes on from released at once: nobody in between takes its dependencies for unneeded, or waits for lost data.
_AT_ONCE = frozenset(("waiting", "forgotten"))


def transition(
    turn: Turn, ts: TaskState, finish: str, recs: Recommendations, detail: Any = None
) -> None:
    """Take one task to ``finish``, through released where no direct way leads.

    Args:
        detail: what the transition needs to know of its cause: a TaskFinished or a Failure.
    """
    start = ts.state
    function = _BY_START[start].get(finish)
    if function is None:
        if start != finish and start != "forgotten":
            _transition_through_released(turn, ts, finish, recs)
        return
    state = turn.state
    state.transition_counter += 1
    made: Recommendations = {}
    plugins = state.plugins
    edges = None
    if plugins is not None and finish == "forgotten":
        edges = ts.dependencies, ts.dependents
    function(turn, ts, made, detail)
    actual = ts.state
    group = ts.group
    counts = group.states
    if actual != start:  # _count, without a call
        counts[start] -= 1
        counts[actual] += 1
        group.prefix.state_counts[actual] += 1
    stimulus_id = turn.stimulus_id
    if plugins is not None:
        plugins.transition(ts, start, actual, stimulus_id, detail, edges)
    state.transition_log.append((ts.key, start, actual, made, stimulus_id, turn.now))
    if actual == "forgotten" and counts["forgotten"] == group.n_added:
        mirrors.forget_group(state, group)
    if not made:
        return
    if actual == "released" and made.get(ts) in _AT_ONCE:
        at_once = made.pop(ts)
        recs.update(made)
        transition(turn, ts, at_once, recs)
    else:
        recs.update(made)


def _transition_through_released(
    turn: Turn, ts: TaskState, finish: str, recs: Recommendations
) -> None:
    start = ts.state
    if "released" in (start, finish):
        raise AssertionError(
            f"impossible transition from {start} to {finish} for {ts.key!r}: {turn.stimulus_id}"
        )
    recs.pop(ts, None)
    transition(turn, ts, "released", recs)
    if ts.state != "released":
        return  # it went on by itself
    following = recs.pop(ts, finish)
    if following == "waiting":
        if ts.run_spec is None:
            following = "forgotten"
        elif start in ACTIVE_STATES and not is_wanted(ts):
            # it was to begin again, and meanwhile nobody needs it
            if ts.dependents:
                return
            following = "forgotten"
        elif start == "erred":
            for dts in ts.dependencies:
                if recs.get(dts) == "released":
                    del recs[dts]  # it needs them again
    transition(turn, ts, following, recs)


# ------------------------------------------------------------------ released -> ...


def transition_released_waiting(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """It is wanted: its dependencies are now."""
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
                recs.clear()  # nothing is made for it
                transition_released_erred(turn, ts, recs, None)
                return
    ts.state = "waiting"
    for dts in ts.dependencies:
        dts.waiters_count += 1
    ts.waiting_count = missing
    if not missing:
        recs[ts] = "processing"


def transition_released_erred(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Failure | None
) -> None:
    """What it depends on failed."""
    blame = detail.cause if detail is not None else erred_dependency(ts)
    if blame is None:
        return  # it is tried again
    for dts in ts.dependents:
        if not dts.who_has and dts.state != "erred":
            recs[dts] = "erred"
    _enter(ts, "erred")
    ts.ensure_details().exception_blame = blame
    let_go_of_dependencies(turn, ts, recs)
    report_erred(turn, ts, blame)
    end_fire_and_forget(turn.state, ts, recs)


def transition_released_forgotten(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """Nobody needs it, or it can never run again."""
    _forget(turn, ts, recs)


# ------------------------------------------------------------------ waiting, queued, no-worker -> ...


def transition_waiting_processing(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """It can run: to a worker, or into the queue, or to no-worker."""
    if ts.waiting_count:
        return
    state = turn.state
    ws: WorkerState | None
    if placement.is_rootish(state, ts):
        if ts.queueable and not math.isinf(state.config.worker_saturation):
            ws = placement.place_rootish_queued(state)
            if ws is None:
                _enter(ts, "queued")
                state.queued.add(ts)
                return
        else:
            ws = placement.place_rootish_together(state, ts)
    else:
        ws = placement.place_non_rootish(state, ts)
    if ws is None:
        _enter(ts, "no-worker")
        state.unrunnable[ts] = turn.now
        return
    _dispatch(turn, ts, ws, recs)


def transition_waiting_released(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """It is not wanted any more, or it is to begin again."""
    _release_active(turn, ts, recs)


def transition_queued_processing(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """A worker has a slot for it; if none has, it stays queued."""
    ws = placement.place_rootish_queued(turn.state)
    if ws is not None and (not ts.dependencies or all(d.who_has for d in ts.dependencies)):
        turn.state.queued.discard(ts)
        _dispatch(turn, ts, ws, recs)


def transition_queued_released(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """It is not wanted any more, or it is to begin again."""
    turn.state.queued.discard(ts)
    _release_active(turn, ts, recs)


def transition_queued_erred(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Failure | None
) -> None:
    """It waited too long for a worker, or what it depends on failed."""
    _err(turn, ts, recs, detail or inherited_failure(ts))


def transition_no_worker_processing(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """A worker that may run it is there; if none is, it stays."""
    ws = placement.place_non_rootish(turn.state, ts)
    if ws is not None and all(d.who_has for d in ts.dependencies):
        turn.state.unrunnable.pop(ts, None)
        _dispatch(turn, ts, ws, recs)


def transition_no_worker_released(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """It is not wanted any more, or it is to begin again."""
    turn.state.unrunnable.pop(ts, None)
    _release_active(turn, ts, recs)


def transition_no_worker_erred(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Failure | None
) -> None:
    """It waited too long for a worker, or what it depends on failed."""
    _err(turn, ts, recs, detail or inherited_failure(ts))


def transition_waiting_erred(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Failure | None
) -> None:
    """What it depends on failed."""
    _err(turn, ts, recs, detail or inherited_failure(ts))


# ------------------------------------------------------------------ processing -> ...


def transition_processing_memory(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: TaskFinished
) -> None:
    """Its worker has finished it."""
    state = turn.state
    ws = ts.processing_on
    assert ws is not None
    group = ts.group
    mirrors.stop_processing(state, ts)
    for startstop in detail.startstops:
        mirrors.add_duration(state, group, startstop.action, startstop.start, startstop.stop)
    if detail.nbytes is not None:
        mirrors.set_nbytes(state, ts, detail.nbytes)
    state.restless[ws] = None
    mirrors.add_replica(state, ts, ws)
    if ts.dependents:
        recommend_ready_dependents(ts, recs)
    ts.state = "memory"
    ts.waiting_count = 0
    needs_no_more(turn, ts, recs)
    typename = detail.typename or ""
    ts.type = typename
    types = group.type_counts
    types[typename] = types.get(typename, 0) + 1
    if ts.who_wants:
        report = KeyInMemory(key=ts.key, type=detail.type)
        for cs in ts.who_wants:
            turn.to_client(cs.client_key, report)
        end_fire_and_forget(state, ts, recs)
    elif not ts.waiters_count:
        recs[ts] = "released"


def transition_processing_released(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """It is not wanted any more, or its worker is gone, or it is to begin again."""
    ws = _leave_worker(turn.state, ts)
    if ws is not None:
        turn.free_keys(ws.address, ts.key)
    _release_active(turn, ts, recs)


def transition_processing_erred(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Failure | None
) -> None:
    """It failed on its worker, or killed too many, or what it depends on failed."""
    failure = detail or inherited_failure(ts)
    if failure is None:
        return
    ws = _leave_worker(turn.state, ts)
    if ws is not None and failure.worker != ws.address:
        turn.free_keys(ws.address, ts.key)
    _err(turn, ts, recs, failure)


# ------------------------------------------------------------------ memory -> ...


def transition_memory_released(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """Nobody needs its data, or the last copy is lost."""
    if ts.actor and ts.who_wants:
        recs[ts] = "erred"
        return
    if ts.waiters_count:
        _recall_dependents(turn, ts, recs)
    _free_replicas(turn, ts)
    ts.state = "released"
    if ts.who_wants:
        lost = LostData(key=ts.key)
        for cs in ts.who_wants:
            turn.to_client(cs.client_key, lost)
    if ts.run_spec is None or ts.has_lost_dependencies:
        recs[ts] = "forgotten"
    elif is_wanted(ts):
        recs[ts] = "waiting" if erred_dependency(ts) is None else "erred"
    if ts.waiters_count:
        for dts in ts.dependents:
            if dts.state in ("no-worker", "queued"):
                recs[dts] = "waiting"


def transition_memory_erred(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Failure | None
) -> None:
    """The worker on which an actor lived is lost."""
    _free_replicas(turn, ts)
    failure = Failure(
        cause=ts,
        exception=turn.state.errors.actor_lost(),
        exception_text="RuntimeError('Worker holding Actor was lost')",
    )
    _err(turn, ts, recs, failure)


def transition_memory_forgotten(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """Nobody needs it, or it is data that cannot be made again and is lost."""
    _forget(turn, ts, recs)


# ------------------------------------------------------------------ erred -> ...


def transition_erred_released(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """It is tried again, or nobody wants it any more."""
    clear_failure(turn, ts, recs)
    if ts.who_wants:
        retried = TaskRetried(key=ts.key)
        for cs in ts.who_wants:
            turn.to_client(cs.client_key, retried)
    _enter(ts, "released")
    let_go_of_dependencies(turn, ts, recs)  # they may have been tried again for it alone


# ------------------------------------------------------------------ data that was not computed


def become_data(
    turn: Turn, ts: TaskState, nbytes: int, workers: Iterable[WorkerState], recs: Recommendations
) -> None:
    """Data was put on workers from outside (scatter, update_data): the task is in memory without having run.

    Where it runs, waits or has failed, the data that is there serves instead.

    Args:
        nbytes: size of the data; -1 where unknown.
    """
    state = turn.state
    start = ts.state
    if start == "processing":
        ws = _leave_worker(state, ts)
        if ws is not None:
            turn.free_keys(ws.address, ts.key)
    elif start == "erred":
        clear_failure(turn, ts, recs)
    state.queued.discard(ts)
    state.unrunnable.pop(ts, None)
    if nbytes >= 0:
        mirrors.set_nbytes(state, ts, nbytes)
    for ws in workers:
        mirrors.add_replica(state, ts, ws)
    if start != "memory":
        _enter(ts, "memory")
        _count(ts.group, start, "memory")
        let_go_of_dependencies(turn, ts, recs)
        state.transition_counter += 1
        state.transition_log.append((ts.key, start, "memory", {}, turn.stimulus_id, turn.now))
    recommend_ready_dependents(ts, recs)
    end_fire_and_forget(state, ts, recs)


# ------------------------------------------------------------------ what transitions share


def _dispatch(turn: Turn, ts: TaskState, ws: WorkerState, recs: Recommendations) -> None:
    """Send the task to a worker."""
    state = turn.state
    mirrors.start_processing(state, ts, ws)
    ts.waiting_count = 0
    state.restless[ws] = None
    state.n_tasks += 1
    if ts.actor:
        ws.actors[ts] = None
    message = compute_message(turn, ts)
    limit = ws.memory_limit if ts.dependencies and state.config.memory_terminate else 0
    if limit and sum(message.nbytes.values()) > limit:
        _refuse(turn, ts, ws, recs)
        return
    ts.state = "processing"
    turn.to_worker(ws.address, message)


def _refuse(turn: Turn, ts: TaskState, ws: WorkerState, recs: Recommendations) -> None:
    """The task errs on its way to a worker: the worker cannot hold its inputs."""
    start, ts.state = ts.state, "processing"
    _count(ts.group, start, "processing")
    transition(turn, ts, "erred", recs, huge_inputs_failure(turn, ts, ws))
    counts = ts.group.states  # the transition that is under way takes it from where it began
    counts["erred"] -= 1
    counts[start] += 1


def _recall_dependents(turn: Turn, ts: TaskState, recs: Recommendations) -> None:
    """The task's data is lost or to be freed: dependents that were sent to workers are taken back first.

    A stock worker that is told of the data before it is told of the dependent misses the data when it comes to
    run the dependent; and where it is fetching the data, and is asked to compute it, and only then to forget the
    dependent, it forgets the data with the dependent and never computes it.
    """
    for dts in list(ts.dependents):
        if dts.state == "processing":
            recs.pop(dts, None)
            transition(turn, dts, "waiting", recs)


def _free_replicas(turn: Turn, ts: TaskState) -> None:
    """The workers that have its data drop it."""
    for ws in ts.who_has:
        if ts.actor:
            ws.actors.pop(ts, None)
        turn.free_keys(ws.address, ts.key)
    mirrors.remove_all_replicas(turn.state, ts)


def _leave_worker(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """The task leaves its worker's work. Returns the worker, None if it is gone."""
    ws = mirrors.stop_processing(state, ts)
    if ts.actor:
        ws.actors.pop(ts, None)
    if state.workers.get(ws.address) is not ws:
        return None
    state.restless[ws] = None
    return ws


def _release_active(turn: Turn, ts: TaskState, recs: Recommendations) -> None:
    """From an active state to released; on to waiting where it is wanted."""
    _enter(ts, "released")
    if ts.has_lost_dependencies:
        recs[ts] = "forgotten"
    elif is_wanted(ts) and erred_dependency(ts) is None:
        recs[ts] = "waiting"
        return
    let_go_of_dependencies(turn, ts, recs)


def _err(turn: Turn, ts: TaskState, recs: Recommendations, failure: Failure | None) -> None:
    """To erred: dependents that wait for it follow, its dependencies may be let go.

    Nothing where ``failure`` is None: what failed above it is tried again by now.
    """
    if failure is None:
        return
    state = turn.state
    state.queued.discard(ts)
    state.unrunnable.pop(ts, None)
    waiting = [d for d in ts.dependents if d.state in ACTIVE_STATES]
    _enter(ts, "erred")
    blame = record_failure(state, ts, failure, turn.now)
    for dts in waiting:
        recs[dts] = "erred"
    let_go_of_dependencies(turn, ts, recs)
    report_erred(turn, ts, blame)
    end_fire_and_forget(state, ts, recs)


def _forget(turn: Turn, ts: TaskState, recs: Recommendations) -> None:
    """Out of the state: dependents are lost with it, dependencies may go too."""
    state = turn.state
    if ts.who_has:
        _free_replicas(turn, ts)
    dependents, ts.dependents = ts.dependents, ()
    for dts in dependents:
        dts.has_lost_dependencies = True
        mirrors.remove_dependency(state, dts, ts)
        if dts.state not in ("memory", "erred"):
            recs[dts] = "forgotten"
    _enter(ts, "forgotten")
    dependencies, ts.dependencies = ts.dependencies, ()
    later = len(dependencies) > EDGES_MIN and are_for_later(turn, dependencies)
    for dts in dependencies:
        dependents = dts.dependents
        # most have one dependent: this task
        dts.dependents = () if len(dependents) == 1 else without_item(dependents, ts)
        if not dts.dependents and not dts.who_wants and not later:
            recs[dts] = "forgotten"
    if ts.who_wants:
        report = CancelledKeys(keys=[ts.key], reason="already forgotten")
        for cs in ts.who_wants:
            turn.to_client(cs.client_key, report)
            del cs.wants_what[ts]
        ts.who_wants = ()
    del state.tasks[ts.key]
    if state.task_metadata:
        state.task_metadata.pop(ts.key, None)
    ts.processing_on = None
    ts.details = None


def take_apart(ts: TaskState) -> None:
    """A task that was forgotten with all others lets go of them, so that each is freed by itself."""
    ts.state = "forgotten"
    ts.dependencies = ts.dependents = ts.who_has = ts.who_wants = ()
    ts.processing_on = ts.details = None


def fill_slots(turn: Turn) -> None:
    """Workers have slots free: queued tasks go to them, best priority first.

    To be called after the recommendations of a stimulus, so that what became ready goes before new roots.
    """
    state = turn.state
    queued = state.queued
    if not queued.members:
        return
    recs: Recommendations = {}
    for _ in range(state.config.turn_tasks_max):
        if state.restless:
            placement.follow_loads(state)
        ts = queued.peek() if state.idle_load.loads else None
        if ts is None:
            return
        transition(turn, ts, "processing", recs)
        if ts.state == "queued":  # a dependency's data is on its way out
            transition(turn, ts, "waiting", recs)
        if recs:
            run(turn, recs)
    turn.wants_continue()


#: (start, finish) -> function(turn, task, recommendations to write, detail of the cause).
TRANSITIONS: dict[tuple[str, str], Callable[[Turn, TaskState, Recommendations, Any], None]] = {
    ("released", "waiting"): transition_released_waiting,
    ("released", "erred"): transition_released_erred,
    ("released", "forgotten"): transition_released_forgotten,
    ("waiting", "processing"): transition_waiting_processing,
    ("waiting", "released"): transition_waiting_released,
    ("waiting", "erred"): transition_waiting_erred,
    ("queued", "processing"): transition_queued_processing,
    ("queued", "released"): transition_queued_released,
    ("queued", "erred"): transition_queued_erred,
    ("no-worker", "processing"): transition_no_worker_processing,
    ("no-worker", "released"): transition_no_worker_released,
    ("no-worker", "erred"): transition_no_worker_erred,
    ("processing", "memory"): transition_processing_memory,
    ("processing", "released"): transition_processing_released,
    ("processing", "erred"): transition_processing_erred,
    ("memory", "released"): transition_memory_released,
    ("memory", "erred"): transition_memory_erred,
    ("memory", "forgotten"): transition_memory_forgotten,
    ("erred", "released"): transition_erred_released,
}

#: The same by start, for the one place that looks a transition up.
_BY_START = {
    start: {f: function for (s, f), function in TRANSITIONS.items() if s == start}
    for start in TASK_STATES
}
