"""Ask workers to give back tasks that they have not begun, so that they are rescheduled."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from paceline.scheduler.core.lifecycle.recommendations import priority_of
from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import ShareGroup
from paceline.scheduler.core.state.workers.loads import taken_slots
from paceline.scheduler.core.turn import Turn

from .balancer import ensure_balance_timer
from .requests import IN_FLIGHT_MAX, send_steal_request

#: A task that has been executing for longer than this is late, seconds.
LATE_SECONDS = 0.1


def recall_tasks(turn: Turn, ws: WorkerState, tasks: Iterable[TaskState]) -> None:
    """Ask ``ws`` to give back ``tasks`` that it has not started, to reschedule them elsewhere."""
    state = turn.state
    stealing_state = state.stealing
    for ts in tasks:
        if len(stealing_state.in_flight) >= IN_FLIGHT_MAX:
            break
        if ts in ws.long_running or stealing_state.live(ts) is not None:
            continue
        stealing_state.take(ts)
        send_steal_request(
            turn, ts, ws, None, estimates.expected_duration(state, ts.group.prefix), 0.0
        )
    ensure_balance_timer(turn)


def recall_excess(turn: Turn) -> None:
    """Ask workers to give back the tasks beyond their slots, because another group has work now.

    They are queued when they come back. Those that were sent last are asked for, or with user
    priorities those of the lowest priority. Many are asked for in several turns.
    """
    state = turn.state
    in_flight = state.stealing.in_flight
    if len(in_flight) > IN_FLIGHT_MAX // 2:
        return  # continued when answers arrive
    state.shares.recall_due = False
    budget = state.config.turn_tasks_max
    for ws in state.workers.values():
        excess = taken_slots(ws) - ws.task_slots + state.stealing.tasks.get(ws, 0)
        if excess <= 0:
            continue
        if budget <= 0:
            state.shares.recall_due = True
            turn.wants_continue()
            return
        recalled = list(islice(_not_begun(state, ws), min(int(excess), budget)))
        recall_tasks(turn, ws, recalled)
        budget -= len(recalled)
    state.shares.unheld = state.shares.recall_due


def recall_behind_late(state: SchedulerState, ws: WorkerState) -> None:
    """Set ``recall_due`` if a task that `ws` executes is late and further ones wait there.

    While several groups have work, these were sent because all were expected to end very soon.
    """
    if state.shares.several_active() and taken_slots(ws) > ws.task_slots:
        if any(seconds > LATE_SECONDS for seconds in ws.executing.values()):
            state.shares.recall_due = True


def _not_begun(state: SchedulerState, ws: WorkerState) -> Iterable[TaskState]:
    """Yield the tasks that `ws` has probably not begun, the last ones first."""
    tasks: Iterable[TaskState] = reversed(ws.processing)
    if state.shares.has_user_priorities:
        tasks = sorted(tasks, key=priority_of, reverse=True)
    for ts in tasks:
        is_waiting = ts not in ws.executing and ts not in ws.long_running and not ts.actor
        if is_waiting and state.stealing.live(ts) is None:
            yield ts


def recall_capped(turn: Turn, share: ShareGroup) -> None:
    """Ask workers for the tasks of `share`, whose cap was lowered, that they have not begun."""
    state = turn.state
    for ws in state.workers.values():
        tasks = [ts for ts in _not_begun(state, ws) if ts.account.share is share]
        if tasks:
            recall_tasks(turn, ws, tasks)
