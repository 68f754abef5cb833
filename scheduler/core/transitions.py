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
back with ``Continue``. Other stimuli have their turn between, so an entry of the backlog is a reminder, not an
order: ``due`` decides anew when its time comes.

Must not know: message formats beyond those it sends; how placement decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from paceline.protocol.keys import Key
from paceline.protocol.messages import (
    CancelledKeys,
    ComputeTask,
    KeyInMemory,
    LostData,
    Message,
    TaskErredReport,
    TaskFinished,
    TaskRetried,
)
from paceline.protocol.payload import Payload

from . import mirrors, placement
from .small_set import without_item
from .state import ACTIVE_STATES, TASK_STATES, ErredTask, SchedulerState, TaskState, WorkerState
from .turn import Turn

Recommendations = dict[TaskState, str]


@dataclass(slots=True)
class Failure:
    """Why a task goes to erred.

    Attributes:
        cause: the task that failed.
        worker: address of the worker on which it did, if any.
        exception, traceback: closed; None where ``cause`` holds them.
        exception_text, traceback_text: in words.
    """

    cause: TaskState
    worker: str | None = None
    exception: Payload | None = None
    traceback: Payload | None = None
    exception_text: str | None = None
    traceback_text: str | None = None


# ------------------------------------------------------------------ the one place where states change


def _enter(ts: TaskState, state: str) -> None:
    """Assign a task's state, and the counts that mirror it."""
    before = ts.state
    group = ts.group
    counts = group.states
    counts[before] -= 1
    counts[state] += 1
    group.prefix.state_counts[state] += 1
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
    ts.state = state


def is_wanted(ts: TaskState) -> bool:
    """Whether a client or a dependent that is to run needs the task's data."""
    return bool(ts.who_wants) or ts.waiters_count > 0


def is_missed(ts: TaskState) -> bool:
    """Whether it matters that an erred task has failed: somebody wants it, or others failed with it."""
    return is_wanted(ts) or any(d.state == "erred" for d in ts.dependents)


# ------------------------------------------------------------------ running recommendations


def run(turn: Turn, recs: Recommendations) -> None:
    """Carry out recommendations until none is left, or the turn is long enough."""
    while recs:
        if turn.budget <= 0:
            _put_off(turn, recs)
            return
        ts, finish = recs.popitem()
        transition(turn, ts, finish, recs)
        turn.budget -= 1


def _put_off(turn: Turn, recs: Recommendations) -> None:
    """The rest waits for ``Continue``; the order of a turn (last in, first out) becomes first in, first out."""
    backlog = turn.state.backlog
    while recs:
        ts, finish = recs.popitem()
        backlog[ts] = finish
    turn.wants_continue()


def run_backlog(turn: Turn) -> None:
    """Go on with what earlier turns put off."""
    backlog = turn.state.backlog
    recs: Recommendations = {}
    for ts, finish in list(islice(backlog.items(), turn.budget)):
        if turn.budget <= 0:
            break
        del backlog[ts]
        what = due(turn.state, ts, finish)
        if what is not None:
            recs[ts] = what
            run(turn, recs)
    if backlog:
        turn.wants_continue()


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


def transition(
    turn: Turn, ts: TaskState, finish: str, recs: Recommendations, detail: Any = None
) -> None:
    """Take one task to ``finish``, through released where no direct way leads.

    Args:
        detail: what the transition needs to know of its cause: a TaskFinished or a Failure.
    """
    state = turn.state
    start = ts.state
    if start == finish or start == "forgotten":
        return
    function = TRANSITIONS.get((start, finish))
    if function is None:
        _transition_through_released(turn, ts, finish, recs)
        return
    state.transition_counter += 1
    made: Recommendations = {}
    plugins = state.plugins
    if plugins is None:
        function(turn, ts, made, detail)
        actual = ts.state
    else:
        edges = (ts.dependencies, ts.dependents)
        function(turn, ts, made, detail)
        actual = ts.state
        plugins.transition(ts, start, actual, turn.stimulus_id, detail, edges)
    state.transition_log.append((ts.key, start, actual, made, turn.stimulus_id, turn.now))
    if actual == "forgotten":
        _forget_group(state, ts)
    if not made:
        return
    # at once, so that nobody in between takes its dependencies for unneeded, or waits for lost data
    at_once = made.get(ts) if actual == "released" else None
    if at_once in ("waiting", "forgotten"):
        del made[ts]
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


