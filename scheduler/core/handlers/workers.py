"""Workers: registration, heartbeats, status, removal."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.protocol.limits import WorkerStatus
from paceline.scheduler.core.instructions import DropWorkerConnection
from paceline.scheduler.core.lifecycle import accounting, charges
from paceline.scheduler.core.lifecycle.availability import (
    availability_changed,
    refresh_no_workers,
    use_worker,
)
from paceline.scheduler.core.lifecycle.extra_runs import remove_extra_run
from paceline.scheduler.core.lifecycle.removal import begin_worker_removal, lose_data
from paceline.scheduler.core.lifecycle.second_runs import leave_second_runs
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run
from paceline.scheduler.core.policy import placement
from paceline.scheduler.core.policy.memory import spilled_nbytes
from paceline.scheduler.core.state.deferred import Recs, WorkerRemoval
from paceline.scheduler.core.state.fixed_set import FixedSet
from paceline.scheduler.core.state.graphs.spans import add_metric
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.workers.loads import is_available
from paceline.scheduler.core.stealing.recall import recall_behind_late, recall_tasks
from paceline.scheduler.core.stimuli import (
    CloseWorker,
    SetWorkerStatus,
    WorkerBackpressured,
    WorkerHeartbeat,
    WorkerJoined,
    WorkerRemoved,
)
from paceline.scheduler.core.ticks.admission import learn_memory
from paceline.scheduler.core.ticks.extra_runs import refresh_extra_runs
from paceline.scheduler.core.ticks.worker_ends import METRIC as ENDS_METRIC
from paceline.scheduler.core.ticks.worker_ends import end_changed, learn_end
from paceline.scheduler.core.turn import ERROR, INFO, KEYS_IN_LOG_LINE, WARNING, Registry, Turn

#: Members of ``host_info`` that the scheduler maintains; workers cannot change them.
OWN_HOST_FACTS = ("addresses", "nthreads", "last-seen")
#: Metrics that dashboard pages require, with their values until a worker sends them.
NO_METRICS: Mapping[str, Any] = MappingProxyType(
    {
        "cpu": 0.0,
        "memory": 0,
        "time": 0.0,
        "event_loop_interval": 0.0,
        "host_net_io": {"read_bps": 0.0, "write_bps": 0.0},
        "spilled_bytes": {"memory": 0, "disk": 0},
        "transfer": {"incoming_bytes": 0, "outgoing_bytes": 0},
    }
)
#: Members of ``host_info`` of one host.
HOST_FACTS_MAX = 100
#: Lower limit of the expected bandwidth in bytes per second, so that transfer times stay finite.
BANDWIDTH_MIN = 1.0
#: Result types whose bandwidth is stored; the oldest entry is dropped first.
BANDWIDTH_TYPES_MAX = 1_000

# ------------------------------------------------------------------ registration


def handle_worker_joined(turn: Turn, joined: WorkerJoined) -> None:
    """Add a worker that registered, and send it unrunnable and queued tasks."""
    state = turn.state
    message = joined.message
    turn.log_event(joined.address, {"action": "add-worker"})
    turn.log_event("all", {"action": "add-worker", "worker": joined.address})
    ws = WorkerState(
        address=joined.address,
        name=message.name,
        host=joined.host,
        nthreads=message.nthreads,
        memory_limit=message.memory_limit or 0,
        status=message.status,
        server_id=message.server_id,
        pid=message.pid,
        local_directory=message.local_directory,
        services=message.services or {},
        nanny=message.nanny,
        versions=message.versions,
        extra=message.extra or {},
        index=state.worker_added_count,
        last_seen=turn.now,
        task_slots=placement.task_slots(state, message.nthreads),
    )
    state.workers[joined.address] = ws
    state.worker_added_count += 1
    state.scaling.joined_at = turn.now
    state.aliases[message.name] = joined.address
    info = state.host_info.setdefault(joined.host, {})
    info.setdefault("addresses", {})[joined.address] = None
    info["nthreads"] = info.get("nthreads", 0) + ws.nthreads
    state.total_memory += ws.memory_limit
    state.total_nthreads += ws.nthreads
    state.spans.note_threads(state.total_nthreads, turn.now)
    _heartbeat(turn, ws, message)
    if is_available(ws):
        state.running[ws] = None
    refresh_no_workers(state, turn.now)
    placement.update_idle(state, ws)
    if state.plugins is not None:
        state.plugins.add_worker(joined.address)
    use_worker(turn, ws)


# ------------------------------------------------------------------ heartbeats, resources, status


def handle_worker_heartbeat(turn: Turn, message: WorkerHeartbeat) -> None:
    """Update a worker from its heartbeat: metrics, executing tasks, resources."""
    ws = turn.state.workers.get(message.address)
    if ws is not None:
        end = ws.ends_at
        _heartbeat(turn, ws, message.message)
        if ws.ends_at != end:
            end_changed(turn, ws, end)
        fill_slots(turn)


def _heartbeat(turn: Turn, ws: WorkerState, message: m.RegisterWorker | m.HeartbeatWorker) -> None:
    state = turn.state
    metrics = message.metrics or {}
    info = state.host_info.setdefault(ws.host, {})
    info["last-seen"] = turn.now
    _learn_bandwidth(state, ws, metrics.get("bandwidth") or {})
    ws.last_seen = turn.now
    if isinstance(message, m.HeartbeatWorker):
        _update_executing(turn, ws, message)
    totals = state.cumulative_worker_metrics
    for name, value in (metrics.get("digests_total_since_heartbeat") or {}).items():
        add_metric(totals, name, value)
    ws.spilled_nbytes = spilled_nbytes(metrics)
    ws.heartbeat_nbytes = ws.nbytes
    if state.domains or "memory_domain" in metrics:
        state.domains.learn(ws, metrics.get("memory_domain"))
    if ws.ends_at or ENDS_METRIC in metrics:
        learn_end(turn, ws, metrics)
    _learn_unmanaged(state, ws, metrics, turn.now)
    learn_memory(state, ws, metrics)
    ws.metrics = metrics if NO_METRICS.keys() <= metrics.keys() else {**NO_METRICS, **metrics}
    for name, value in (message.host_info or {}).items():
        if name not in OWN_HOST_FACTS and (name in info or len(info) < HOST_FACTS_MAX):
            info[name] = value
    if message.now:
        ws.time_delay = turn.now - message.now
    if message.resources:
        set_resources(state, ws, message.resources)


def _update_executing(turn: Turn, ws: WorkerState, heartbeat: m.HeartbeatWorker) -> None:
    """Update from ``heartbeat`` what `ws` executes, and the metrics of its spans."""
    state = turn.state
    if heartbeat.executing is not None:
        ws.executing = {}
        elapsed = turn.now - ws.executing_at
        ws.executing_at = turn.now
        for key, seconds in heartbeat.executing.items():
            ts = state.tasks.get(key)
            if ts is not None:
                ws.executing[ts] = seconds
                if not ws.extra_runs or key not in ws.extra_runs:
                    accounting.add_exec_time(state, ts.group.prefix, seconds)
                    charges.note_executing(state, ts, ws, seconds)
        recall_behind_late(state, ws)
        if ws.extra_runs or ws.released_runs:
            refresh_extra_runs(turn, ws, heartbeat.executing, elapsed)
    extensions = heartbeat.extensions
    if extensions and extensions.get("spans"):
        state.spans.add_metrics(extensions["spans"])


def _learn_bandwidth(state: SchedulerState, ws: WorkerState, bandwidth: dict[str, Any]) -> None:
    """Update the moving averages of the bandwidth from what `ws` measured while it fetched data."""
    share = 1 / max(1, len(state.workers))
    total = bandwidth.get("total")
    if total:
        blended = state.bandwidth * (1 - share) + total * share
        state.bandwidth = max(BANDWIDTH_MIN, blended)
    for other, (rate, count) in (bandwidth.get("workers") or {}).items():
        if other in state.workers:
            _blend(state.bandwidth_workers, (ws.address, other), rate, count, share)
    types = state.bandwidth_types
    for typename, (rate, count) in (bandwidth.get("types") or {}).items():
        _blend(types, typename, rate, count, share)
        if len(types) > BANDWIDTH_TYPES_MAX:
            del types[next(iter(types))]


def _blend(table: dict[Any, float], name: Any, rate: float, count: float, share: float) -> None:
    if name not in table:
        if count:
            table[name] = rate / count
    else:
        keep = (1 - share) ** count
        table[name] = table[name] * keep + rate * (1 - keep)


def _learn_unmanaged(
    state: SchedulerState, ws: WorkerState, metrics: dict[str, Any], now: float
) -> None:
    """Update the unmanaged memory of ``ws``.

    The minimum of the last ``recent-to-old-time`` counts as old.
    """
    horizon = now - state.config.memory_recent_to_old_seconds
    history = ws.memory_unmanaged_history
    old = ws.memory_unmanaged_old
    while history and history[0][0] < horizon:
        _, size = history.popleft()
        if size == old:
            old = 0
    size = max(0, int(metrics.get("memory", 0)) - ws.nbytes + ws.spilled_nbytes)
    history.append((now, size))
    if not old:
        old = min(s for _, s in history)
    ws.memory_unmanaged_old = min(old, size)


def set_resources(state: SchedulerState, ws: WorkerState, resources: dict[str, float]) -> None:
    """Add or change the amounts of `resources` that `ws` supplies."""
    ws.resources.update(resources)
    used = dict.fromkeys(ws.resources, 0.0)
    for ts in ws.processing:
        for resource, amount in (ts.resource_restrictions or {}).items():
            used[resource] = used.get(resource, 0.0) + amount
    ws.used_resources = used
    for resource, amount in ws.resources.items():
        state.resources.setdefault(resource, {})[ws.address] = amount


def handle_set_resources(turn: Turn, message: m.SetResources) -> None:
    """Change the resources of a worker (RPC ``set_resources``).

    Schedule tasks that can run now, and recall tasks whose resources are no longer supplied.
    """
    ws = turn.state.workers.get(message.worker)
    if ws is None:
        return
    set_resources(turn.state, ws, message.resources or {})
    recall_tasks(turn, ws, [ts for ts in ws.processing if _exceeds_resources(ts, ws)])
    use_worker(turn, ws)


def _exceeds_resources(ts: TaskState, ws: WorkerState) -> bool:
    """Return whether ``ts`` needs more of a resource than ``ws`` supplies in total."""
    needed = ts.resource_restrictions or {}
    return any(amount > ws.resources.get(resource, 0) for resource, amount in needed.items())


def handle_worker_status_change(turn: Turn, message: m.WorkerStatusChange) -> None:
    """Update the status of a worker that paused, resumed or is closing."""
    ws = turn.state.workers.get(turn.source)
    if ws is not None:
        change_status(turn, ws, message.status)


def handle_set_worker_status(turn: Turn, command: SetWorkerStatus) -> None:
    """Set a worker's status from the scheduler, to retire it or to revert that."""
    ws = turn.state.workers.get(command.address)
    if ws is not None:
        ws.status_before = command.before
        turn.to_worker(
            ws.address,
            m.WorkerStatusChange(
                status=cast(WorkerStatus, command.status), stimulus_id=turn.stimulus_id
            ),
        )
        change_status(turn, ws, command.status)
        if command.status == "closing_gracefully":
            recall_tasks(turn, ws, reversed(ws.processing))


