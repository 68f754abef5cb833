"""Timeouts, deadlines and delays of tasks, which are checked with each tick.

The time that a run takes is known from heartbeats, which report since when each task executes. If a
worker sends none, its tasks are assumed to execute since its last heartbeat, or since they were
sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.scheduler.core.config import heartbeat_interval
from paceline.scheduler.core.lifecycle.failures import Failure
from paceline.scheduler.core.lifecycle.removal import blamed_tasks
from paceline.scheduler.core.lifecycle.retries import TIMEOUT_ERROR, check_retry, retry_later
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run, transition
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.task_states import ACTIVE_STATES
from paceline.scheduler.core.task_policy import TaskPolicy
from paceline.scheduler.core.turn import WARNING, Turn

from .extra_runs import record_stuck_run, restart_stuck_workers
from .second_runs import check_stragglers

#: A worker is silent after this many heartbeat intervals and seconds without a heartbeat.
SILENT_INTERVALS, SILENT_SECONDS = 2, 0.5


def check_policies(turn: Turn) -> None:
    """Check the timeouts, deadlines and delayed retries of all tasks."""
    policies = turn.state.task_policies
    if policies.has_timeouts:
        _check_timeouts(turn)
    check_stragglers(turn)
    if policies.alarms and policies.alarms[0][0] <= turn.now:
        for ts in policies.due(turn.now, turn.budget):
            _check_task(turn, ts)
    if turn.state.config.restart_stuck_workers:
        restart_stuck_workers(turn)


# ------------------------------------------------------------------ timeouts


def _check_timeouts(turn: Turn) -> None:
    """Give up the runs that take longer than their timeouts."""
    state = turn.state
    silence = SILENT_SECONDS + SILENT_INTERVALS * heartbeat_interval(len(state.workers))
    late: list[tuple[TaskState, WorkerState, float]] = []
    for ws in state.workers.values():
        silent = turn.now - ws.last_seen > silence
        tasks: Iterable[TaskState] = blamed_tasks(ws) if silent else ws.executing
        for ts in tasks:
            policies = ts.policies
            if policies is None or not policies.policy.timeout_seconds:
                continue
            if ts.processing_on is ws and (silent or ws.executing_at >= policies.sent_at):
                seconds = running_seconds(ts, ws, turn.now)
                if seconds >= policies.policy.timeout_seconds:
                    late.append((ts, ws, seconds))
    for ts, ws, seconds in late:
        if ts.processing_on is ws:
            policies = ts.policies
            assert policies is not None
            text = (
                f"Task {ts.key!r} was executing for {seconds:.1f} s on {ws.address}, "
                f"longer than its timeout of {policies.policy.timeout_seconds:g} s"
            )
            _fail(turn, ts, text, _is_retried(ts, policies.policy))
    if late:
        fill_slots(turn)


def _is_retried(ts: TaskState, policy: TaskPolicy) -> bool:
    """Return whether `ts` is retried after a timeout."""
    names = policy.retry_on
    return ts.retries > 0 and (names is None or any(name in TIMEOUT_ERROR for name in names))


def running_seconds(ts: TaskState, ws: WorkerState, now: float) -> float:
    """Return the seconds for which `ws` has been executing `ts`, or an upper bound if unknown."""
    policies = ts.policies
    started = ws.executing_at - ws.executing.get(ts, 0.0)
    return now - (started if policies is None else max(started, policies.sent_at))


# ------------------------------------------------------------------ alarms


def _check_task(turn: Turn, ts: TaskState) -> None:
    """Check `ts`, whose alarm is due."""
    policies = ts.policies
    if policies is None or turn.state.tasks.get(ts.key) is not ts:
        return
    if ts.state not in ACTIVE_STATES:
        if ts.state == "released" and turn.state.deferred.commits:  # its graph may be under way
            turn.state.task_policies.set_alarm(turn.now, ts)
        return
    retry = policies.pending_retry
    deadline = policies.policy.deadline
    if deadline and turn.now >= deadline:
        ws = ts.processing_on
        where = f" on {ws.address}" if ws is not None else ""
        when = policies.policy.deadline_text
        _fail(turn, ts, f"Task {ts.key!r} was {ts.state}{where} at its deadline, {when}")
        fill_slots(turn)
    elif retry is not None and turn.now >= retry.until:
        check_retry(turn, ts, policies, retry)


def _fail(turn: Turn, ts: TaskState, text: str, retry: bool = False) -> None:
    """Give up the run of `ts`, and mark it as erred with a TimeoutError, or retry it elsewhere."""
    ws = ts.processing_on
    turn.log(WARNING, text)
    recs: Recs = {}
    is_running = ws is not None and may_be_running(ts, ws)
    has_seceded = ws is not None and ts in ws.long_running
    policies = ts.policies
    if is_running and policies is not None:
        policies.given_up_runs.append(ts.run_id)
    if retry and ws is not None and policies is not None:
        policies.avoided[ws.address] = None  # there, the same run would go on
        retry_later(turn, ts, policies, ws.address, recs)
    else:
        failure = Failure(
            cause=ts,
            worker=ws.address if ws is not None else None,
            exception=turn.state.errors.timeout_error(text),
            exception_text=f"TimeoutError({text!r})",
        )
        transition(turn, ts, "erred", recs, failure)
        if ws is not None:
            turn.free_keys(ws.address, ts.key)
    if ws is not None and turn.state.workers.get(ws.address) is ws:
        if is_running:
            record_stuck_run(turn, ws, ts)
        elif not has_seceded:
            ws.released_runs[ts.key] = ts.account
    run(turn, recs)


def may_be_running(ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ts` may occupy a thread of `ws`, to which it was sent."""
    policies = ts.policies
    if ts in ws.long_running:
        return False
    return ts in ws.executing or (policies is not None and ws.executing_at < policies.sent_at)
