"""Runs that go on although the scheduler has given them up: see ``lifecycle.extra_runs``.

Heartbeats report what a worker executes, including runs that it was asked to forget.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.protocol.keys import Key
from paceline.scheduler.core.instructions import RestartStuckWorker
from paceline.scheduler.core.lifecycle import charges
from paceline.scheduler.core.lifecycle.availability import use_worker
from paceline.scheduler.core.lifecycle.extra_runs import add_extra_run, remove_extra_run
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_policies import second_run
from paceline.scheduler.core.state.workers.loads import is_available
from paceline.scheduler.core.stealing.recall import recall_tasks
from paceline.scheduler.core.turn import Turn

#: A released task counts if it has been executing for this many seconds.
LONG_SECONDS = 1.0
#: Seconds after which a worker that could not be restarted is to be restarted again.
RESTART_AGAIN_SECONDS = 30.0


def record_stuck_run(turn: Turn, ws: WorkerState, ts: TaskState) -> None:
    """Record that `ws` was asked to forget its run of `ts`, which goes on in a thread."""
    add_extra_run(turn.state, ws, ts.key, ts.account)
    _recall_if_occupied(turn, ws)
    ws.stuck_runs[ts.key] = turn.now


def restart_stuck_workers(turn: Turn) -> None:
    """Let nannies restart the workers with runs that timed out, again if that failed."""
    for ws in turn.state.workers.values():
        if not ws.stuck_runs or turn.now < min(ws.stuck_runs.values()):
            continue
        if ws.nanny and ws.status == "running":
            ws.stuck_runs = dict.fromkeys(ws.stuck_runs, turn.now + RESTART_AGAIN_SECONDS)
            turn.instruct(RestartStuckWorker(ws.address))


def unfinished_restart(state: SchedulerState, ws: WorkerState) -> RestartStuckWorker | None:
    """Return the request to restart `ws`, which is retiring with a run that timed out, or None.

    A worker that a client retires meanwhile may be restarted, too.
    """
    if not (state.config.restart_stuck_workers and ws.nanny and ws.status == "closing_gracefully"):
        return None
    return RestartStuckWorker(ws.address) if ws.stuck_runs else None


def given_up_runs(state: SchedulerState) -> dict[str, list[Key]]:
    """Return address -> keys of runs that were given up, without workers that have none."""
    found = {}
    for ws in state.workers.values():
        if ws.extra_runs:
            keys = [key for key in ws.extra_runs if not _is_second_run(state, ws, key)]
            if keys:
                found[ws.address] = keys
    return found


def refresh_extra_runs(
    turn: Turn, ws: WorkerState, executing: Mapping[Key, float], seconds: float
) -> None:
    """Update which extra runs occupy threads of `ws`, from what its heartbeat reports.

    Charge those that were given up for the `seconds` since the last heartbeat.
    """
    state = turn.state
    _find_released_runs(state, ws, executing, seconds)
    ended = []
    for key, account in ws.extra_runs.items():
        if _is_second_run(state, ws, key):
            continue
        if key in executing:
            charges.charge(state, account, min(executing[key], seconds))
        else:
            ended.append(key)
    for key in ended:
        remove_extra_run(state, ws, key)
    if ended:
        use_worker(turn, ws)
    _recall_if_occupied(turn, ws)


def _find_released_runs(
    state: SchedulerState, ws: WorkerState, executing: Mapping[Key, float], seconds: float
) -> None:
    """Record the runs of released tasks that go on.

    Only the next heartbeat, in about `seconds`, will report that they have ended. So the thread of
    a run that has not taken as long yet stays in use.
    """
    for key, account in list(ws.released_runs.items()):
        if key not in executing:
            del ws.released_runs[key]
        elif executing[key] >= max(seconds, LONG_SECONDS):
            del ws.released_runs[key]
            if key not in ws.extra_runs:
                add_extra_run(state, ws, key, account)
        elif key not in ws.extra_runs:
            charges.charge(state, account, min(executing[key], seconds))


def _is_second_run(state: SchedulerState, ws: WorkerState, key: Key) -> bool:
    """Return whether `key` has its second run on `ws`, which may not have started yet."""
    ts = state.tasks.get(key)
    second = second_run(ts.policies) if ts is not None else None
    return second is not None and second.address == ws.address


def _recall_if_occupied(turn: Turn, ws: WorkerState) -> None:
    """Ask `ws` to give back the tasks that it has not started if all its threads are occupied.

    They stay while there is no other worker.
    """
    if not (ws.extra_runs and ws.processing and turn.state.running):
        return
    if ws.status == "running" and not is_available(ws):
        recall_tasks(turn, ws, reversed(ws.processing))
