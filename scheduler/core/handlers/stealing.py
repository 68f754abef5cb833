"""When the balance of work is looked at: every so often, now, or not at all; and moves that somebody wants.

Must not know: how it is decided what moves (``stealing.py``).
"""

from __future__ import annotations

from .. import mirrors, placement
from ..steal_requests import IN_FLIGHT_MAX, ask, keep_in_sight, look_again
from ..stealing import balance
from ..steals import live
from ..stimuli import AskBack, Stimulus, SwitchStealing
from ..turn import Turn


def handle_switch_stealing(turn: Turn, stimulus: Stimulus) -> None:
    """Look at the balance every so often from now on, or no more. Requests on their way come to their end."""
    command: SwitchStealing = stimulus.message
    steals = turn.state.steals
    if command.interval_seconds is not None:
        steals.interval_seconds = command.interval_seconds
    steals.running = command.running
    turn.cancel_timer(steals.timer)
    steals.timer = 0
    look_again(turn)


def handle_stealing_due(turn: Turn, stimulus: Stimulus) -> None:
    """It is time to look at the balance."""
    steals = turn.state.steals
    steals.timer = 0
    if steals.running:
        balance(turn)
    else:
        steals.sweep(turn.state)
    look_again(turn)


def handle_balance_work(turn: Turn, stimulus: Stimulus) -> None:
    """Look at the balance once, now."""
    balance(turn)
    keep_in_sight(turn)


def handle_ask_back(turn: Turn, stimulus: Stimulus) -> None:
    """Somebody wants a task to move to a certain worker: the one that has it is asked."""
    state = turn.state
    command: AskBack = stimulus.message
    ts = state.tasks.get(command.key)
    thief = state.workers.get(command.thief)
    if ts is None or thief is None or ts.processing_on in (None, thief):
        return
    victim = ts.processing_on
    assert victim is not None
    if live(state, ts) is not None or state.workers.get(victim.address) is not victim:
        return
    state.steals.take(ts)
    if len(state.steals.in_flight) >= IN_FLIGHT_MAX:
        return
    compute = mirrors.expected_duration(state, ts.group.prefix)
    on_victim = compute + placement.fetch_seconds(state, ts, victim)
    on_thief = compute + placement.fetch_seconds(state, ts, thief)
    ask(turn, ts, victim, thief, on_victim, on_thief)
    keep_in_sight(turn)