def _forget_group(state: SchedulerState, ts: TaskState) -> None:
    group = ts.group
    if group.empty and state.task_groups.get(group.name) is group:
        del state.task_groups[group.name]
        prefix = group.prefix
        prefix.groups.pop(group, None)
        prefix.nbytes_total -= group.nbytes_total
        for name, count in group.types.items():
            left = prefix.types.get(name, 0) - count
            if left > 0:
                prefix.types[name] = left
            else:
                prefix.types.pop(name, None)


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
    _enter(ts, "waiting")
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
    _let_go_of_dependencies(ts, recs)
    _report_erred(turn, ts, blame)
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
    if ws is not None and all(d.who_has for d in ts.dependencies):
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
    failure = detail or _inherited(ts)
    if failure is not None:
        turn.state.queued.discard(ts)
        _err(turn, ts, recs, failure)


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
    failure = detail or _inherited(ts)
    if failure is not None:
        turn.state.unrunnable.pop(ts, None)
        _err(turn, ts, recs, failure)


def transition_waiting_erred(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Failure | None
) -> None:
    """What it depends on failed."""
    failure = detail or _inherited(ts)
    if failure is not None:
        _err(turn, ts, recs, failure)


# ------------------------------------------------------------------ processing -> ...


def transition_processing_memory(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: TaskFinished
) -> None:
    """Its worker has finished it."""
    state = turn.state
    ws = ts.processing_on
    assert ws is not None
    group = ts.group
    for startstop in detail.startstops:
        mirrors.add_duration(state, group, startstop.action, startstop.start, startstop.stop)
    if detail.nbytes is not None:
        mirrors.set_nbytes(state, ts, detail.nbytes)
    mirrors.stop_processing(state, ts)
    placement.update_idle(state, ws)

    mirrors.add_replica(state, ts, ws)
    _recommend_ready_dependents(ts, recs)
    _enter(ts, "memory")
    _let_go_of_dependencies(ts, recs)
    typename = detail.typename or ""
    ts.type = typename
    group.types[typename] = group.types.get(typename, 0) + 1
    group.prefix.types[typename] = group.prefix.types.get(typename, 0) + 1
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
    failure = detail or _inherited(ts)
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
    state = turn.state
    if ts.actor:
        for ws in ts.who_has:
            ws.actors.pop(ts, None)
        if ts.who_wants:
            recs[ts] = "erred"
            return
    for ws in ts.who_has:
        turn.free_keys(ws.address, ts.key)
    mirrors.remove_all_replicas(state, ts)
    _enter(ts, "released")
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
            if dts.state in ("no-worker", "processing", "queued"):
                recs[dts] = "waiting"


def transition_memory_erred(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Failure | None
) -> None:
    """The worker on which an actor lived is lost."""
    for ws in ts.who_has:
        ws.actors.pop(ts, None)
        turn.free_keys(ws.address, ts.key)
    mirrors.remove_all_replicas(turn.state, ts)
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
    if ts.actor:
        for ws in ts.who_has:
            ws.actors.pop(ts, None)
    _forget(turn, ts, recs)


# ------------------------------------------------------------------ erred -> ...


def transition_erred_released(
    turn: Turn, ts: TaskState, recs: Recommendations, detail: Any
) -> None:
    """It is tried again, or nobody wants it any more."""
    _clear_failure(turn, ts, recs)
    if ts.who_wants:
        retried = TaskRetried(key=ts.key)
        for cs in ts.who_wants:
            turn.to_client(cs.client_key, retried)
    _enter(ts, "released")
    _let_go_of_dependencies(ts, recs)  # they may have been tried again for it alone


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
        _clear_failure(turn, ts, recs)
    state.queued.discard(ts)
    state.unrunnable.pop(ts, None)
    if nbytes >= 0:
        mirrors.set_nbytes(state, ts, nbytes)
    for ws in workers:
        mirrors.add_replica(state, ts, ws)
    if start != "memory":
        _enter(ts, "memory")
        _let_go_of_dependencies(ts, recs)
        state.transition_counter += 1
        state.transition_log.append((ts.key, start, "memory", {}, turn.stimulus_id, turn.now))
    _recommend_ready_dependents(ts, recs)
    end_fire_and_forget(state, ts, recs)


