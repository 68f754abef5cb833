"""Work stealing: start and stop it, run it once, and move a single task on request."""

from __future__ import annotations

from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.policy import placement
from paceline.scheduler.core.stealing.balancer import balance
from paceline.scheduler.core.stealing.recall import (
    IN_FLIGHT_MAX,
    ensure_balance_timer,
    schedule_balance,
    send_steal_request,
)
from paceline.scheduler.core.stimuli import BalanceWork, ConfigureStealing, RecallTask, StealingDue
from paceline.scheduler.core.turn import Turn


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


def handle_stealing_due(turn: Turn, message: StealingDue) -> None:
    """Timer: balance if stealing is on, else drop void requests."""
    stealing_state = turn.state.stealing
    stealing_state.timer = 0
    if stealing_state.running:
        balance(turn)
    else:
        stealing_state.sweep()
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
    if ts is None or thief is None or ts.processing_on in (None, thief):
        return
    victim = ts.processing_on
    assert victim is not None
    if state.stealing.live(ts) is not None or state.workers.get(victim.address) is not victim:
        return
    state.stealing.take(ts)
    if len(state.stealing.in_flight) >= IN_FLIGHT_MAX:
        return
    compute = accounting.expected_duration(state, ts.group.prefix)
    on_victim = compute + placement.fetch_seconds(state, ts, victim)
    on_thief = compute + placement.fetch_seconds(state, ts, thief)
    send_steal_request(turn, ts, victim, thief, on_victim, on_thief)
    ensure_balance_timer(turn)
