"""Which worker a task goes to, and which workers want more: decisions over the state, taken apart from it.

Root-ish tasks go to the least loaded worker that has a slot, or wait in the queue; others go where they
would start soonest, transfer of their dependencies included.

Must not know: transitions; messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from . import nearness
from .mirrors import data_nbytes, expected_duration, occupancy
from .state import SchedulerState, TaskState, WorkerState

#: Of more dependencies than this, some stand for all.
SAMPLE_MAX = 10_000

#: Below this many candidates the least occupied is looked for; above, one is picked in turn.
SMALL_CLUSTER = 20


def is_rootish(state: SchedulerState, ts: TaskState) -> bool:
    """Whether ``ts`` is one of a group much larger than the cluster, with few or no dependencies."""
    details = ts.details
    if details is not None and (
        details.resource_restrictions or details.worker_restrictions or details.host_restrictions
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
    """How many tasks a worker of so many threads takes before it is saturated; may be infinite."""
    saturation = state.config.worker_saturation
    return saturation if math.isinf(saturation) else max(math.ceil(saturation * nthreads), 1)


def is_available(ws: WorkerState) -> bool:
    """Whether new tasks may go to the worker at all."""
    return ws.status == "running" and not ws.clogged


def update_slots(state: SchedulerState, ws: WorkerState) -> None:
    """Bring the worker's membership in ``idle_load`` up to date; once or twice a task, so what ``with_slots`` asks is asked in line."""
    n = len(ws.processing)
    if n - len(ws.long_running) < ws.task_slots and ws.status == "running" and not ws.clogged:
        state.idle_load.put(ws, n / ws.nthreads)
    else:
        state.idle_load.discard(ws)


def update_idle(state: SchedulerState, ws: WorkerState) -> None:
    """Bring the worker's membership in ``idle``, ``idle_load`` and ``saturated`` up to date.

    Where what it processes has changed, ``state.restless`` takes it down instead, and this is done once somebody looks.
    """
    update_slots(state, ws)
    _judge(state, ws)


def _judge(state: SchedulerState, ws: WorkerState) -> None:
    standing = _standing(state, ws)
    if standing == "idle":
        state.idle.add(ws)
    else:
        state.idle.discard(ws)
    state.saturated.pop(ws, None)  # who is so anew comes last
    if standing == "saturated":
        state.saturated[ws] = None


def _standing(state: SchedulerState, ws: WorkerState) -> str:
    """What it is by now: ``idle``, ``saturated``, or an empty word for neither."""
    if not is_available(ws):
        return ""
    n, nthreads = len(ws.processing), ws.nthreads
    if n < nthreads:
        return "idle"
    seconds = occupancy(state, ws)
    average = state.total_occupancy / state.total_nthreads
    if seconds < nthreads * average / 2:
        return "idle"
    pending = seconds * (n - nthreads) / (n * nthreads)
    return "saturated" if 0.4 < pending > 1.9 * average else ""


def is_unoccupied(state: SchedulerState, ws: WorkerState) -> bool:
    """Whether the worker has too little to do: fewer tasks than threads, or less than half of the average."""
    return _standing(state, ws) == "idle"


def is_saturated(state: SchedulerState, ws: WorkerState) -> bool:
    """Whether the worker has much more to do than the average."""
    return _standing(state, ws) == "saturated"


def follow_loads(state: SchedulerState) -> None:
    """``idle_load`` follows the loads that have changed; it is read for each task that leaves the queue."""
    restless = state.restless
    workers = state.workers
    for ws in restless:
        if workers.get(ws.address) is ws:
            update_slots(state, ws)
    state.unsettled.update(restless)
    restless.clear()


def settle(state: SchedulerState) -> None:
    """``idle``, ``idle_load`` and ``saturated`` follow the loads that have changed."""
    if state.restless:
        follow_loads(state)
    if state.unsettled:
        workers = state.workers
        for ws in state.unsettled:
            if workers.get(ws.address) is ws:
                _judge(state, ws)
        state.unsettled.clear()


def with_slots(state: SchedulerState) -> list[WorkerState]:
    """Workers that may get root-ish tasks: ``idle_load`` as it is once it has followed."""
    return [
        ws for ws in state.running if len(ws.processing) - len(ws.long_running) < ws.task_slots
    ]


def leave_idle(state: SchedulerState, ws: WorkerState) -> None:
    """The worker gets nothing new: it is neither idle nor saturated."""
    state.idle.discard(ws)
    state.idle_load.discard(ws)
    state.saturated.pop(ws, None)
    state.restless.pop(ws, None)
    state.unsettled.pop(ws, None)


def place_rootish_queued(state: SchedulerState) -> WorkerState | None:
    """The least loaded worker with a slot for a root-ish task; None: the task is queued."""
    if state.restless:
        follow_loads(state)
    return state.idle_load.least()