# ------------------------------------------------------------------ what transitions share


def _dispatch(turn: Turn, ts: TaskState, ws: WorkerState, recs: Recommendations) -> None:
    """Send the task to a worker."""
    state = turn.state
    if ts.run_id and ts.waiters_count:
        _recall_dependents(turn, ts, recs)
    mirrors.start_processing(state, ts, ws)
    _enter(ts, "processing")
    placement.update_idle(state, ws)
    state.n_tasks += 1
    if ts.actor:
        ws.actors[ts] = None
    if ws.memory_limit and ts.dependencies and state.config.memory_terminate:
        nbytes = sum(d.nbytes for d in ts.dependencies)
        if nbytes > ws.memory_limit:
            _refuse_huge(turn, ts, ws, nbytes, recs)
            return
    turn.to_worker(ws.address, compute_message(turn, ts))


def _recall_dependents(turn: Turn, ts: TaskState, recs: Recommendations) -> None:
    """The task's data was there once: dependents that were sent to workers for it are taken back first.

    A stock worker that is fetching the data, is asked to compute it, and only then to forget the dependent,
    forgets the data with the dependent and never computes it.
    """
    for dts in list(ts.dependents):
        if dts.state == "processing":
            recs.pop(dts, None)
            transition(turn, dts, "waiting", recs)


def compute_message(turn: Turn, ts: TaskState) -> ComputeTask:
    """The ``compute-task`` message for a task that is processing; it gets a new run_id."""
    ts.run_id = next(turn.state.run_ids)
    run_spec = ts.run_spec
    if type(run_spec) is bytes:
        run_spec = Payload("pickled", run_spec, ())
    assert ts.priority is not None, ts
    who_has: dict[Key, tuple[str, ...]] = {}
    nbytes: dict[Key, int] = {}
    for dts in ts.dependencies:
        holders = dts.who_has
        key = dts.key
        if len(holders) == 1:
            (ws,) = holders
            who_has[key] = ws.address_tuple
        else:
            who_has[key] = tuple([ws.address for ws in holders])
        nbytes[key] = dts.nbytes
    details = ts.details
    return ComputeTask(
        key=ts.key,
        run_id=ts.run_id,
        priority=ts.priority,
        stimulus_id=turn.compute_id,
        who_has=who_has,
        nbytes=nbytes,
        run_spec=run_spec,  # type: ignore[arg-type]
        resource_restrictions=details.resource_restrictions if details is not None else None,
        actor=ts.actor,
        annotations=(details.annotations if details is not None else None) or {},
        span_id=ts.group.span_id,
    )


def _refuse_huge(
    turn: Turn, ts: TaskState, ws: WorkerState, nbytes: int, recs: Recommendations
) -> None:
    text = (
        f"Task {ts.key!r} has {format_nbytes(nbytes)} worth of input "
        f"dependencies, but worker {ws.address} has memory_limit set to "
        f"{format_nbytes(ws.memory_limit)}."
    )
    if not ts.dependents:
        text += (
            " It seems like you called client.compute() on a huge collection. "
            "Consider writing to distributed storage or slicing/reducing first."
        )
    turn.log(40, text)
    failure = Failure(
        cause=ts,
        worker=ws.address,
        exception=turn.state.errors.memory_error(text),
        exception_text=f"MemoryError({text!r})",
    )
    transition(turn, ts, "erred", recs, failure)


def format_nbytes(n: float) -> str:
    """Bytes in words, as dask writes them: ``1.00 MiB``."""
    for unit, size in (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("kiB", 2**10)):
        if n >= size * 0.9:
            return f"{n / size:.2f} {unit}"
    return f"{n} B"


