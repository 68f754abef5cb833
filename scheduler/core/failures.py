"""Failures of tasks: what is written down of them, told to clients, and taken back when they are tried again.

Must not know: when a task fails; exceptions, which pass closed.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.protocol.messages import TaskErred, TaskErredReport
from paceline.protocol.payload import Payload

from .needs import Recommendations, erred_dependency
from .state import ErredTask, SchedulerState, TaskState, WorkerState
from .turn import Turn


@dataclass(slots=True)
class Failure:
    """Why a task goes to erred.

    Attributes:
        cause: the task that failed.
        worker: address of the worker on which it did, if any.
        exception, traceback: closed; None where ``cause`` holds them.
        exception_text, traceback_text: in words.
        report: what its worker said of it; None where no worker did.
    """

    cause: TaskState
    worker: str | None = None
    exception: Payload | None = None
    traceback: Payload | None = None
    exception_text: str | None = None
    traceback_text: str | None = None
    report: TaskErred | None = None


def inherited_failure(ts: TaskState) -> Failure | None:
    """The failure of a dependency; None where it is tried again by now."""
    blame = erred_dependency(ts)
    return None if blame is None else Failure(cause=blame)


def record_failure(state: SchedulerState, ts: TaskState, failure: Failure, now: float) -> TaskState:
    """Write into the task, and into the history of errors, why it failed. Returns the task to blame.

    Args:
        now: seconds since the epoch.
    """
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


def clear_failure(turn: Turn, ts: TaskState, recs: Recommendations) -> None:
    """An erred task has not failed any more; what failed because of it is tried again."""
    details = ts.ensure_details()
    details.exception = details.traceback = None
    details.exception_text = details.traceback_text = None
    details.exception_blame = None
    for dts in ts.dependents:
        if dts.state == "erred":
            recs[dts] = "waiting"
    for address in details.erred_on or ():
        if address in turn.state.workers:
            turn.free_keys(address, ts.key)
    details.erred_on = None


def report_erred(turn: Turn, ts: TaskState, blame: TaskState) -> None:
    if ts.who_wants:
        report = TaskErredReport(key=ts.key, exception=blame.exception, traceback=blame.traceback)
        for cs in ts.who_wants:
            turn.to_client(cs.client_key, report)


def huge_inputs_failure(turn: Turn, ts: TaskState, ws: WorkerState) -> Failure:
    """The failure of a task whose inputs are larger than its worker's memory."""
    nbytes = sum([dts.nbytes for dts in ts.dependencies])
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
    turn.log(40, text)
    return Failure(
        cause=ts,
        worker=ws.address,
        exception=turn.state.errors.memory_error(text),
        exception_text=f"MemoryError({text!r})",
    )


def format_nbytes(n: float) -> str:
    """Bytes in words, as dask writes them: ``1.00 MiB``."""
    for unit, size in (
        ("PiB", 2**50),
        ("TiB", 2**40),
        ("GiB", 2**30),
        ("MiB", 2**20),
        ("kiB", 2**10),
    ):
        if n >= size * 0.9:
            return f"{n / size:.2f} {unit}"
    return f"{n} B"
