"""Second runs: end them, or let them take the place of the first.

While a task has a second run, it is in ``processing`` of the worker of its first run, and its key
is in ``extra_runs`` of the other worker.
"""

from __future__ import annotations

from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.task_policies import second_run
from paceline.scheduler.core.turn import Turn

from . import accounting, charges
from .extra_runs import add_extra_run


def drop_second_run(turn: Turn, ts: TaskState) -> None:
    """Ask the worker of the second run of `ts` to forget it. Do nothing if there is none.

    The thread counts as occupied until a heartbeat no longer reports the run.
    """
    policies = ts.policies
    if policies is None or policies.second is None:
        return
    address = policies.second.address
    policies.second = None
    del turn.state.task_policies.second_runs[ts]
    ws = turn.state.workers.get(address)
    if ws is not None:
        charges.charge_ended(turn.state, ts, ws)
        turn.free_keys(address, ts.key)


def promote_second_run(turn: Turn, ts: TaskState, is_over: bool = False) -> WorkerState:
    """Make the second run of `ts` its only run, and return its worker, which may be available now.

    `is_over`: the first run has ended.
    """
    state = turn.state
    policies = ts.policies
    assert policies is not None and policies.second is not None, ts
    second = policies.second
    policies.second = None
    del state.task_policies.second_runs[ts]
    first_ws = ts.processing_on
    assert first_ws is not None, ts
    seceded = ts in first_ws.long_running
    charges.charge_ended(state, ts, first_ws)
    accounting.stop_processing(state, ts)
    if state.workers.get(first_ws.address) is first_ws:
        turn.free_keys(first_ws.address, ts.key)
        state.loads.touch(first_ws)
        if not (is_over or seceded):
            add_extra_run(state, first_ws, ts.key, ts.account)
    ws = state.workers[second.address]
    accounting.start_processing(state, ts, ws)
    state.loads.touch(ws)
    ts.run_id = second.run_id
    policies.sent_at = second.sent_at
    return ws


def leave_second_runs(turn: Turn, ws: WorkerState) -> list[WorkerState]:
    """Update the second runs that involve `ws`, which was removed.

    Return the workers of those that replace first runs.
    """
    promoted: list[WorkerState] = []
    for ts in list(turn.state.task_policies.second_runs):
        second = second_run(ts.policies)
        if ts.processing_on is ws:
            promoted.append(promote_second_run(turn, ts))
        elif second is not None and second.address == ws.address:
            drop_second_run(turn, ts)
    return promoted