def _clear_failure(turn: Turn, ts: TaskState, recs: Recommendations) -> None:
    """An erred task has not failed any more; what failed because of it is tried again."""
    details = ts.ensure_details()
    details.exception = details.traceback = None
    details.exception_text = details.traceback_text = None
    details.exception_blame = None
    for dts in ts.dependents:
        if dts.state == "erred":
            recs[dts] = "waiting"
    for address in details.erred_on or ():
        if address in turn.state.workers:
            turn.free_keys(address, ts.key)
    details.erred_on = None


def _let_go_of_dependencies(ts: TaskState, recs: Recommendations) -> None:
    """It needs them no longer; perhaps nobody does (then what was recommended for them before is void)."""
    for dts in ts.dependencies:
        if not dts.waiters_count and not dts.who_wants and dts.state != "erred":
            recs[dts] = "released"


def _leave_worker(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """The task leaves its worker's work. Returns the worker, None if it is gone."""
    ws = mirrors.stop_processing(state, ts)
    if ts.actor:
        ws.actors.pop(ts, None)
    if state.workers.get(ws.address) is not ws:
        return None
    placement.update_idle(state, ws)
    return ws


def _release_active(turn: Turn, ts: TaskState, recs: Recommendations) -> None:
    """From an active state to released; on to waiting where it is wanted."""
    _enter(ts, "released")
    if ts.has_lost_dependencies:
        recs[ts] = "forgotten"
    elif is_wanted(ts) and erred_dependency(ts) is None:
        recs[ts] = "waiting"
        return
    _let_go_of_dependencies(ts, recs)


def _recommend_ready_dependents(ts: TaskState, recs: Recommendations) -> None:
    """Dependents that now have all their dependencies run next, the best placed of them first."""
    ready = [d for d in ts.dependents if d.state == "waiting" and not d.waiting_count]
    if len(ready) > 1:
        ready.sort(key=_priority, reverse=True)
    for dts in ready:
        recs[dts] = "processing"


def _priority(ts: TaskState) -> Any:
    return ts.priority or ()


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


def _inherited(ts: TaskState) -> Failure | None:
    """The failure of a dependency; None where it is tried again by now."""
    blame = erred_dependency(ts)
    return None if blame is None else Failure(cause=blame)


def _err(turn: Turn, ts: TaskState, recs: Recommendations, failure: Failure) -> None:
    """To erred: dependents that wait for it follow, its dependencies may be let go."""
    state = turn.state
    details = ts.ensure_details()
    waiting = [d for d in ts.dependents if d.state in ACTIVE_STATES]
    _enter(ts, "erred")
    if failure.worker is not None:
        details.erred_on = details.erred_on or {}
        details.erred_on[failure.worker] = None
    if failure.exception is not None:
        details.exception = failure.exception
        details.exception_text = failure.exception_text
    if failure.traceback is not None:
        details.traceback = failure.traceback
        details.traceback_text = failure.traceback_text
    details.exception_blame = blame = failure.cause
    state.erred_tasks.appendleft(
        ErredTask(
            ts.key,
            turn.now,
            tuple(details.erred_on or ()),
            failure.exception_text or "",
            failure.traceback_text or "",
        )
    )
    for dts in waiting:
        recs[dts] = "erred"
    _let_go_of_dependencies(ts, recs)
    _report_erred(turn, ts, blame)
    end_fire_and_forget(state, ts, recs)


def _report_erred(turn: Turn, ts: TaskState, blame: TaskState) -> None:
    if ts.who_wants:
        report = TaskErredReport(
            key=ts.key, exception=blame.exception, traceback=blame.traceback
        )
        for cs in ts.who_wants:
            turn.to_client(cs.client_key, report)


def end_fire_and_forget(state: SchedulerState, ts: TaskState, recs: Recommendations) -> None:
    """A task that nobody waits for has had its run."""
    cs = state.clients["fire-and-forget"]
    if ts in cs.wants_what:
        release_wish(ts, cs, recs)


def release_wish(ts: TaskState, cs: Any, recs: Recommendations) -> None:
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


def _forget(turn: Turn, ts: TaskState, recs: Recommendations) -> None:
    """Out of the state: dependents are lost with it, dependencies may go too."""
    state = turn.state
    for ws in ts.who_has:
        if state.workers.get(ws.address) is ws:
            turn.free_keys(ws.address, ts.key)
    dependents, ts.dependents = ts.dependents, ()
    for dts in dependents:
        dts.has_lost_dependencies = True
        mirrors.remove_dependency(state, dts, ts)
        if dts.state not in ("memory", "erred"):
            recs[dts] = "forgotten"
    mirrors.remove_all_replicas(state, ts)
    _enter(ts, "forgotten")
    for dts in ts.dependencies:
        dependents = dts.dependents
        # most have one dependent: this task
        dts.dependents = () if len(dependents) == 1 else without_item(dependents, ts)
        if not dts.dependents and not dts.who_wants:
            recs[dts] = "forgotten"
    ts.dependencies = ()
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


def report_message(ts: TaskState) -> Message | None:
    """What a client that wants the task is told of its state; None where there is nothing to tell."""
    if ts.state == "memory":
        return KeyInMemory(key=ts.key)
    if ts.state == "erred":
        blame = ts.exception_blame
        assert blame is not None, ts
        return TaskErredReport(key=ts.key, exception=blame.exception, traceback=blame.traceback)
    if ts.state == "forgotten":
        return CancelledKeys(keys=[ts.key], reason="already forgotten")
    return None


def fill_slots(turn: Turn) -> None:
    """Workers have slots free: queued tasks go to them, best priority first.

    To be called after the recommendations of a stimulus, so that what became ready goes before new roots.
    """
    state = turn.state
    queued = state.queued
    if not len(queued) or not len(state.idle_load):
        return
    recs: Recommendations = {}
    budget = state.config.turn_tasks_max
    while len(state.idle_load):
        ts = queued.peek()
        if ts is None:
            return
        if budget <= 0:
            turn.wants_continue()
            return
        transition(turn, ts, "processing", recs)
        budget -= 1
        if ts.state == "queued":  # a dependency's data is on its way out
            transition(turn, ts, "waiting", recs)
        if recs:
            run(turn, recs)


def schedule_unrunnable(turn: Turn, workers: Iterable[WorkerState], recs: Recommendations) -> None:
    """Workers became available: tasks in no-worker that they may run are recommended."""
    state = turn.state
    if not state.unrunnable:
        return
    available = dict.fromkeys(workers)
    runnable = []
    for ts in state.unrunnable:
        valid = placement.valid_workers(state, ts)
        loose = ts.loose_restrictions
        if valid is None or loose or any(ws in valid for ws in available):
            runnable.append(ts)
    runnable.sort(key=_priority, reverse=True)
    for ts in runnable:
        recs[ts] = "processing"


#: (start, finish) -> function(turn, task, recommendations to write, detail of the cause).
TRANSITIONS: dict[
    tuple[str, str], Callable[[Turn, TaskState, Recommendations, Any], None]
] = {
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

#: Pairs that no stimulus asks for, and why. All others that TRANSITIONS lacks go through released.
IMPOSSIBLE: dict[tuple[str, str], str] = {
    **{
        (start, finish): "a task is placed from waiting"
        for start in ("released", "processing", "memory", "erred")
        for finish in ("queued", "no-worker", "processing")
        if start != finish
    },
    ("waiting", "queued"): "chosen inside waiting -> processing",
    ("waiting", "no-worker"): "chosen inside waiting -> processing",
    ("queued", "no-worker"): "it stays queued until a worker has a slot",
    ("no-worker", "queued"): "it stays there until a worker may run it",
    **{
        (start, "memory"): "data that was not computed here is told as DataPlaced (become_data)"
        for start in ("released", "waiting", "queued", "no-worker", "erred")
    },
    **{
        ("forgotten", finish): "a key that comes back is another task"
        for finish in TASK_STATES
        if finish != "forgotten"
    },
}