def place_rootish_together(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """A worker for a root-ish task when there is no queuing: its siblings go in runs to the same one."""
    settle(state)
    pool: Iterable[WorkerState] = state.idle if len(state.idle) else state.running
    group = ts.group
    ws = group.last_worker
    if not (
        ws is not None
        and group.last_worker_tasks_left
        and is_available(ws)
        and state.workers.get(ws.address) is ws
    ):
        ws = min(pool, key=lambda w: start_estimate(state, ts, w), default=None)
        if ws is None:
            return None
        group.last_worker_tasks_left = math.floor(
            (group.n_added / state.total_nthreads) * ws.nthreads
        )
    more = group.states["released"] + group.states["waiting"] > 1
    group.last_worker = ws if more else None
    group.last_worker_tasks_left -= 1
    return ws


def place_non_rootish(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """The worker on which ``ts`` would start soonest; None: no worker may run it now."""
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
    """A task without dependencies or restrictions: an idle worker, in turn."""
    settle(state)
    pool: list[WorkerState]
    n = len(state.idle)
    if n >= SMALL_CLUSTER:
        return state.idle[state.n_tasks % n]
    pool = list(state.idle) if n else list(state.running)
    n = len(pool)
    if n >= SMALL_CLUSTER:
        return pool[state.n_tasks % n]
    pool.sort(key=lambda ws: ws.index)
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
    """One pass over the dependencies tells who has them, and so what each candidate would have to fetch."""
    total = 0
    local: dict[WorkerState, int] = {}
    dependencies = ts.dependencies
    if len(dependencies) > SAMPLE_MAX:
        dependencies = dependencies[:: len(dependencies) // SAMPLE_MAX]
    for dts in dependencies:
        nbytes = dts.nbytes
        if nbytes < 0:
            nbytes = state.config.default_data_size_nbytes
        total += nbytes
        for ws in dts.who_has:
            local[ws] = local.get(ws, 0) + nbytes
    if state.domains.of:
        nearness.add_neighbours(state, local, dependencies)
    if dependencies is not ts.dependencies:
        share = len(ts.dependencies) // len(dependencies)
        total *= share
        local = {ws: nbytes * share for ws, nbytes in local.items()}
    candidates = _candidates(state, local, ts.actor, valid)
    if not candidates:
        return (
            _place_near_data(state, ts, None)
            if valid is not None and ts.loose_restrictions
            else None
        )
    if len(candidates) == 1:
        return next(iter(candidates))
    return _starts_soonest(state, ts, candidates, local, total)


def _candidates(
    state: SchedulerState,
    local: dict[WorkerState, int],
    actor: bool,
    valid: dict[WorkerState, None] | None,
) -> dict[WorkerState, Any]:
    """Running workers that hold some of the data, and may run the task; if none does, all that may."""
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
    """The candidate with the smallest sum of work before it and transfer of what it lacks.

    Args:
        local: worker -> bytes of the dependencies that it has.
        total: bytes of all dependencies.
    """
    bandwidth = state.bandwidth
    best: WorkerState | None = None
    best_cost: tuple[float, ...] = ()
    for ws in candidates:
        start = occupancy(state, ws) / ws.nthreads + (total - local.get(ws, 0)) / bandwidth
        cost = (len(ws.actors), start, ws.nbytes) if ts.actor else (start, ws.nbytes)
        if best is None or cost < best_cost:
            best, best_cost = ws, cost
    assert best is not None
    return best


def fetch_seconds(state: SchedulerState, ts: TaskState, ws: WorkerState) -> float:
    """How long the worker would take to fetch the dependencies it does not have."""
    missing = [dts for dts in ts.dependencies if dts not in ws.has_what]
    if state.domains:
        cost = sum(
            nearness.read_nbytes(state, dts, ws, data_nbytes(state, dts)) for dts in missing
        )
    else:
        cost = sum(data_nbytes(state, dts) for dts in missing)
    return cost / state.bandwidth


def start_estimate(state: SchedulerState, ts: TaskState, ws: WorkerState) -> tuple[float, ...]:
    """When ``ts`` would start on the worker (seconds from now), then how much the worker holds (bytes)."""
    start = occupancy(state, ws) / ws.nthreads + fetch_seconds(state, ts, ws)
    return (len(ws.actors), start, ws.nbytes) if ts.actor else (start, ws.nbytes)


def _cost_with_resources(state: SchedulerState, ts: TaskState, ws: WorkerState) -> tuple[float, ...]:
    """As ``start_estimate``, with the wait for resources that other tasks have taken before it.

    Stock looks at what workers supply, not at what is free of it.
    """
    rounds = resource_rounds(ws, ts.resource_restrictions or {})
    wait = (rounds - 1) * expected_duration(state, ts.group.prefix)
    *first, start, nbytes = start_estimate(state, ts, ws)
    return (*first, start + wait, nbytes)


def resource_rounds(ws: WorkerState, needed: dict[str, float]) -> int:
    """One where the worker has so much free; two where what it is given now has to end first, and so on."""
    rounds = 1
    for resource, amount in needed.items():
        supplied = ws.resources.get(resource, 0)
        if supplied > 0:
            rounds = max(rounds, math.ceil((ws.used_resources.get(resource, 0) + amount) / supplied))
    return rounds


def is_overcommitted(ws: WorkerState) -> bool:
    """Whether tasks wait on the worker for resources that others of its tasks have."""
    supplied = ws.resources
    return any(used > supplied.get(resource, 0) for resource, used in ws.used_resources.items())


def valid_workers(state: SchedulerState, ts: TaskState) -> dict[WorkerState, None] | None:
    """Running workers that satisfy the task's restrictions; None: every running worker does."""
    details = ts.details
    if details is None:
        return None
    addresses: dict[str, None] | None = None
    if details.worker_restrictions:
        addresses = {a: None for a in details.worker_restrictions if a in state.workers}
    if details.host_restrictions:
        on_hosts = _addresses_on_hosts(state, details.host_restrictions)
        addresses = on_hosts if addresses is None else {**addresses, **on_hosts}
    if details.resource_restrictions:
        supplied = _addresses_with_resources(state, details.resource_restrictions)
        if addresses is None:
            addresses = supplied
        else:
            addresses = {a: None for a in addresses if a in supplied}
    if addresses is None:
        return None
    workers = (state.workers[a] for a in addresses)
    return {ws: None for ws in workers if ws in state.running}


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
