"""Failures of tasks: record them, report them to clients, and clear them when tasks are retried."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from paceline.protocol.messages import TaskErred, TaskErredReport
from paceline.protocol.payload import Payload
from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.event_log import ErredTask
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.text import format_nbytes
from paceline.scheduler.core.turn import ERROR, Turn

from .recommendations import erred_dependency


@dataclass(slots=True)
class Failure:
    """The reason why a task errs.

    Attributes:
        cause: the task that failed.
        worker: address of the worker on which it failed, if any.
        exception, traceback: serialized; None if ``cause`` has them.
        exception_text, traceback_text: the same as text.
        report: the worker's message; None if no worker reported the failure.
    """

    cause: TaskState
    worker: str | None = None
    exception: Payload | None = None
    traceback: Payload | None = None
    exception_text: str | None = None
    traceback_text: str | None = None
    report: TaskErred | None = None


def inherited_failure(ts: TaskState) -> Failure | None:
    """Return the failure of a dependency of `ts`; None if that is being retried."""
    blame = erred_dependency(ts)
    return None if blame is None else Failure(cause=blame)


def record_failure(state: SchedulerState, ts: TaskState, failure: Failure, now: float) -> TaskState:
    """Store `failure` in `ts` and in the history of errors. Return the task to blame."""
    details = ts.ensure_details()
    if failure.worker is not None:
        details.erred_on = details.erred_on or {}
        details.erred_on[failure.worker] = None
    if failure.exception is not None:
        details.exception = failure.exception
        details.exception_text = failure.exception_text
    if failure.traceback is not None:
        details.traceback = failure.traceback
        details.traceback_text = failure.traceback_text
    details.exception_blame = failure.cause
    state.erred_tasks.appendleft(
        ErredTask(
            ts.key,
            now,
            tuple(details.erred_on or ()),
            failure.exception_text or "",
            failure.traceback_text or "",
        )
    )
    return failure.cause


def clear_failure(
    turn: Turn, ts: TaskState, recs: Recs, holders: Collection[WorkerState] = ()
) -> None:
    """Clear the failure of `ts`, and recommend retrying dependents that failed because of it.

    Workers that remember the failure are to forget the key, except those in `holders`, which have
    received data for it.
    """
    details = ts.ensure_details()
    details.exception = details.traceback = None
    details.exception_text = details.traceback_text = None
    details.exception_blame = None
    if details.policies is not None:
        details.policies.failed_runs = 0
    for dts in ts.dependents:
        if dts.state == "erred":
            recs[dts] = "waiting"
    for address in details.erred_on or ():
        ws = turn.state.workers.get(address)
        if ws is not None and ws not in holders:
            turn.free_keys(address, ts.key)
    details.erred_on = None


def report_erred(turn: Turn, ts: TaskState, blame: TaskState) -> None:
    """Report the failure of `ts`, caused by `blame`, to the clients that want `ts`."""
    if ts.who_wants:
        report = TaskErredReport(key=ts.key, exception=blame.exception, traceback=blame.traceback)
        turn.to_clients(ts.who_wants, report)


def huge_inputs_failure(turn: Turn, ts: TaskState, ws: WorkerState) -> Failure:
    """Return and log the failure of `ts`, whose inputs exceed the memory limit of `ws`."""
    nbytes = estimates.inputs_nbytes(turn.state, ts)
    text = (
        f"Task {ts.key!r} has {format_nbytes(nbytes)} worth of input "
        f"dependencies, but worker {ws.address} has memory_limit set to "
        f"{format_nbytes(ws.memory_limit)}."
    )
    if not ts.dependents:
        text += (
            " It seems like you called client.compute() on a huge collection. "
            "Consider writing to distributed storage or slicing/reducing first."
        )
    turn.log(ERROR, text)
    return Failure(
        cause=ts,
        worker=ws.address,
        exception=turn.state.errors.memory_error(text),
        exception_text=f"MemoryError({text!r})",
    )
