"""Retries of tasks whose policies say after which exceptions, when and where.

Exceptions are pickled. A graph compiler unpickles them and compares their classes with
``TaskPolicy.retry_on``. Meanwhile, and until the delay of the retry is over, the task is in state
waiting with a ``PendingRetry``.
"""

from __future__ import annotations

from paceline.protocol.messages import TaskErred
from paceline.scheduler.core.instructions import MatchError
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.task_policies import PendingRetry, TaskPolicies
from paceline.scheduler.core.turn import Turn

from .failures import Failure
from .slots import fill_slots
from .transitions import run, transition

#: Seconds after which the comparison of an exception is requested again.
MATCH_AGAIN_SECONDS = 10.0
#: Upper limits of a delay in seconds, and of the number of retries with which it grows.
DELAY_MAX_SECONDS, GROWTH_MAX = 86_400.0, 60
#: ``TimeoutError`` and its base classes.
TIMEOUT_ERROR = frozenset(
    {
        "builtins.TimeoutError",
        "builtins.OSError",
        "builtins.Exception",
        "builtins.BaseException",
    }
)


def failure_of(ts: TaskState, worker: str, report: TaskErred) -> Failure:
    """Return the failure of `ts` that `worker` has reported."""
    return Failure(
        cause=ts,
        worker=worker,
        exception=report.exception,
        traceback=report.traceback,
        exception_text=report.exception_text,
        traceback_text=report.traceback_text,
        report=report,
    )


def handle_failed_run(
    turn: Turn, ts: TaskState, policies: TaskPolicies, report: TaskErred, recs: Recs
) -> None:
    """Retry `ts`, which failed on the source of `turn` and has retries left, or let it err."""
    if policies.policy.retry_on is None:
        retry_later(turn, ts, policies, turn.source, recs)
    elif report.exception is None:
        transition(turn, ts, "erred", recs, failure_of(ts, turn.source, report))
    else:
        transition(turn, ts, "waiting", recs)
        if ts.state == "waiting":
            policies.pending_retry = PendingRetry(turn.source, 0.0, report)
            request = match_request(ts)
            assert request is not None
            _request_match(turn, ts, policies.pending_retry, request)


def match_request(ts: TaskState) -> MatchError | None:
    """Return the request to compare the exception of `ts`, or None if no retry waits for that."""
    policies = ts.policies
    retry = policies.pending_retry if policies is not None else None
    if policies is None or retry is None or retry.failure is None:
        return None
    report, names = retry.failure, policies.policy.retry_on
    if report.exception is None or names is None:
        return None
    return MatchError(ts.key, report.run_id, report.exception, names)


def _request_match(turn: Turn, ts: TaskState, retry: PendingRetry, request: MatchError) -> None:
    turn.instruct(request)
    retry.until = turn.now + MATCH_AGAIN_SECONDS
    turn.state.task_policies.set_alarm(retry.until, ts)


def retry_later(turn: Turn, ts: TaskState, policies: TaskPolicies, worker: str, recs: Recs) -> None:
    """Retry `ts`, which failed on `worker`, after its delay."""
    policy = policies.policy
    ts.retries -= 1
    if policy.retry_elsewhere:
        policies.avoided[worker] = None
    if ts.state != "waiting":
        transition(turn, ts, "waiting", recs)
    growth = policy.retry_backoff ** min(policies.failed_runs, GROWTH_MAX)
    policies.failed_runs += 1
    seconds = min(
        policy.retry_delay_seconds * growth, policy.retry_delay_max_seconds or DELAY_MAX_SECONDS
    )
    if ts.state != "waiting":
        return
    if seconds:
        policies.pending_retry = PendingRetry(worker, turn.now + seconds)
        turn.state.task_policies.set_alarm(policies.pending_retry.until, ts)
    elif not ts.waiting_count:
        recs[ts] = "processing"


def check_retry(turn: Turn, ts: TaskState, policies: TaskPolicies, retry: PendingRetry) -> None:
    """Retry `ts`, whose delay is over, or request the comparison of its exception again."""
    request = match_request(ts)
    if request is not None:
        _request_match(turn, ts, retry, request)
        return
    policies.pending_retry = None
    if not ts.waiting_count:
        run(turn, {ts: "processing"})
        fill_slots(turn)
