"""Reports of workers about the tasks they run."""

from __future__ import annotations

from paceline.protocol.messages import KeepAlive, LongRunning, Reschedule, TaskErred, TaskFinished
from paceline.scheduler.core.lifecycle import accounting, charges
from paceline.scheduler.core.lifecycle.availability import free_thread, use_worker
from paceline.scheduler.core.lifecycle.retries import failure_of, handle_failed_run
from paceline.scheduler.core.lifecycle.second_runs import promote_second_run
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run, transition
from paceline.scheduler.core.policy import placement
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.task_policies import second_run
from paceline.scheduler.core.ticks.second_runs import is_second_run, second_run_failed
from paceline.scheduler.core.turn import WARNING, Registry, Turn

from .replicas import add_keys


def handle_task_finished(turn: Turn, message: TaskFinished) -> None:
    """Move a finished task to memory; its result is on the worker that sent the message.

    Free the result on that worker if it is of another run or of an unknown task.
    """
    state = turn.state
    ws = state.workers.get(turn.source)
    if ws is None:
        return
    ts = state.tasks.get(message.key)
    recs: Recs = {}
    promoted: WorkerState | None = None
    if ts is None:
        turn.free_keys(ws.address, message.key)
    elif ts.state == "processing":
        if is_second_run(ts, ws.address, message.run_id):
            state.task_policies.second_runs_won += 1
            promoted = promote_second_run(turn, ts)
        if ts.run_id == message.run_id or _is_resumed(ts, ws, message.run_id):
            if message.metadata:
                details = ts.ensure_details()
                details.metadata = {**(details.metadata or {}), **message.metadata}
            transition(turn, ts, "memory", recs, message)
        elif ts.processing_on is ws:
            recs[ts] = "released"
        else:
            turn.free_keys(ws.address, ts.key)
    elif ts.state == "memory" and ts.run_id == message.run_id:
        add_keys(turn, ws, [ts.key])
    else:
        turn.free_keys(ws.address, ts.key)
    if recs:
        run(turn, recs)
    if promoted is not None:
        use_worker(turn, promoted)
    fill_slots(turn)


def _is_resumed(ts: TaskState, ws: WorkerState | None, run_id: int) -> bool:
    """Return whether `ws`, which processes `ts`, has resumed `run_id` after it was given up.

    A stock worker that executes a task when it is sent the task again starts no other run, and
    reports the end of the run with its own run_id.
    """
    if ts.policies is None or ts.processing_on is not ws:
        return False
    return run_id in ts.policies.given_up_runs


def handle_task_erred(turn: Turn, message: TaskErred) -> None:
    """Retry a task that raised, or mark it and its dependents as erred."""
    state = turn.state
    ts = state.tasks.get(message.key)
    if ts is None or ts.state != "processing" or ts.processing_on is None:
        return
    recs: Recs = {}
    promoted: WorkerState | None = None
    is_second = is_second_run(ts, turn.source, message.run_id)
    ws = state.workers.get(turn.source)
    is_first = ts.run_id == message.run_id or _is_resumed(ts, ws, message.run_id)
    if ws is not None and (is_second or is_first):
        charges.charge_failed(state, ts, ws, message)
    if is_second:
        second_run_failed(turn, ts)
    elif not is_first:
        if ts.processing_on.address == turn.source:
            recs[ts] = "released"
    elif second_run(ts.policies) is not None:
        promoted = promote_second_run(turn, ts, is_over=True)  # it may succeed there
        second_run_failed(turn, ts)
    elif ts.retries > 0 and ts.policies is not None:
        handle_failed_run(turn, ts, ts.policies, message, recs)
    elif ts.retries > 0:
        ts.retries -= 1
        transition(turn, ts, "waiting", recs)
    else:
        transition(turn, ts, "erred", recs, failure_of(ts, turn.source, message))
    run(turn, recs)
    if promoted is not None:
        use_worker(turn, promoted)
    fill_slots(turn)


def handle_long_running(turn: Turn, message: LongRunning) -> None:
    """Free the slot of a task that seceded from its worker's thread pool."""
    state = turn.state
    ws = state.workers.get(turn.source)
    ts = state.tasks.get(message.key)
    if ws is None:
        return
    if ts is not None and is_second_run(ts, ws.address, message.run_id):
        second_run_failed(turn, ts)
    if ts is None or ts.processing_on is not ws:
        if ts is None or second_run(ts.policies) is None:
            free_thread(turn, ws, message.key)
        return
    if ts.run_id != message.run_id and not _is_resumed(ts, ws, message.run_id):
        return
    seconds = message.compute_duration
    if seconds is not None:
        prefix = ts.group.prefix
        old = prefix.duration_average
        accounting.set_duration_average(state, prefix, seconds if old < 0 else (old + seconds) / 2)
    if ts not in ws.long_running:
        charges.charge_seceded(state, ts, ws, seconds or 0.0)
    accounting.start_long_running(state, ts, ws)
    placement.update_idle(state, ws)
    fill_slots(turn)


def handle_reschedule(turn: Turn, message: Reschedule) -> None:
    """Reschedule a task that raised ``Reschedule``."""
    ts = turn.state.tasks.get(message.key)
    if ts is None:
        turn.log(
            WARNING,
            f"Attempting to reschedule task {message.key!r}, which was not "
            "found on the scheduler. Aborting reschedule.",
        )
        return
    if ts.state != "processing" or ts.processing_on is None:
        return
    if turn.source and ts.processing_on.address != turn.source:
        second = second_run(ts.policies)
        if second is not None and second.address == turn.source:
            second_run_failed(turn, ts)
        return
    charges.charge_ended(turn.state, ts, ts.processing_on)
    run(turn, {ts: "released"})
    fill_slots(turn)


def handle_keep_alive(turn: Turn, message: KeepAlive) -> None:
    """Accept the message; ``last_seen`` follows from heartbeats."""


#: Message class -> handler.
HANDLERS: Registry = {
    TaskFinished: handle_task_finished,
    TaskErred: handle_task_erred,
    LongRunning: handle_long_running,
    Reschedule: handle_reschedule,
    KeepAlive: handle_keep_alive,
}
