"""Work stealing: start and stop it, run a round, request single tasks, and handle responses.

Only when a worker gives a task back is it sent to the thief, or rescheduled if there is none.
Events are logged with the names of stock's ``distributed/stealing.py``.
"""

from __future__ import annotations

from paceline.protocol.messages import StealResponse
from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.lifecycle.outgoing import compute_message
from paceline.scheduler.core.lifecycle.second_runs import drop_second_run
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run
from paceline.scheduler.core.policy import admission, fairness, placement, worker_ends
from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.workers.loads import is_available
from paceline.scheduler.core.state.workers.stealing import InFlightSteal
from paceline.scheduler.core.stealing.balancer import (
    balance,
    ensure_balance_timer,
    schedule_balance,
)
from paceline.scheduler.core.stealing.requests import (
    BARRIER_KEY,
    IN_FLIGHT_MAX,
    send_steal_request,
)
from paceline.scheduler.core.stimuli import BalanceWork, ConfigureStealing, RecallTask
from paceline.scheduler.core.turn import DEBUG, WARNING, Registry, Turn

#: Worker-side states in which a worker has given the task back, and in which it keeps it.
GIVEN_BACK = frozenset({"ready", "constrained", "waiting"})
KEPT = frozenset({"memory", "executing", "long-running", "cancelled", "resumed"})
#: Worker-side states of a task that the worker does not have.
UNKNOWN = frozenset({"released", None})


def handle_configure_stealing(turn: Turn, command: ConfigureStealing) -> None:
    """Start or stop periodic balancing, or change its interval.

    Requests in flight are completed.
    """
    stealing_state = turn.state.stealing
    if command.interval_seconds is not None:
        stealing_state.interval_seconds = command.interval_seconds
    stealing_state.running = command.running
    turn.cancel_timer(stealing_state.timer)
    stealing_state.timer = 0
    schedule_balance(turn)


def handle_balance_work(turn: Turn, message: BalanceWork) -> None:
    """Balance once."""
    balance(turn)
    ensure_balance_timer(turn)


def handle_recall_task(turn: Turn, command: RecallTask) -> None:
    """Ask the worker that has a task to give it back, so that it can move to ``thief``."""
    state = turn.state
    ts = state.tasks.get(command.key)
    thief = state.workers.get(command.thief)
    if ts is None or thief is None:
        return
    victim = ts.processing_on
    if victim is None or victim is thief or state.workers.get(victim.address) is not victim:
        return
    stealing_state = state.stealing
    if stealing_state.live(ts) is not None:
        return
    stealing_state.take(ts)
    if len(stealing_state.in_flight) >= IN_FLIGHT_MAX:
        return
    compute = estimates.expected_duration(state, ts.group.prefix)
    on_victim = compute + placement.fetch_seconds(state, ts, victim)
    on_thief = compute + placement.fetch_seconds(state, ts, thief)
    send_steal_request(turn, ts, victim, thief, on_victim, on_thief)
    ensure_balance_timer(turn)


def handle_steal_response(turn: Turn, message: StealResponse) -> None:
    """Move or reschedule a task that a worker gave back. Stock: ``move_task_confirm``."""
    state = turn.state
    ts = state.tasks.get(message.key)
    if ts is None:
        comparison = state.comparisons.by_worker.get(turn.source)
        if message.key == BARRIER_KEY and comparison is not None and comparison.barriers:
            comparison.barriers.popleft()(turn)
            return
        text = f"Key released between request and confirm: {message.key}"
        turn.log(DEBUG, text, "distributed.stealing")
        return
    steal = state.stealing.in_flight.get(ts)
    details = (message.key, message.state, turn.source, message.stimulus_id)
    if steal is not None and steal.stimulus_id != message.stimulus_id:
        turn.log_event("stealing", ("stale-response", *details))
        return
    is_void = state.stealing.live(ts) is None
    state.stealing.take(ts)
    if steal is None or is_void:
        turn.log_event("stealing", ("already-aborted", *details))
        return
    _complete(turn, ts, steal, message.state)


def _complete(turn: Turn, ts: TaskState, steal: InFlightSteal, answer: str | None) -> None:
    """Complete the request ``steal``: the victim reports the task in state ``answer``."""
    state = turn.state
    victim, thief = steal.victim, steal.thief
    thief_address = thief.address if thief is not None else None
    places = (ts.key, answer, victim.address, thief_address, steal.stimulus_id)
    state.loads.touch(victim)
    if answer in KEPT:
        turn.log_event("stealing", ("already-computing", *places))
    elif answer in GIVEN_BACK and thief is not None and _may_move(state, ts, thief):
        _move(turn, ts, thief)
        turn.log_event("stealing", ("confirm", *places))
    else:
        gone = thief is not None and state.workers.get(thief.address) is not thief
        turn.log_event("stealing", ("reschedule", gone, *places))
        if answer not in GIVEN_BACK and answer not in UNKNOWN:
            turn.log(
                WARNING,
                f"Worker {victim.address} reports the unknown state {answer!r} for {ts.key!r}; "
                "rescheduling it",
            )
        run(turn, {ts: "released"})
    fill_slots(turn)


def _may_move(state: SchedulerState, ts: TaskState, thief: WorkerState) -> bool:
    """Return whether ``thief`` can still run ``ts`` and its dependencies are in memory."""
    if state.workers.get(thief.address) is not thief or not is_available(thief):
        return False
    if not all(dts.who_has for dts in ts.dependencies):
        return False
    if ts in state.whole_workers.due or not worker_ends.can_finish(state, ts, thief):
        return False
    if state.admission.is_short and not admission.fits(state, ts, thief):
        return False
    share = ts.account.share
    if fairness.is_outranked(state, ts) or (state.queued.waiting and state.shares.holds(share)):
        return False  # the queue decides what runs next
    return fairness.may_start(state, ts) and placement.is_allowed(state, ts, thief)


def _move(turn: Turn, ts: TaskState, thief: WorkerState) -> None:
    """Send ``ts`` to ``thief`` with a new run_id."""
    state = turn.state
    if state.task_policies.second_runs:
        drop_second_run(turn, ts)
    victim = accounting.stop_processing(state, ts)
    accounting.start_processing(state, ts, thief)
    if ts.actor:
        victim.actors.pop(ts, None)
        thief.actors[ts] = None
    state.loads.touch(thief)
    turn.to_worker(thief.address, compute_message(turn, ts))


#: Message class -> handler.
HANDLERS: Registry = {
    ConfigureStealing: handle_configure_stealing,
    BalanceWork: handle_balance_work,
    RecallTask: handle_recall_task,
    StealResponse: handle_steal_response,
}