def handle_close_worker(turn: Turn, message: CloseWorker) -> None:
    """Ask a worker to close; it is removed when its connection ends."""
    address = message.address
    if address in turn.state.workers:
        turn.log(INFO, f"Closing worker {address}")
        turn.log_event(address, {"action": "close-worker"})
        turn.to_worker(address, m.Close(reason="scheduler-close-worker"))


def handle_worker_backpressured(turn: Turn, message: WorkerBackpressured) -> None:
    """Record that a worker's connection became backpressured, or writable again."""
    ws = turn.state.workers.get(message.address)
    if ws is not None and ws.backpressured != message.backpressured:
        ws.backpressured = message.backpressured
        availability_changed(turn, ws)


def change_status(turn: Turn, ws: WorkerState, status: str) -> None:
    """Set the status of ``ws`` and update the sets that depend on it."""
    before = ws.status
    if status == before:
        return
    ws.status = status
    turn.log_event(
        ws.address,
        {
            "action": "worker-status-change",
            "prev-status": before,
            "status": status,
            "stimulus_id": turn.stimulus_id,
        },
    )
    availability_changed(turn, ws)


# ------------------------------------------------------------------ removal


def handle_worker_removed(turn: Turn, gone: WorkerRemoved) -> None:
    """Remove a worker that left or died.

    Reschedule its tasks, recompute lost data and blame tasks that may have killed it.
    """
    state = turn.state
    ws = state.workers.get(gone.address)
    if ws is None:
        return
    turn.log(
        INFO,
        f"Remove worker addr: {ws.address} name: {ws.name} (stimulus_id={turn.stimulus_id!r})",
    )
    if gone.close:
        turn.to_worker(ws.address, m.Close(reason="scheduler-remove-worker"))
    turn.instruct(DropWorkerConnection(ws.address))
    of_memory = not gone.expected and state.whole_workers.is_memory_loss(ws)
    _unregister(state, ws)
    if not gone.expected:
        state.second_copies.losses += 1
    state.spans.note_threads(state.total_nthreads, turn.now)

    promoted = leave_second_runs(turn, ws)
    recs: Recs = {}
    worker_removal = WorkerRemoval(ws, gone.expected, list(ws.processing), of_memory)
    begin_worker_removal(turn, worker_removal, recs)
    recomputed, lost = lose_data(turn, ws, recs)
    _report_losses(turn, worker_removal, recomputed, lost)
    run(turn, recs)
    for promoted_on in promoted:
        use_worker(turn, promoted_on)
    refresh_no_workers(state, turn.now)
    if state.plugins is not None:
        state.plugins.remove_worker(ws.address, turn.stimulus_id)
    if not state.workers:
        turn.log(INFO, "Lost all workers")
    for other in state.workers:
        state.bandwidth_workers.pop((ws.address, other), None)
        state.bandwidth_workers.pop((other, ws.address), None)
        turn.to_worker(other, m.RemoveWorker(worker=ws.address, stimulus_id=turn.stimulus_id))
    fill_slots(turn)


