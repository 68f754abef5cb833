"""Compare what a worker reports of its state with the scheduler's state, and repair differences.

The report is older than the messages that are in flight. So it is enclosed by two barriers on the
worker's stream. When the first one returns, the worker has handled all earlier messages. When the
second one returns, all that the worker sent before its report has been handled. What the scheduler
believed before the first barrier and still believes after the second one, the report must confirm.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from paceline.protocol.keys import Key
from paceline.protocol.messages import StealRequest
from paceline.scheduler.core.instructions import MatchError, RestartStuckWorker
from paceline.scheduler.core.lifecycle.retries import match_request
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.workers.comparison import Comparison
from paceline.scheduler.core.stealing.requests import BARRIER_KEY
from paceline.scheduler.core.stimuli import EndComparison, ReportedTask, SettleWorker, WorkerReport
from paceline.scheduler.core.ticks.extra_runs import unfinished_restart
from paceline.scheduler.core.turn import INFO, WARNING, Registry, Turn

from .replicas import add_keys, drop_replicas

#: States on a worker of a task that the worker is going to finish.
UNDERWAY = frozenset({"waiting", "ready", "constrained", "executing", "long-running"})
#: What a report contains of a task that the worker does not know.
UNKNOWN: ReportedTask = ("", None, -1)
#: Kind of a repair -> level of its log line, difference of the worker, and repair. Unneeded results
#: are expected after a death.
REPAIRS: Final = {
    "rescheduled": (WARNING, "does not run the task", "rescheduling it"),
    "replica-removed": (WARNING, "does not hold the result", "removing the replica"),
    "replica-added": (WARNING, "also holds the result", "adding the replica"),
    "freed": (INFO, "holds the unneeded result", "freeing it"),
}


def unfinished_instructions(state: SchedulerState) -> list[MatchError | RestartStuckWorker]:
    """Return the instructions that another process of the scheduler may not have carried out."""
    tasks = dict.fromkeys(ts for _, _, ts in state.task_policies.alarms)
    found: list[MatchError | RestartStuckWorker | None] = [match_request(ts) for ts in tasks]
    found += [unfinished_restart(state, ws) for ws in state.workers.values()]
    return [instruction for instruction in found if instruction is not None]


def handle_settle_worker(turn: Turn, command: SettleWorker) -> None:
    """Send the first barrier. Reply when it has returned."""
    ws = turn.state.workers.get(command.address)
    if ws is None:
        turn.reply(turn.request_id, None)
        return
    comparison = turn.state.comparisons.by_worker.setdefault(ws.address, Comparison())
    comparison.processing = {ts: ts.run_id for ts in ws.processing}
    comparison.has_what = dict(ws.has_what)
    comparison.report = None
    _send_barrier(turn, ws, comparison)


def handle_worker_report(turn: Turn, report: WorkerReport) -> None:
    """Send the second barrier. Compare, repair and reply when it has returned."""
    ws = turn.state.workers.get(report.address)
    comparison = turn.state.comparisons.by_worker.get(report.address)
    if ws is None or comparison is None:
        turn.reply(turn.request_id, None)
        return
    comparison.report = report
    _send_barrier(turn, ws, comparison)


def handle_end_comparison(turn: Turn, command: EndComparison) -> None:
    """Forget a comparison."""
    turn.state.comparisons.by_worker.pop(command.address, None)


def _send_barrier(turn: Turn, ws: WorkerState, comparison: Comparison) -> None:
    """Send a message that the worker answers after it has handled all earlier ones.

    A worker answers a ``steal-request`` for an unknown key, and does nothing else.
    """
    comparison.barriers.append(partial(_barrier_returned, turn.request_id))
    turn.to_worker(ws.address, StealRequest(key=BARRIER_KEY, stimulus_id=turn.stimulus_id))


def _barrier_returned(request_id: int, turn: Turn) -> None:
    """Continue after a barrier. The source of ``turn`` is the worker."""
    comparison = turn.state.comparisons.by_worker[turn.source]
    if comparison.report is not None and not comparison.barriers:
        del turn.state.comparisons.by_worker[turn.source]
        _repair(turn, turn.state.workers[turn.source], comparison)
    turn.reply(request_id, None)


def _repair(turn: Turn, ws: WorkerState, believed: Comparison) -> None:
    report = believed.report
    assert report is not None
    _reschedule_lost(turn, ws, believed, report)
    _remove_replicas(turn, ws, believed, report)
    _use_results(turn, ws, believed, report)
    fill_slots(turn)


def _count(turn: Turn, ws: WorkerState, key: Key, kind: str) -> None:
    """Count and log a repair."""
    counts = turn.state.comparisons.repair_counts
    counts[kind] = counts.get(kind, 0) + 1
    level, difference, repair = REPAIRS[kind]
    turn.log(level, f"Worker {ws.address} {difference} {key!r}; {repair}")


def _reschedule_lost(
    turn: Turn, ws: WorkerState, believed: Comparison, report: WorkerReport
) -> None:
    """Reschedule tasks that the worker neither runs nor is about to run."""
    lost: list[TaskState] = []
    for ts, run_id in believed.processing.items():
        if ts.processing_on is ws and ts.run_id == run_id:
            state, following, _ = report.tasks.get(ts.key, UNKNOWN)
            if state not in UNDERWAY and (state, following) != ("resumed", "waiting"):
                lost.append(ts)
                _count(turn, ws, ts.key, "rescheduled")
    run(turn, dict.fromkeys(lost, "released"))


def _remove_replicas(
    turn: Turn, ws: WorkerState, believed: Comparison, report: WorkerReport
) -> None:
    """Remove the replicas that the worker does not hold. Lost results are computed again."""
    held = frozenset(report.keys)
    missing: list[Key] = []
    for ts in believed.has_what:
        if ts in ws.has_what and ts not in ws.actors and ts.key not in held:
            missing.append(ts.key)
            _count(turn, ws, ts.key, "replica-removed")
            if report.tasks.get(ts.key, UNKNOWN)[0] == "memory":  # it believes that it does
                turn.free_keys(ws.address, ts.key)
    drop_replicas(turn, ws.address, missing)


def _use_results(turn: Turn, ws: WorkerState, believed: Comparison, report: WorkerReport) -> None:
    """Add replicas of results that the worker holds. Free results that are not needed.

    Unknown data that the worker did not compute stays: a client may be scattering it.
    """
    state = turn.state
    known = {ts.key for ts in believed.has_what}
    known.update([ts.key for ts in believed.processing])
    for key in dict.fromkeys(report.keys):
        ts = state.tasks.get(key)
        if key in known or (ts is not None and (ts in ws.has_what or ts.processing_on is ws)):
            continue
        if ts is not None and ts.state == "memory":
            add_keys(turn, ws, [key])
            _count(turn, ws, key, "replica-added")
        elif ts is not None or report.tasks.get(key, UNKNOWN)[2] >= 0:
            turn.free_keys(ws.address, key)
            _count(turn, ws, key, "freed")


#: Message class -> handler.
HANDLERS: Registry = {
    SettleWorker: handle_settle_worker,
    WorkerReport: handle_worker_report,
    EndComparison: handle_end_comparison,
}
