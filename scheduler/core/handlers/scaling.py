"""Requests of an adaptive cluster for the number of workers, and what is remembered of them."""

from __future__ import annotations

from math import inf

from paceline.scheduler.core.policy import placement, scaling
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.workers.scaling import Scaling, WorkerUse
from paceline.scheduler.core.stimuli import SizeCluster
from paceline.scheduler.core.turn import Registry, Turn

from .timers import is_busy

#: Seconds without a request after which what is remembered no longer counts.
SILENT_SECONDS_MAX = 300.0


def handle_size_cluster(turn: Turn, message: SizeCluster) -> None:
    """Update ``Scaling``, and set ``Scaling.asked`` to the number of workers there should be."""
    state = turn.state
    requests = state.scaling
    if turn.now - requests.asked_at > SILENT_SECONDS_MAX:
        requests = state.scaling = _begin(state, turn.now)
    placement.refresh_idle(state)
    _update_uses(state, turn.now)
    n = len(state.workers)
    if is_busy(state):
        requests.worked_at = turn.now
    requests.is_tail = scaling.is_tail(state)
    if not scaling.memory_is_full(state):
        requests.n_when_full = 0
    elif not requests.n_when_full or n >= 2 * requests.n_when_full:
        requests.n_when_full = n
    if scaling.needed_workers(state, message.target_duration_seconds) >= n:
        requests.wanted_at = turn.now
    if requests.raised_at and scaling.expected_workers(state) <= n:
        if turn.now - requests.grown_at > scaling.patience_seconds(state):
            requests.ceiling = n  # no further one came
        requests.raised_at = 0.0
    before = requests.asked
    requests.asked = scaling.adaptive_target(state, message.target_duration_seconds)
    requests.asked_at = turn.now
    if requests.asked > n and not 0 < requests.ceiling <= n:
        if not requests.raised_at:
            requests.raised_at = requests.grown_at = turn.now
            requests.arrived = False
            requests.n_raised = n
        elif requests.asked > before:
            requests.grown_at = turn.now


def _begin(state: SchedulerState, now: float) -> Scaling:
    """Return what is remembered at the first request, or the first after a long time.

    Uses of workers are recorded between requests, too. Before the first one, all workers count as
    used until now.
    """
    before = state.scaling
    uses = before.uses or {ws: WorkerUse(now, now) for ws in state.workers.values()}
    return Scaling(
        asked_at=before.asked_at,
        joined_at=before.joined_at,
        startup_seconds=before.startup_seconds,
        nthreads=before.nthreads,
        uses=uses,
    )


def _update_uses(state: SchedulerState, now: float) -> None:
    """Update the uses of workers, and the time that workers take to start."""
    requests = state.scaling
    workers, uses, touched = state.workers, requests.uses, state.loads.touched
    for ws in [ws for ws in uses if workers.get(ws.address) is not ws]:
        del uses[ws]
    n_before = len(uses)
    for ws in workers.values():
        use = uses.get(ws)
        if use is None:
            use = uses[ws] = WorkerUse(now)
            if requests.raised_at:
                use.lifetime_seconds = ws.ends_at - now if ws.ends_at else inf
        if ws.processing or ws in touched:
            use.busy_at = now
    touched.clear()
    if workers:
        requests.nthreads = state.total_nthreads / len(workers)
    if len(uses) == n_before:
        return
    requests.grown_at = now
    if len(workers) > requests.ceiling:
        requests.ceiling = 0
    if requests.raised_at and not requests.arrived and len(workers) > requests.n_raised:
        requests.arrived = True
        requests.startup_seconds = now - requests.raised_at


#: Message class -> handler.
HANDLERS: Registry = {
    SizeCluster: handle_size_cluster,
}
