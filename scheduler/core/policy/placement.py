"""Choose the worker for a task.

Root-ish tasks go to the least loaded worker with a free slot, or wait in the queue. Others go to
the worker on which they would start soonest, transfer of their dependencies included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from paceline.scheduler.core.state.estimates import data_nbytes, expected_duration, occupancy
from paceline.scheduler.core.state.model import TaskDetails, TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import count_in
from paceline.scheduler.core.state.workers.loads import (
    LoadClass,
    has_free_slot,
    is_available,
    usable_threads,
)

#: If there are twice as many dependencies or more, an evenly spaced sample of at least this size is
#: considered.
SAMPLE_MIN: Final = 10_000

#: Number of candidates from which one is picked round-robin instead of the least occupied.
SMALL_CLUSTER = 20


def is_rootish(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether `ts` belongs to a group much larger than the cluster with few dependencies."""
    details = ts.details
    if details is not None and (
        details.resource_restrictions
        or details.worker_restrictions
        or details.host_restrictions
        or (details.policies is not None and details.policies.avoided)
    ):
        return False
    if ts.data_producer:
        return True
    group = ts.group
    if group.n_added <= state.total_nthreads * 2:
        return False
    dependencies = group.dependency_table
    if not dependencies:
        return True
    config = state.config
    if len(dependencies) >= config.rootish_taskgroup:
        return False
    n_tasks = 0
    for other in dependencies:
        n_tasks += other.n_added
    return n_tasks < config.rootish_taskgroup_dependencies


def task_slots(state: SchedulerState, nthreads: int) -> float:
    """Return the number of tasks at which a worker with `nthreads` is full; may be infinite."""
    saturation = state.config.worker_saturation
    return saturation if math.isinf(saturation) else max(math.ceil(saturation * nthreads), 1)


def update_idle(state: SchedulerState, ws: WorkerState) -> None:
    """Update the load of `ws` at once, after a change of its status or threads.

    If only its tasks have changed, ``state.loads.touch(ws)`` is enough.
    """
    state.loads.update(ws, load_class(state, ws))


def refresh_idle(state: SchedulerState) -> None:
    """Update ``state.loads`` for all workers that have changed."""
    state.loads.refresh(lambda ws: load_class(state, ws))


def load_class(state: SchedulerState, ws: WorkerState) -> LoadClass:
    """Classify the current load of `ws` as ``"idle"``, ``"saturated"`` or ``""``."""
    if not is_available(ws):
        return ""
    n, nthreads = len(ws.processing), usable_threads(ws)
    if n < nthreads:
        return "idle"
    seconds = occupancy(state, ws)
    average = state.total_occupancy / state.total_nthreads
    if seconds < nthreads * average / 2:
        return "idle"
    pending = seconds * (n - nthreads) / (n * nthreads)
    return "saturated" if 0.4 < pending > 1.9 * average else ""


def workers_with_free_slots(state: SchedulerState) -> list[WorkerState]:
    """Return the workers that can be sent root-ish tasks.

    ``idle_task_count`` holds the same workers once it is refreshed.
    """
    return [ws for ws in state.running if has_free_slot(ws)]


