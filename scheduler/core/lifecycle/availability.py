"""Workers that become available or unavailable, and the tasks that wait for them."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.protocol.keys import Key
from paceline.scheduler.core.policy import placement
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.workers.loads import is_available
from paceline.scheduler.core.turn import Turn

from .extra_runs import refresh_running, remove_extra_run
from .recommendations import priority_of
from .slots import fill_slots
from .transitions import run


def use_worker(turn: Turn, ws: WorkerState) -> None:
    """Send unrunnable tasks to `ws` if it is available, and queued tasks to free slots."""
    if is_available(ws):
        recs: Recs = {}
        schedule_unrunnable(turn, [ws], recs)
        run(turn, recs)
    fill_slots(turn)


def free_thread_of(turn: Turn, key: Key) -> None:
    """Record that the given-up runs of `key` occupy no threads, because one has submitted a graph.

    It may have seceded, which a worker that was asked to forget it does not report, and may wait
    for the tasks of the graph.
    """
    for ws in list(turn.state.workers.values()):
        free_thread(turn, ws, key)


def free_thread(turn: Turn, ws: WorkerState, key: Key) -> None:
    """Record that the given-up run of `key` on `ws` occupies no thread, because it seceded."""
    ws.released_runs.pop(key, None)
    if key in ws.extra_runs:
        remove_extra_run(turn.state, ws, key)
        use_worker(turn, ws)


def schedule_unrunnable(turn: Turn, workers: Iterable[WorkerState], recs: Recs) -> None:
    """Recommend the tasks in no-worker that ``workers``, which became available, can run."""
    state = turn.state
    if not state.unrunnable:
        return
    available = dict.fromkeys(workers)
    runnable = []
    for ts in state.unrunnable:
        allowed = placement.allowed_workers(state, ts)
        if allowed is None or any(ws in allowed for ws in available):
            runnable.append(ts)
    runnable.sort(key=priority_of, reverse=True)
    for ts in runnable:
        recs[ts] = "processing"


def availability_changed(turn: Turn, ws: WorkerState) -> None:
    """Update the tables that depend on whether `ws` is available, and send it tasks if it is."""
    state = turn.state
    refresh_running(state, ws)
    if is_available(ws):
        placement.update_idle(state, ws)
        use_worker(turn, ws)
    else:
        state.queued.may_move = True  # tasks that were to follow their data to this worker
        fill_slots(turn)
    refresh_no_workers(state, turn.now)


def refresh_no_workers(state: SchedulerState, now: float) -> None:
    """Update `no_workers_since`, the time since which tasks wait and no worker is running."""
    is_running = state.running or any(ws.status == "running" for ws in state.workers.values())
    if is_running or not (len(state.queued) or state.unrunnable):
        state.no_workers_since = None
    elif state.no_workers_since is None:
        state.no_workers_since = now