def _unregister(state: SchedulerState, ws: WorkerState) -> None:
    """Remove ``ws`` from all tables of the state."""
    for resource in ws.resources:
        state.resources.get(resource, {}).pop(ws.address, None)
    info = state.host_info.get(ws.host)
    if info is not None:
        info["addresses"].pop(ws.address, None)
        info["nthreads"] -= ws.nthreads
        if not info["addresses"]:
            del state.host_info[ws.host]
    state.total_memory -= ws.memory_limit
    state.total_nthreads -= ws.nthreads
    state.aliases.pop(ws.name, None)
    state.comparisons.by_worker.pop(ws.address, None)
    state.second_copies.unscanned.pop(ws, None)
    state.domains.forget(ws)
    state.worker_ends.forget(ws)
    state.loads.remove(ws)
    state.queued.disband(ws)
    state.running.pop(ws, None)
    state.whole_workers.reserved.pop(ws, None)
    del state.workers[ws.address]
    for key in list(ws.extra_runs):
        remove_extra_run(state, ws, key)
    state.worker_removed_count += 1
    ws.status = "closed"


def _report_losses(
    turn: Turn, worker_removal: WorkerRemoval, recomputed: list[Key], lost: list[Key]
) -> None:
    ws = worker_removal.ws
    stimulus = f"(stimulus_id={turn.stimulus_id!r})"
    if recomputed:
        turn.log(
            WARNING,
            f"Removing worker {ws.address!r} caused the cluster to lose "
            "already computed task(s), which will be recomputed elsewhere: "
            f"{_some(recomputed)} {stimulus}",
        )
    if lost:
        turn.log(
            ERROR,
            f"Removing worker {ws.address!r} caused the cluster to lose scattered "
            f"data, which can't be recovered: {_some(lost)} {stimulus}",
        )
    event = {
        "action": "remove-worker",
        "processing-tasks": FixedSet(ts.key for ts in worker_removal.tasks),
        "lost-computed-tasks": FixedSet(recomputed),
        "lost-scattered-tasks": FixedSet(lost),
        "stimulus_id": turn.stimulus_id,
        "expected": worker_removal.expected,
    }
    turn.log_event(ws.address, event)
    turn.log_event("all", {**event, "worker": ws.address})


def _some(keys: list[Key]) -> str:
    shown = "{" + ", ".join(map(repr, keys[:KEYS_IN_LOG_LINE])) + "}"
    more = len(keys) - KEYS_IN_LOG_LINE
    return f"{shown} and {more} more" if more > 0 else shown


#: Message class -> handler.
HANDLERS: Registry = {
    WorkerJoined: handle_worker_joined,
    WorkerHeartbeat: handle_worker_heartbeat,
    m.SetResources: handle_set_resources,
    m.WorkerStatusChange: handle_worker_status_change,
    SetWorkerStatus: handle_set_worker_status,
    CloseWorker: handle_close_worker,
    WorkerBackpressured: handle_worker_backpressured,
}