def place_rootish_together(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """Return a worker for the root-ish task `ts` if queuing is off.

    Runs of siblings go to the same worker.
    """
    refresh_idle(state)
    group = ts.group
    ws = group.last_worker
    if not (
        ws is not None
        and group.last_worker_tasks_left
        and is_available(ws)
        and state.workers.get(ws.address) is ws
    ):
        ws = soonest(state, ts, state.loads.idle or state.running)
        if ws is None:
            return None
        group.last_worker_tasks_left = math.floor(
            (group.n_added / state.total_nthreads) * ws.nthreads
        )
    more = count_in(group.counts, "released", "waiting") > 1
    group.last_worker = ws if more else None
    group.last_worker_tasks_left -= 1
    return ws


def place_non_rootish(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """Return the worker on which `ts` would start soonest; None if no worker may run it."""
    if not state.running:
        return None
    valid = None if ts.details is None else valid_workers(state, ts)
    if valid is None:
        if not ts.dependencies and not ts.actor:
            return _place_unrelated(state)
    elif valid and ts.resource_restrictions:
        return min(valid, key=lambda ws: _cost_with_resources(state, ts, ws))
    return _place_near_data(state, ts, valid)


def _place_unrelated(state: SchedulerState) -> WorkerState | None:
    """Return a worker for a task without dependencies or restrictions: an idle one, in turn."""
    refresh_idle(state)
    workers = state.loads.idle or state.running
    n = len(workers)
    if n >= SMALL_CLUSTER:
        return next(islice(workers, state.n_tasks % n, None))
    pool = sorted(workers, key=lambda ws: ws.index)
    best = min(pool, key=lambda ws: occupancy(state, ws))
    if occupancy(state, best) == 0:
        for i in range(n):
            ws = pool[(i + state.n_tasks) % n]
            if occupancy(state, ws) == 0:
                return ws
    return best


def _place_near_data(
    state: SchedulerState, ts: TaskState, valid: dict[WorkerState, None] | None
) -> WorkerState | None:
    """Return the worker on which `ts` would start soonest, among `valid` workers if given.

    One pass over the dependencies determines what each candidate holds, and so what it has to
    fetch.
    """
    local: dict[WorkerState, int] = {}
    dependencies, n = _sample(ts.dependencies)
    total = 0
    for dts in dependencies:
        nbytes = dts.nbytes
        if nbytes < 0:
            nbytes = state.config.default_data_size_nbytes
        total += nbytes
        for ws in dts.who_has:
            local[ws] = local.get(ws, 0) + nbytes
    if state.domains.of:
        sizes = ((dts, data_nbytes(state, dts)) for dts in dependencies)
        state.domains.add_readable(local, sizes)
    if n > 1:
        total *= n
        local = {ws: nbytes * n for ws, nbytes in local.items()}
    candidates = _candidates(state, local, ts.actor, valid)
    if not candidates:
        return None
    if len(candidates) == 1:
        return next(iter(candidates))
    return _starts_soonest(state, ts, candidates, local, total)


def _sample(dependencies: tuple[TaskState, ...]) -> tuple[tuple[TaskState, ...], int]:
    """Return every n-th of `dependencies`, and n. It is 1 unless they are many."""
    n = len(dependencies) // SAMPLE_MIN or 1
    return dependencies[::n], n


def _candidates(
    state: SchedulerState,
    local: dict[WorkerState, int],
    actor: bool,
    valid: dict[WorkerState, None] | None,
) -> dict[WorkerState, Any]:
    """Return the running, valid workers that hold some of the data; if none does, all valid."""
    running = state.running
    if actor:
        holders: dict[WorkerState, Any] = running
    else:
        holders = local
        for ws in local:
            if ws not in running:
                holders = {ws: None for ws in local if ws in running}
                break
    if valid is None:
        return holders or running
    return {ws: None for ws in holders if ws in valid} or valid


def _starts_soonest(
    state: SchedulerState,
    ts: TaskState,
    candidates: dict[WorkerState, Any],
    local: dict[WorkerState, int],
    total: int,
) -> WorkerState:
    """Return the candidate with the least assigned work and weighted transfer of dependencies.

    ``local`` has the bytes that each worker holds of the ``total`` of all dependencies.
    """
    bandwidth = state.bandwidth / state.config.fetch_weight
    best: WorkerState | None = None
    best_cost: tuple[float, ...] = ()
    for ws in candidates:
        start = occupancy(state, ws) / usable_threads(ws) + (total - local.get(ws, 0)) / bandwidth
        cost = (len(ws.actors), start, ws.nbytes) if ts.actor else (start, ws.nbytes)
        if best is None or cost < best_cost:
            best, best_cost = ws, cost
    assert best is not None
    return best


def fetch_seconds(state: SchedulerState, ts: TaskState, ws: WorkerState) -> float:
    """Return how long `ws` would take to fetch what it lacks of the inputs of `ts`, in seconds."""
    dependencies, n = _sample(ts.dependencies)
    missing = [dts for dts in dependencies if dts not in ws.has_what]
    if state.domains:
        cost = sum(state.domains.read_nbytes(dts, ws, data_nbytes(state, dts)) for dts in missing)
    else:
        cost = sum(data_nbytes(state, dts) for dts in missing)
    return cost * n / state.bandwidth


def start_estimate(state: SchedulerState, ts: TaskState, ws: WorkerState) -> tuple[float, ...]:
    """Return when `ts` would start on `ws` in seconds from now, then the bytes that `ws` holds.

    Fetching counts ``fetch_weight`` times. Actors are preceded by the number of actors on `ws`.
    """
    fetch = state.config.fetch_weight * fetch_seconds(state, ts, ws)
    start = occupancy(state, ws) / usable_threads(ws) + fetch
    return (len(ws.actors), start, ws.nbytes) if ts.actor else (start, ws.nbytes)


def soonest(
    state: SchedulerState, ts: TaskState, workers: Iterable[WorkerState]
) -> WorkerState | None:
    """Return the one of `workers` on which `ts` starts soonest, or None if there are none."""
    return min(workers, key=lambda ws: start_estimate(state, ts, ws), default=None)


def _cost_with_resources(
    state: SchedulerState, ts: TaskState, ws: WorkerState
) -> tuple[float, ...]:
    """Return ``start_estimate`` plus the wait for resources that other tasks use.

    Stock compares with the supplied resources, not with the free ones.
    """
    rounds = resource_rounds(ws, ts.resource_restrictions or {})
    wait = (rounds - 1) * expected_duration(state, ts.group.prefix)
    *first, start, nbytes = start_estimate(state, ts, ws)
    return (*first, start + wait, nbytes)


def resource_rounds(ws: WorkerState, needed: dict[str, float]) -> int:
    """Return the number of rounds of assigned tasks that must finish before `ws` has `needed` free.

    1 means that the resources are free now.
    """
    rounds = 1
    for resource, amount in needed.items():
        supplied = ws.resources.get(resource, 0)
        if supplied > 0:
            rounds = max(
                rounds, math.ceil((ws.used_resources.get(resource, 0) + amount) / supplied)
            )
    return rounds


def is_overcommitted(ws: WorkerState) -> bool:
    """Return whether tasks wait on `ws` for resources that other tasks use."""
    supplied = ws.resources
    return any(used > supplied.get(resource, 0) for resource, used in ws.used_resources.items())


def valid_workers(
    state: SchedulerState, ts: TaskState, among: dict[WorkerState, None] | None = None
) -> dict[WorkerState, None] | None:
    """Return the workers that satisfy the restrictions of `ts`; None if `ts` may run on any.

    They are running workers, or those `among` the given ones. If the restrictions are loose and no
    worker satisfies them, return ``allowed_workers``.
    """
    details = ts.details
    if details is None:
        return None
    found = _satisfying(state, details, among, by_name=True)
    if found or found is None or not details.loose_restrictions:
        return found
    return allowed_workers(state, ts, among)


def allowed_workers(
    state: SchedulerState, ts: TaskState, among: dict[WorkerState, None] | None = None
) -> dict[WorkerState, None] | None:
    """Return the workers that may run `ts`; None if any may.

    They are running workers, or those `among` the given ones. Loose restrictions to addresses and
    hosts are ignored. Resource restrictions are never loose, because a stock worker fails when it
    receives a task that needs a resource that it does not have.
    """
    details = ts.details
    if details is None:
        return None
    return _satisfying(state, details, among, by_name=not details.loose_restrictions)


def is_allowed(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether ``allowed_workers`` include `ws`, which is running or reserved."""
    allowed = allowed_workers(state, ts, {ws: None})
    return allowed is None or ws in allowed


def _satisfying(
    state: SchedulerState,
    details: TaskDetails,
    among: dict[WorkerState, None] | None,
    by_name: bool,
) -> dict[WorkerState, None] | None:
    """Return the workers that satisfy the restrictions in `details`; None if there are none.

    Restrictions to addresses and hosts count only if `by_name`.
    """
    addresses: dict[str, None] | None = None
    if by_name and details.worker_restrictions:
        addresses = {a: None for a in details.worker_restrictions if a in state.workers}
    if by_name and details.host_restrictions:
        on_hosts = _addresses_on_hosts(state, details.host_restrictions)
        addresses = on_hosts if addresses is None else {**addresses, **on_hosts}
    if details.resource_restrictions:
        supplied = _addresses_with_resources(state, details.resource_restrictions)
        if addresses is None:
            addresses = supplied
        else:
            addresses = {a: None for a in addresses if a in supplied}
    if details.policies is not None and details.policies.avoided:
        addresses = _without_avoided(state, addresses, details.policies.avoided)
    if addresses is None:
        return None
    if among is None:
        among = state.running
    workers = (state.workers[a] for a in addresses)
    return {ws: None for ws in workers if ws in among}


def _without_avoided(
    state: SchedulerState, addresses: dict[str, None] | None, avoided: dict[str, None]
) -> dict[str, None] | None:
    """Return `addresses` (None for all) without the avoided ones, if any of the rest is running."""
    base = state.workers if addresses is None else addresses
    others = {a: None for a in base if a not in avoided}
    return others if any(state.workers[a] in state.running for a in others) else addresses


def _addresses_on_hosts(state: SchedulerState, hosts: Iterable[str]) -> dict[str, None]:
    out: dict[str, None] = {}
    for host in hosts:
        ws = state.resolve_worker(host)
        info = state.host_info.get(ws.host if ws is not None else host)
        if info is not None:
            out.update(info["addresses"])
    return out


def _addresses_with_resources(state: SchedulerState, needed: dict[str, float]) -> dict[str, None]:
    out: dict[str, None] | None = None
    for resource, amount in needed.items():
        supply = state.resources.get(resource, {})
        enough = {a: None for a, supplied in supply.items() if supplied >= amount}
        out = enough if out is None else {a: None for a in out if a in enough}
    return out or {}
