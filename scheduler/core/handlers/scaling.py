"""Requests of an adaptive cluster for the number of workers, and what is remembered of them."""

from __future__ import annotations

from paceline.scheduler.core.policy import placement, scaling
from paceline.scheduler.core.state.scaling import Scaling, WorkerUse
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stimuli import SizeCluster
from paceline.scheduler.core.turn import Registry, Turn

from .timers import is_busy

#: Seconds without a request after which what is remembered no longer counts.
SILENT_SECONDS_MAX = 300.0


def handle_size_cluster(turn: Turn, message: SizeCluster) -> None:
    """Update ``Scaling``, and set ``Scaling.asked`` to the number of workers there should be."""
    state = turn.state
    memory = state.scaling
    if turn.now - memory.asked_at > SILENT_SECONDS_MAX:
        memory = state.scaling = _begin(state, turn.now)
    placement.refresh_idle(state)
    _update_uses(state, turn.now)
    n = len(state.workers)
    if is_busy(state):
        memory.worked_at = turn.now
    memory.is_tail = scaling.is_tail(state)
    if not scaling.memory_is_full(state):
        memory.n_when_full = 0
    elif not memory.n_when_full or n >= 2 * memory.n_when_full:
        memory.n_when_full = n
    if scaling.needed_workers(state, message.target_duration_seconds) >= n:
        memory.wanted_at = turn.now
    if memory.raised_at and scaling.expected_workers(state) <= n:
        if turn.now - memory.grown_at > scaling.patience_seconds(state):
            memory.ceiling = n  # no further one came
        memory.raised_at = 0.0
    before = memory.asked
    memory.asked = scaling.adaptive_target(state, message.target_duration_seconds)
    memory.asked_at = turn.now
    if memory.asked > n and not 0 < memory.ceiling <= n:
        if not memory.raised_at:
            memory.raised_at = memory.grown_at = turn.now
            memory.arrived = False
        elif memory.asked > before:
            memory.grown_at = turn.now


def _begin(state: SchedulerState, now: float) -> Scaling:
    """Return what is remembered at the first request. All workers count as used until now."""
    before = state.scaling
    uses = {ws: WorkerUse(now, now) for ws in state.workers.values()}
    return Scaling(startup_seconds=before.startup_seconds, nthreads=before.nthreads, uses=uses)


def _update_uses(state: SchedulerState, now: float) -> None:
    """Update the uses of workers, and the time that workers take to start."""
    memory = state.scaling
    workers, uses, touched = state.workers, memory.uses, state.loads.touched
    for ws in [ws for ws in uses if workers.get(ws.address) is not ws]:
        del uses[ws]
    n_before = len(uses)
    for ws in workers.values():
        use = uses.get(ws)
        if use is None:
            use = uses[ws] = WorkerUse(now)
        if ws.processing or ws in touched:
            use.busy_at = now
    touched.clear()
    if workers:
        memory.nthreads = state.total_nthreads / len(workers)
    if len(uses) == n_before:
        return
    memory.grown_at = now
    if len(workers) > memory.ceiling:
        memory.ceiling = 0
    if memory.raised_at and not memory.arrived:
        memory.arrived = True
        memory.startup_seconds = now - memory.raised_at


#: Message class -> handler.
HANDLERS: Registry = {
    SizeCluster: handle_size_cluster,
}
