"""Deferred work, and timeouts: silent workers and clients, tasks without workers, idleness."""

from __future__ import annotations

from itertools import takewhile

from paceline.scheduler.core.config import heartbeat_interval
from paceline.scheduler.core.graphs.commit import run_commits
from paceline.scheduler.core.instructions import CloseScheduler, RestartSilentWorkers
from paceline.scheduler.core.lifecycle.availability import refresh_no_workers
from paceline.scheduler.core.lifecycle.deferred import run_deferred
from paceline.scheduler.core.lifecycle.failures import Failure
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run, transition
from paceline.scheduler.core.policy import fairness, placement
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stimuli import Continue, IdleCheck, Tick
from paceline.scheduler.core.text import format_time
from paceline.scheduler.core.ticks.admission import check_memory
from paceline.scheduler.core.ticks.task_policies import check_policies
from paceline.scheduler.core.ticks.whole_workers import check_whole_workers
from paceline.scheduler.core.ticks.worker_ends import check_ends
from paceline.scheduler.core.turn import ERROR, INFO, WARNING, Registry, Turn

from .clients import CLIENT_HEARTBEAT_FACTOR, check_retained
from .shares import check_memory_caps

#: Heartbeats that a worker must have missed before it is removed.
MISSED_HEARTBEATS = 10
#: Minimum silence in seconds before a client's missing heartbeats are logged.
SILENT_CLIENT_SECONDS = 60.0


def handle_continue(turn: Turn, message: Continue) -> None:
    """Continue deferred work: recommendations and removals, then graphs, then queued tasks."""
    run_deferred(turn)
    if turn.state.deferred.commits:
        run_commits(turn)
    fill_slots(turn)


def handle_tick(turn: Turn, message: Tick) -> None:
    """Check every timeout of the core, and refresh worker loads."""
    state = turn.state
    placement.refresh_idle(state)
    state.shares.advance(turn.now)
    for share in state.shares.drop_absent(state.clients):
        state.queued.forget_group(share)
    config = state.config
    if config.watch_worker_ttl:
        _check_worker_ttl(turn)
    if config.watch_no_workers:
        _check_no_workers(turn)
    _check_clients(turn)
    check_retained(turn)
    if config.watch_idle:
        _check_idle(turn, message.active)
    check_policies(turn)
    check_ends(turn)
    check_whole_workers(turn)
    check_memory(turn)
    check_memory_caps(turn)


def handle_check_idle(turn: Turn, message: IdleCheck) -> None:
    """Check for idleness now. The cluster is idle if two checks find no transition between them."""
    _check_idle(turn, message.active)


def _check_worker_ttl(turn: Turn) -> None:
    state = turn.state
    ttl = state.config.worker_ttl_seconds
    if not ttl:
        return
    ttl = max(ttl, MISSED_HEARTBEATS * heartbeat_interval(len(state.workers)))
    silent = []
    for ws in state.workers.values():
        seconds = turn.now - ws.last_seen
        if seconds > ttl:
            silent.append(ws.address)
            what = "attempting restart" if ws.nanny else "removing"
            turn.log(WARNING, f"Worker failed to heartbeat for {seconds:.0f}s; {what}: {ws!r}")
            ws.last_seen = turn.now  # one restart at a time
    if silent:
        turn.log_event(
            "scheduler", {"action": "worker-ttl-timed-out", "workers": silent, "ttl": ttl}
        )
        turn.instruct(RestartSilentWorkers(silent))


def _check_clients(turn: Turn) -> None:
    """Log clients whose heartbeats stopped, once each; as in stock they are not removed.

    This finds clients that hang. If the connection is lost, the operating system reports it.
    """
    clients = turn.state.clients
    limit = max(
        SILENT_CLIENT_SECONDS,
        MISSED_HEARTBEATS * heartbeat_interval(len(clients)) * CLIENT_HEARTBEAT_FACTOR,
    )
    for name, cs in clients.items():
        seconds = turn.now - cs.last_seen
        if seconds > limit and cs.heartbeats and not cs.heartbeat_overdue and not cs.grace_deadline:
            cs.heartbeat_overdue = True
            turn.log(WARNING, f"Client {name} did not send a heartbeat for {seconds:.0f} s")
            turn.log_event(
                ["scheduler", name],
                {"action": "client-heartbeat-overdue", "client": name, "seconds": seconds},
            )


def _check_no_workers(turn: Turn) -> None:
    state = turn.state
    timeout = state.config.no_workers_timeout_seconds
    if timeout is None:
        return
    refresh_no_workers(state, turn.now)
    recs: Recs = {}
    unrunnable, since = state.unrunnable, state.no_workers_since
    late = list(takewhile(lambda ts: turn.now > unrunnable[ts] + timeout, unrunnable))
    if since is not None and turn.now > since + timeout:
        late += state.queued
    if late:
        late = _without_worker(state, late)
    for ts in late:
        _fail_late(turn, ts, timeout, recs)
    run(turn, recs)
    if late:
        keys = [ts.key for ts in late]
        turn.log_event("scheduler", {"action": "no-workers-timeout-exceeded", "keys": keys})
        fill_slots(turn)


def _without_worker(state: SchedulerState, tasks: list[TaskState]) -> list[TaskState]:
    """Return the tasks that no worker will run, also if it is reserved or accepts no tasks now."""
    running = {ws: None for ws in state.workers.values() if ws.status == "running"}
    unavailable = {ws: None for ws in running if ws not in state.running}
    due = state.whole_workers.due
    return [
        ts
        for ts in tasks
        if not fairness.can_run(state, ts, among=running if ts in due else unavailable)
    ]


def _fail_late(turn: Turn, ts: TaskState, timeout: int | float, recs: Recs) -> None:
    """Mark `ts` as erred, which was in no-worker for too long, or queued without workers."""
    state = turn.state
    since = state.no_workers_since
    if ts.state == "no-worker" and (since is None or since >= state.unrunnable[ts]):
        exception = state.errors.no_valid_worker(
            ts.key,
            list(ts.host_restrictions or ()),
            list(ts.worker_restrictions or ()),
            dict(ts.resource_restrictions or {}),
            timeout,
        )
        why, name = "for its restrictions to become satisfied", "NoValidWorkerError"
    else:
        exception = state.errors.no_worker(ts.key, timeout)
        why, name = "without any running workers", "NoWorkerError"
    turn.log(ERROR, f"Task {ts.key!s} marked as failed because it timed out waiting {why}.")
    failure = Failure(cause=ts, exception=exception, exception_text=name)
    transition(turn, ts, "erred", recs, failure)


def is_busy(state: SchedulerState) -> bool:
    """Return whether a graph is pending, or a task waits or runs."""
    is_pending = state.graphs or state.deferred or not state.is_idle
    return bool(is_pending or state.has_waiting_tasks)


def _check_idle(turn: Turn, active: bool) -> None:
    state = turn.state
    has_changed = state.transition_counter != state.idle_transition_counter
    state.idle_transition_counter = state.transition_counter
    if has_changed or active or is_busy(state):
        state.idle_since = None
        return
    if state.idle_since is None:
        state.idle_since = turn.now
        return
    timeout = state.config.idle_timeout_seconds
    if timeout and turn.now > state.idle_since + timeout:
        turn.log(INFO, f"Scheduler closing after being idle for {format_time(timeout)}")
        turn.instruct(CloseScheduler("idle-timeout-exceeded"))


#: Message class -> handler.
HANDLERS: Registry = {
    Continue: handle_continue,
    Tick: handle_tick,
    IdleCheck: handle_check_idle,
}
