"""What workers tell of the tasks they run.

Must not know: who asked for the tasks.
"""

from __future__ import annotations

from .. import mirrors, placement
from ..failures import Failure
from ..needs import Recommendations
from ..stimuli import Stimulus
from ..transitions import fill_slots, run, transition
from ..turn import Turn


def handle_task_finished(turn: Turn, stimulus: Stimulus) -> None:
    """A task's data lies on the worker that ran it."""
    state = turn.state
    ws = state.workers.get(stimulus.source)
    if ws is None:
        return
    message = stimulus.message
    ts = state.tasks.get(message.key)
    recs: Recommendations = {}
    if ts is None:
        turn.free_keys(ws.address, message.key)
    elif ts.state == "processing":
        if ts.run_id == message.run_id:
            if message.metadata:
                details = ts.ensure_details()
                details.metadata = {**(details.metadata or {}), **message.metadata}
            transition(turn, ts, "memory", recs, message)
        elif ts.processing_on is ws:
            recs[ts] = "released"
        else:
            turn.free_keys(ws.address, ts.key)
    elif ts.state == "memory" and ts.run_id == message.run_id:
        mirrors.add_replica(state, ts, ws)
    else:
        turn.free_keys(ws.address, ts.key)
    if recs:
        run(turn, recs)
    fill_slots(turn)


def handle_task_erred(turn: Turn, stimulus: Stimulus) -> None:
    """A task raised."""
    state = turn.state
    message = stimulus.message
    ts = state.tasks.get(message.key)
    if ts is None or ts.state != "processing" or ts.processing_on is None:
        return
    recs: Recommendations = {}
    if ts.run_id != message.run_id:
        if ts.processing_on.address == stimulus.source:
            recs[ts] = "released"
    elif ts.retries > 0:
        ts.retries -= 1
        transition(turn, ts, "waiting", recs)
    else:
        failure = Failure(
            cause=ts,
            worker=stimulus.source,
            exception=message.exception,
            traceback=message.traceback,
            exception_text=message.exception_text,
            traceback_text=message.traceback_text,
            report=message,
        )
        transition(turn, ts, "erred", recs, failure)
    run(turn, recs)
    fill_slots(turn)


def handle_long_running(turn: Turn, stimulus: Stimulus) -> None:
    """A task seceded from its worker's thread pool: others may use its slot."""
    state = turn.state
    message = stimulus.message
    ws = state.workers.get(stimulus.source)
    ts = state.tasks.get(message.key)
    if ws is None or ts is None or ts.processing_on is not ws or ts.run_id != message.run_id:
        return
    seconds = message.compute_duration
    if seconds is not None:
        prefix = ts.group.prefix
        old = prefix.duration_average
        mirrors.set_duration_average(state, prefix, seconds if old < 0 else (old + seconds) / 2)
    mirrors.start_long_running(state, ts, ws)
    placement.update_idle(state, ws)
    fill_slots(turn)


def handle_reschedule(turn: Turn, stimulus: Stimulus) -> None:
    """The worker gave the task back (``Reschedule``): it is placed anew."""
    message = stimulus.message
    ts = turn.state.tasks.get(message.key)
    if ts is None:
        turn.log(
            30,
            f"Attempting to reschedule task {message.key!r}, which was not "
            "found on the scheduler. Aborting reschedule.",
        )
        return
    if ts.state != "processing" or ts.processing_on is None:
        return
    if stimulus.source and ts.processing_on.address != stimulus.source:
        return
    run(turn, {ts: "released"})
    fill_slots(turn)


def handle_keep_alive(turn: Turn, stimulus: Stimulus) -> None:
    """The worker lives; its heartbeats tell the rest."""
