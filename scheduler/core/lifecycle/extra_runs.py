"""Runs that occupy threads of workers besides those of ``WorkerState.processing``.

They reduce the number of tasks that a worker is sent; without a thread left it is not available.
They count for the caps of their share groups.

A thread of a worker cannot be stopped. So the run of a task that times out or is released, for
example because its client cancelled it, goes on.
"""

from __future__ import annotations

from paceline.protocol.keys import Key
from paceline.scheduler.core.state.model import WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import Account
from paceline.scheduler.core.state.workers.loads import is_available


def add_extra_run(state: SchedulerState, ws: WorkerState, key: Key, account: Account) -> None:
    """Record that a run of `key` that is not in `processing` occupies a thread of `ws`."""
    remove_extra_run(state, ws, key)
    ws.extra_runs[key] = account
    state.shares.start_extra_run(account.share, ws)
    refresh_running(state, ws)


def remove_extra_run(state: SchedulerState, ws: WorkerState, key: Key) -> None:
    """Record that the run of `key` no longer occupies a thread of `ws`, if it did."""
    account = ws.extra_runs.pop(key, None)
    if account is not None:
        ws.stuck_runs.pop(key, None)
        state.shares.end_extra_run(account.share, ws)
        refresh_running(state, ws)


def refresh_running(state: SchedulerState, ws: WorkerState) -> None:
    """Add `ws` to the running workers if it is available, or remove it."""
    if state.workers.get(ws.address) is not ws:
        return
    if is_available(ws):
        state.running.setdefault(ws, None)
        state.loads.touch(ws)
    else:
        state.running.pop(ws, None)
        state.loads.remove(ws)
        state.queued.disband(ws)
