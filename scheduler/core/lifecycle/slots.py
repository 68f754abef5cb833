"""Send queued tasks to workers with free slots."""

from __future__ import annotations

from paceline.scheduler.core.policy import fairness, memory_queue, worker_ends
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.turn import Turn

from .transitions import run, transition

#: A choice while memory is short counts as this many tasks of ``turn_tasks_max``.
CHOICE_COST = 100


def fill_slots(turn: Turn) -> None:
    """Send queued tasks to workers with free slots, in the order of ``memory_queue.next_task``.

    Call this after carrying out the recommendations of a stimulus, so that tasks that became ready
    are placed before new roots.
    """
    state = turn.state
    queued = state.queued
    if not queued.waiting:
        return
    recs: Recs = {}
    had_slots = state.loads.has_free_slots()
    is_turn = True
    n_left = state.config.turn_tasks_max
    while n_left > 0:
        n_left -= CHOICE_COST if state.admission.is_short else 1
        choice = memory_queue.next_task(state)
        if choice is None:
            if had_slots and (not is_turn or state.loads.has_free_slots()):
                queued.may_move = False
            if not queued.may_move and not queued.move_timer and queued.near:
                when = turn.now + fairness.MOVE_INTERVAL_SECONDS
                queued.move_timer = turn.call_at(when, move_held_tasks)
            return
        ts, ws = choice
        is_turn = is_turn and queued.waiting[0].share is ts.account.share
        if ws is not None and worker_ends.can_finish(state, ts, ws):
            transition(turn, ts, "processing", recs, ws)
        if ts.state == "queued":  # the data of a dependency is being lost, or `ws` cannot run it
            transition(turn, ts, "waiting", recs)
        if recs:
            run(turn, recs)
    turn.wants_continue()


def move_held_tasks(turn: Turn) -> None:
    """Use the next free slots also for tasks whose data is on other workers.

    A timer calls this, because searching for such tasks after each stimulus would cost more than
    scheduling a task.
    """
    turn.state.queued.move_timer = 0
    turn.state.queued.may_move = True
    fill_slots(turn)
