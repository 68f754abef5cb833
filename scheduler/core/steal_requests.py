"""Asking workers to give tasks back, and what becomes of their answers.

A worker is asked (``steal-request``), and gives the task back unless it runs by now (``steal-response``). Only then does
the task go to the worker that is to have it, or is placed anew where there is none. What may happen in between - the
task finishes, fails, is let go, runs anew; one of the workers leaves or pauses - makes the request void, or the task is
placed anew. The words of the event log are those of stock's ``distributed/stealing.py``.

Must not know: why a task is to move (``stealing.py``, retirement, people).
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.protocol.messages import StealRequest, StealResponse

from . import mirrors, placement
from .outgoing import compute_message
from .state import SchedulerState, TaskState, WorkerState
from .steals import Steal, live
from .stimuli import StealingDue, Stimulus
from .transitions import fill_slots, run
from .turn import Turn

#: Requests that may be on their way at a time.
IN_FLIGHT_MAX = 10_000

#: States in which a worker has given the task back, and in which it keeps it, by their names there.
GIVEN_BACK = frozenset({"ready", "constrained", "waiting"})
KEPT = frozenset({"memory", "executing", "long-running", "cancelled", "resumed"})
#: It does not have it at all.
UNKNOWN = frozenset({"released", None})


# ------------------------------------------------------------------ requests


def ask(
    turn: Turn,
    ts: TaskState,
    victim: WorkerState,
    thief: WorkerState | None,
    on_victim: float,
    on_thief: float,
) -> None:
    """Ask the worker that has a task for it.

    Args:
        thief: who is to get it; None: it is placed anew.
        on_victim, on_thief: seconds of work that it is for each, transfers included.
    """
    steals = turn.state.steals
    stimulus_id = f"steal-{steals.request_count}"
    steals.request_count += 1
    steals.add(ts, Steal(victim, thief, ts.run_id, on_victim, on_thief, stimulus_id))
    turn.to_worker(victim.address, StealRequest(key=ts.key, stimulus_id=stimulus_id))


def take_back(turn: Turn, ws: WorkerState, tasks: Iterable[TaskState]) -> None:
    """A worker is to begin these no more: it is asked for those that it does not run yet, to be placed anew."""
    state = turn.state
    steals = state.steals
    for ts in tasks:
        if len(steals.in_flight) >= IN_FLIGHT_MAX:
            break
        if ts in ws.long_running or live(state, ts) is not None:
            continue
        steals.take(ts)
        ask(turn, ts, ws, None, mirrors.expected_duration(state, ts.group.prefix), 0.0)
    keep_in_sight(turn)


def look_again(turn: Turn) -> None:
    """Set the timer, where there is something to look at."""
    steals = turn.state.steals
    if steals.running or steals.in_flight:
        steals.timer = turn.call_at(turn.now + steals.interval_seconds, StealingDue())


def keep_in_sight(turn: Turn) -> None:
    """Void requests are swept though nobody looks at the balance."""
    if not turn.state.steals.timer:
        look_again(turn)


# ------------------------------------------------------------------ answers


def handle_steal_response(turn: Turn, stimulus: Stimulus) -> None:
    """A worker gives a task back, or keeps it. Stock: ``move_task_confirm``."""
    state = turn.state
    message: StealResponse = stimulus.message
    ts = state.tasks.get(message.key)
    if ts is None:
        text = f"Key released between request and confirm: {message.key}"
        turn.log(10, text, "distributed.stealing")
        return
    steal = state.steals.in_flight.get(ts)
    said = (message.key, message.state, stimulus.source, message.stimulus_id)
    if steal is not None and steal.stimulus_id != message.stimulus_id:
        turn.log_event("stealing", ("stale-response", *said))
        return
    is_void = live(state, ts) is None
    state.steals.take(ts)
    if steal is None or is_void:
        turn.log_event("stealing", ("already-aborted", *said))
        return
    _settle(turn, ts, steal, message.state)


def _settle(turn: Turn, ts: TaskState, steal: Steal, answer: str | None) -> None:
    """The victim has answered for the attempt that it has."""
    state = turn.state
    victim, thief = steal.victim, steal.thief
    thief_address = thief.address if thief is not None else None
    places = (ts.key, answer, victim.address, thief_address, steal.stimulus_id)
    state.restless[victim] = None
    if answer in KEPT:
        turn.log_event("stealing", ("already-computing", *places))
    elif answer in GIVEN_BACK and thief is not None and _may_move(state, ts, thief):
        _move(turn, ts, thief)
        turn.log_event("stealing", ("confirm", *places))
    else:
        gone = thief is not None and state.workers.get(thief.address) is not thief
        turn.log_event("stealing", ("reschedule", gone, *places))
        if answer not in GIVEN_BACK and answer not in UNKNOWN:
            turn.log(30, f"Worker {victim.address} was asked for {ts.key!r} and says {answer!r}")
        run(turn, {ts: "released"})
    fill_slots(turn)


def _may_move(state: SchedulerState, ts: TaskState, thief: WorkerState) -> bool:
    """Whether the thief still is where the task is to go, and the task's inputs are still there."""
    if state.workers.get(thief.address) is not thief or not placement.is_available(thief):
        return False
    if not all(dts.who_has for dts in ts.dependencies):
        return False
    valid = placement.valid_workers(state, ts)
    return valid is None or thief in valid or ts.loose_restrictions


def _move(turn: Turn, ts: TaskState, thief: WorkerState) -> None:
    """The task is the thief's: another attempt."""
    state = turn.state
    victim = mirrors.stop_processing(state, ts)
    mirrors.start_processing(state, ts, thief)
    if ts.actor:
        victim.actors.pop(ts, None)
        thief.actors[ts] = None
    state.restless[thief] = None
    turn.to_worker(thief.address, compute_message(turn, ts))
