"""Retries of tasks whose exceptions were compared with their policies."""

from __future__ import annotations

from paceline.scheduler.core.lifecycle.retries import failure_of, retry_later
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run, transition
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.stimuli import ErrorMatched
from paceline.scheduler.core.turn import WARNING, Registry, Turn


def handle_error_matched(turn: Turn, message: ErrorMatched) -> None:
    """Retry a task, or mark it as erred, now that its exception was compared."""
    ts = turn.state.tasks.get(message.key)
    policies = ts.policies if ts is not None else None
    retry = policies.pending_retry if policies is not None else None
    if ts is None or policies is None or retry is None:
        return
    report = retry.failure
    if report is None or report.run_id != message.run_id:
        return
    policies.pending_retry = None
    recs: Recs = {}
    if message.matches:
        retry_later(turn, ts, policies, retry.worker, recs)
    else:
        if message.problem:
            turn.log(
                WARNING,
                f"The exception of {ts.key!r} cannot be compared with its annotation retry_on: "
                f"{message.problem}; not retrying it",
            )
        transition(turn, ts, "erred", recs, failure_of(ts, retry.worker, report))
    run(turn, recs)
    fill_slots(turn)


#: Message class -> handler.
HANDLERS: Registry = {
    ErrorMatched: handle_error_matched,
}
