"""Remove workers and clients, with a limited number of tasks per turn.

A removed worker's data is removed at once. The tasks it was processing stay assigned to it until a
turn releases them, or marks them as erred if they were blamed too often. A removed client's
desires stay until a turn releases them.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Any

from paceline.protocol.keys import Key
from paceline.protocol.messages import CancelledKeys
from paceline.scheduler.core.policy import admission
from paceline.scheduler.core.state.admission import MEASURED_SECONDS, UNLIMITED_NBYTES
from paceline.scheduler.core.state.deferred import Recs, WorkerRemoval
from paceline.scheduler.core.state.estimates import task_memory
from paceline.scheduler.core.state.model import ClientState, TaskState, WorkerState
from paceline.scheduler.core.turn import ERROR, KEYS_IN_LOG_LINE, WARNING, Turn

from . import accounting, charges
from .failures import Failure
from .recommendations import priority_of, release_desire
from .transitions import run, transition

#: A task errs, blamed or not, after this many times ``allowed_failures + 1`` unexpected losses of
#: its workers.
WORKER_LOSSES_FACTOR = 3
#: Average duration in seconds up to which tasks are quick: several can have finished between two
#: messages of their worker.
QUICK_SECONDS = 0.01
#: Maximum number of tasks that are blamed because the tasks before them are quick.
UNREPORTED_MAX = 10
#: Tasks examined for one report of lost data and its dependents; beyond it, they are reported as
#: later turns forget them.
LOST_REPORT_MAX = 20_000


# ------------------------------------------------------------------ tasks of removed workers


def begin_worker_removal(turn: Turn, worker_removal: WorkerRemoval, recs: Recs) -> None:
    """Blame tasks for the removal, and reschedule as many as this turn has budget for.

    Recommendations for them are added to `recs`; the rest of the removal is deferred.
    """
    state = turn.state
    if not worker_removal.expected:
        _blame(turn, worker_removal)
    _leave(turn, worker_removal, recs)
    if worker_removal.done < len(worker_removal.tasks):
        state.deferred.worker_removals.append(worker_removal)
        turn.wants_continue()


def _blame(turn: Turn, worker_removal: WorkerRemoval) -> None:
    """Blame tasks for the removal; those that get a whole worker are not blamed the first time."""
    state, ws = turn.state, worker_removal.ws
    blamed = blamed_tasks(ws)
    nbytes = admission.usable_nbytes(state, ws)
    if worker_removal.of_memory:
        learn_peaks(blamed, nbytes)
    is_retried = worker_removal.of_memory and state.config.whole_worker_retry
    first = []
    for ts in blamed:
        if is_retried and not ts.actor:
            state.whole_workers.due[ts] = None
            if ts not in state.whole_workers.retried:
                first.append(ts)
                continue
        ts.suspicious += 1
        ts.group.prefix.suspicious += 1
    if first:
        keys = ", ".join([str(ts.key) for ts in first[:KEYS_IN_LOG_LINE]])
        turn.log(
            WARNING,
            f"Worker {ws.address} ran out of memory; retrying each task that may be the cause "
            f"alone on a worker: {keys}",
        )
    elif not is_retried:
        state.whole_workers.note_loss(ws, blamed, nbytes, turn.now)


def learn_peaks(blamed: list[TaskState], nbytes: float) -> None:
    """Raise the peaks of the tasks `blamed`, whose worker ran out of memory.

    Afterwards a worker on which tasks may use `nbytes` bytes is expected to have memory for all of
    them but one. Tasks that are too short to be measured keep their peak, because no heartbeat
    would correct it.
    """
    if nbytes >= UNLIMITED_NBYTES / 2:  # the worker has no memory limit
        return
    for ts in blamed:
        if not 0 <= ts.group.prefix.duration_average < MEASURED_SECONDS:
            each = nbytes / float(max(1, len(blamed) - 1))
            for memory in (ts.group.prefix.memory, task_memory(ts.group)):  # may be the same
                memory.add_peak(max(each, memory.peak_nbytes))


def continue_worker_removals(turn: Turn) -> None:
    """Reschedule further tasks of removed workers."""
    removals = turn.state.deferred.worker_removals
    while removals and turn.budget > 0:
        worker_removal = removals[0]
        recs: Recs = {}
        _leave(turn, worker_removal, recs)
        if worker_removal.done >= len(worker_removal.tasks):
            removals.popleft()
        run(turn, recs)
    if removals:
        turn.wants_continue()


def _leave(turn: Turn, worker_removal: WorkerRemoval, recs: Recs) -> None:
    """Add recommendations for the next tasks of `worker_removal` to `recs`."""
    first = worker_removal.done
    worker_removal.done = first + max(turn.budget, 1)
    ws = worker_removal.ws
    # other tasks have been rescheduled since
    tasks = [
        ts for ts in worker_removal.tasks[first : worker_removal.done] if ts.processing_on is ws
    ]
    for ts in reversed(tasks):
        recs[ts] = "released"
    if not worker_removal.expected:
        for ts in tasks:
            _count_worker_loss(turn, ws, ts, recs)


def blamed_tasks(ws: WorkerState) -> list[TaskState]:
    """Return the tasks that may have caused the loss of `ws`.

    These are the tasks that its last heartbeat reported as executing, and those that can have
    started after it:

    - For each thread that was free then, the task that was sent first. It runs even if tasks of
      higher priority have been sent since.
    - For each thread, the task with the highest priority. Quick tasks do not take up a thread,
      because they can have finished without a report.

    Stock blames every task assigned to the worker.
    """
    executing = [ts for ts in ws.executing if ts in ws.processing]
    others = [ts for ts in ws.processing if ts not in ws.executing]
    started = dict.fromkeys(others[: max(0, ws.nthreads - len(executing))])
    n_threads = ws.nthreads
    for ts in heapq.nsmallest(ws.nthreads + UNREPORTED_MAX, others, key=priority_of):
        if n_threads == 0:
            break
        started[ts] = None
        duration = ts.group.prefix.duration_average
        if not 0 <= duration <= QUICK_SECONDS:
            n_threads -= 1
    return executing + list(started)


def _count_worker_loss(turn: Turn, ws: WorkerState, ts: TaskState, recs: Recs) -> None:
    """Count the loss of `ws` for `ts`; mark `ts` as erred if it was blamed or lost too often."""
    state = turn.state
    details = ts.ensure_details()
    details.worker_losses += 1
    allowed = state.config.allowed_failures
    losses = details.worker_losses
    if ts.suspicious <= allowed and losses < WORKER_LOSSES_FACTOR * (allowed + 1):
        return
    del recs[ts]
    failure = Failure(
        cause=ts,
        worker=ws.address,
        exception=state.errors.killed_worker(ts.key, worker_facts(ws), allowed),
        exception_text="KilledWorker",
    )
    turn.log(
        ERROR,
        f"Task {ts.key!s} marked as failed because {max(ts.suspicious, losses)} workers died"
        " while trying to run it",
    )
    transition(turn, ts, "erred", recs, failure)


def worker_facts(ws: WorkerState) -> dict[str, Any]:
    """Return the attributes of `ws` for errors and events."""
    return {
        "address": ws.address,
        "name": ws.name,
        "status": ws.status,
        "nthreads": ws.nthreads,
        "memory_limit": ws.memory_limit,
        "local_directory": ws.local_directory,
        "services": ws.services,
        "nanny": ws.nanny,
        "pid": ws.pid,
        "server_id": ws.server_id,
        "extra": ws.extra,
        "last_seen": ws.last_seen,
    }


# ------------------------------------------------------------------ data of removed workers


def lose_data(turn: Turn, ws: WorkerState, recs: Recs) -> tuple[list[Key], list[Key]]:
    """Remove `ws` from ``who_has`` of its tasks.

    Recommendations for tasks without another replica are added to `recs`, or deferred if they
    exceed the budget.

    Returns:
        Keys that are going to be recomputed, and keys of data that is lost.
    """
    actors = [ts for ts in ws.actors if ts in ws.has_what]
    alone = accounting.remove_all_data(turn.state, ws)
    if actors:
        recs.update(dict.fromkeys(actors, "erred"))
        alone = [ts for ts in alone if ts not in ws.actors]
    recomputed = [ts.key for ts in alone if ts.run_spec is not None]
    lost = [ts for ts in alone if ts.run_spec is None]
    _report_lost_data(turn, lost)
    if len(alone) > max(turn.budget, 0):
        turn.state.deferred.releases.extend(alone)
        turn.wants_continue()
    else:
        for ts in alone:
            recs[ts] = "forgotten" if ts.run_spec is None else "released"
    return recomputed, [ts.key for ts in lost]


def _report_lost_data(turn: Turn, lost: list[TaskState]) -> None:
    """Report `lost` tasks and their dependents to their clients if one turn cannot forget them all.

    Stock reports them together. Without this report, a client that sees the lost data could still
    find dependents pending, because later turns forget and report them one by one.
    """
    reports: dict[ClientState, list[Key]] = {}
    found = dict.fromkeys(lost)
    queue = list(lost)
    for ts in queue:  # grows
        for cs in ts.who_wants:
            reports.setdefault(cs, []).append(ts.key)
        for dts in ts.dependents:
            if dts not in found and dts.state not in ("memory", "erred"):
                found[dts] = None
                queue.append(dts)
        if len(queue) > LOST_REPORT_MAX:
            break
    if len(queue) <= turn.budget:
        return
    for cs, keys in reports.items():
        turn.to_client(cs.client_key, CancelledKeys(keys=keys, reason="lost data"))


# ------------------------------------------------------------------ clients


def begin_client_removal(turn: Turn, cs: ClientState) -> None:
    """Release the desires of `cs`, the latest first."""
    turn.state.deferred.client_removals.append(cs)
    continue_client_removals(turn)


def continue_client_removals(turn: Turn) -> None:
    """Release further desires of removed clients."""
    removals = turn.state.deferred.client_removals
    while removals and turn.budget > 0:
        cs = removals[0]
        recs: Recs = {}
        batch = list(islice(reversed(cs.wants_what), turn.budget))
        for ts in batch:
            release_desire(ts, cs, recs)
        run(turn, recs)
        turn.budget -= max(1, len(batch))
        if not cs.wants_what and not _requeue_shared(turn):
            removals.popleft()
    if removals:
        turn.wants_continue()


def _requeue_shared(turn: Turn) -> bool:
    """Queue tasks of clients that left in the groups of other clients that need them.

    Otherwise they wait for the caps of their groups. Return whether there may be more of them.
    """
    state = turn.state
    recs: Recs = {}
    n = 0
    for account in list(state.shares.accounts.values()):
        if account.client in state.clients or not account.n_tasks or not account.share.n_queued:
            continue
        queue = state.queued.queues.get(account.share, ())
        shared = (
            ts for ts in queue if ts.account is account and charges.remaining_account(state, ts)
        )
        for ts in list(islice(shared, max(turn.budget, 1))):
            transition(turn, ts, "waiting", recs)
            n += 1
    run(turn, recs)
    return n > 0
