"""Charge tasks to accounts: the account of a task, and the time that it has taken."""

from __future__ import annotations

from paceline.protocol.messages import TaskErred
from paceline.scheduler.core.state.estimates import data_nbytes
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import Account

#: Tasks searched for a client that needs a task whose client left.
DEPENDENTS_MAX = 100


def set_account(state: SchedulerState, ts: TaskState, account: Account) -> None:
    """Charge `ts`, which is neither queued nor on a worker, to `account`, also for its data."""
    nbytes = data_nbytes(state, ts) * len(ts.who_has)
    ts.account.n_tasks -= 1
    ts.account.nbytes -= nbytes
    ts.account = account
    account.n_tasks += 1
    account.nbytes += nbytes


def remaining_account(state: SchedulerState, ts: TaskState) -> Account | None:
    """Return the account of a connected client that needs `ts` or a dependent, or None."""
    tasks = {ts: None}
    queue = [ts]
    for each in queue:  # grows
        for cs in each.who_wants:
            account = state.shares.accounts.get((cs.client_key, ""))
            if account is not None and state.clients.get(cs.client_key) is cs:
                return account
        for dts in each.dependents:
            if dts not in tasks and len(tasks) < DEPENDENTS_MAX:
                tasks[dts] = None
                queue.append(dts)
    return None


def replace_account(state: SchedulerState, ts: TaskState) -> None:
    """Charge `ts` to another client that needs it if its client left."""
    if ts.account.client not in state.clients:
        account = remaining_account(state, ts)
        if account is not None:
            set_account(state, ts, account)


def charge(state: SchedulerState, account: Account, seconds: float) -> None:
    """Charge `seconds` of compute time of a run to `account`."""
    if seconds > 0:
        account.thread_seconds += seconds
        account.share.usage += seconds * state.shares.scale


def charge_failed(state: SchedulerState, ts: TaskState, ws: WorkerState, report: TaskErred) -> None:
    """Charge the compute time of the run of `ts` on `ws` that failed, if `report` has it."""
    spans = [each for each in report.startstops if each.action == "compute"]
    if spans:
        ws.executing.pop(ts, None)
        if ts not in ws.long_running:
            charge(state, ts.account, sum([each.stop - each.start for each in spans]))


def charge_ended(state: SchedulerState, ts: TaskState, ws: WorkerState) -> None:
    """Charge a run of `ts` on `ws` that ends without a result, as of the last heartbeat of `ws`."""
    seconds = ws.executing.pop(ts, 0.0)
    if ts not in ws.long_running:
        charge(state, ts.account, seconds)


def charge_seceded(state: SchedulerState, ts: TaskState, ws: WorkerState, seconds: float) -> None:
    """Charge the `seconds` after which `ts` seceded on `ws`, instead of what was expected."""
    state.shares.refund(ts.account.share, ws.processing[ts])
    ws.processing[ts] = 0.0
    charge(state, ts.account, seconds)


def note_executing(state: SchedulerState, ts: TaskState, ws: WorkerState, seconds: float) -> None:
    """Charge the time by which `ts` has been executing on `ws` for longer than was expected.

    A task that seceded occupies no thread of the pool and is not charged any more.
    """
    expected = ws.processing.get(ts, seconds)
    if seconds > expected and ts not in ws.long_running:
        ws.processing[ts] = seconds
        ts.account.share.usage += (seconds - expected) * state.shares.scale
