"""Workers that come, live and go.

Must not know: connections; how a worker is started or stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.protocol.keys import Key
from paceline.protocol.messages import Close, RemoveWorker, WorkerStatusChange

from .. import mirrors, placement
from ..containers import FixedSet
from ..departures import Departure, lose_data, part_with_worker
from ..needs import priority_of
from ..state import SchedulerState, TaskState, WorkerState
from ..steal_requests import take_back
from ..stimuli import DropWorkerConnection, SetWorkerStatus, Stimulus, WorkerGone
from ..transitions import (
    Recommendations,
    fill_slots,
    run,
)
from ..turn import Turn

# ------------------------------------------------------------------ coming


def handle_worker_joined(turn: Turn, stimulus: Stimulus) -> None:
    """A worker registered: it may run what nobody could, and what is queued."""
    state = turn.state
    joined = stimulus.message
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
    state.aliases[message.name] = joined.address
    info = state.host_info.setdefault(joined.host, {})
    info.setdefault("addresses", {})[joined.address] = None
    info["nthreads"] = info.get("nthreads", 0) + ws.nthreads
    state.total_memory += ws.memory_limit
    state.total_nthreads += ws.nthreads
    state.spans.note_threads(state.total_nthreads, turn.now)
    _heartbeat(turn, ws, message)
    if placement.is_available(ws):
        state.running[ws] = None
    refresh_no_workers(state, turn.now)
    placement.update_idle(state, ws)
    if state.plugins is not None:
        state.plugins.add_worker(joined.address)
    _use_worker(turn, ws)


def _use_worker(turn: Turn, ws: WorkerState) -> None:
    if placement.is_available(ws):
        recs: Recommendations = {}
        schedule_unrunnable(turn, [ws], recs)
        run(turn, recs)
        fill_slots(turn)


def schedule_unrunnable(turn: Turn, workers: Iterable[WorkerState], recs: Recommendations) -> None:
    """Workers became available: tasks in no-worker that they may run are recommended."""
    state = turn.state
    if not state.unrunnable:
        return
    available = dict.fromkeys(workers)
    runnable = []
    for ts in state.unrunnable:
        valid = placement.valid_workers(state, ts)
        if valid is None or ts.loose_restrictions or any(ws in valid for ws in available):
            runnable.append(ts)
    runnable.sort(key=priority_of, reverse=True)
    for ts in runnable:
        recs[ts] = "processing"


# ------------------------------------------------------------------ living


def handle_worker_beat(turn: Turn, stimulus: Stimulus) -> None:
    """A heartbeat: metrics, and what executes since when."""
    ws = turn.state.workers.get(stimulus.message.address)
    if ws is not None:
        _heartbeat(turn, ws, stimulus.message.message)


def _heartbeat(turn: Turn, ws: WorkerState, message: Any) -> None:
    state = turn.state
    metrics = message.metrics or {}
    info = state.host_info.setdefault(ws.host, {})
    info["last-seen"] = turn.now
    _learn_bandwidth(state, ws, metrics.get("bandwidth") or {})
    ws.last_seen = turn.now
    executing = getattr(message, "executing", None)
    if executing is not None:
        ws.executing = {}
        for key, seconds in executing.items():
            ts = state.tasks.get(key)
            if ts is not None:
                ws.executing[ts] = seconds
                mirrors.add_exec_time(state, ts.group.prefix, seconds)
    totals = state.cumulative_worker_metrics
    for name, value in (metrics.get("digests_total_since_heartbeat") or {}).items():
        totals[name] = totals.get(name, 0) + value
    extensions = getattr(message, "extensions", None)
    if extensions and extensions.get("spans"):
        state.spans.add_metrics(extensions["spans"])
    ws.metrics = metrics
    if state.domains or "memory_domain" in metrics:
        state.domains.learn(ws, metrics.get("memory_domain"))
    _learn_memory(state, ws, metrics, turn.now)
    host_info = getattr(message, "host_info", None)
    if host_info:
        info.update(host_info)
    if message.now:
        ws.time_delay = turn.now - message.now
    resources = getattr(message, "resources", None)
    if resources:
        set_resources(state, ws, resources)


def _learn_bandwidth(state: SchedulerState, ws: WorkerState, bandwidth: dict[str, Any]) -> None:
    share = 1 / max(1, len(state.workers))
    total = bandwidth.get("total")
    if total:
        state.bandwidth = state.bandwidth * (1 - share) + total * share
    for other, (rate, count) in (bandwidth.get("workers") or {}).items():
        _blend(state.bandwidth_workers, (ws.address, other), rate, count, share)
    for typename, (rate, count) in (bandwidth.get("types") or {}).items():
        _blend(state.bandwidth_types, typename, rate, count, share)


def _blend(table: dict[Any, float], name: Any, rate: float, count: float, share: float) -> None:
    if name not in table:
        if count:
            table[name] = rate / count
    else:
        keep = (1 - share) ** count
        table[name] = table[name] * keep + rate * (1 - keep)


def _learn_memory(
    state: SchedulerState, ws: WorkerState, metrics: dict[str, Any], now: float
) -> None:
    """Memory that no data accounts for: the smallest of the last half minute counts as old."""
    horizon = now - state.config.memory_recent_to_old_seconds
    history = ws.memory_unmanaged_history
    old = ws.memory_unmanaged_old
    while history and history[0][0] < horizon:
        _, size = history.popleft()
        if size == old:
            old = 0
    spilled = (metrics.get("spilled_bytes") or {}).get("memory", 0)
    size = max(0, int(metrics.get("memory", 0)) - ws.nbytes + int(spilled))
    history.append((now, size))
    if not old:
        old = min(s for _, s in history)
    ws.memory_unmanaged_old = min(old, size)


def set_resources(state: SchedulerState, ws: WorkerState, resources: dict[str, float]) -> None:
    """The worker supplies these amounts, besides others that it has told before."""
    ws.resources.update(resources)
    used = dict.fromkeys(ws.resources, 0.0)
    for ts in ws.processing:
        for resource, amount in (ts.resource_restrictions or {}).items():
            used[resource] = used.get(resource, 0.0) + amount
    ws.used_resources = used
    for resource, amount in ws.resources.items():
        state.resources.setdefault(resource, {})[ws.address] = amount


def handle_set_resources(turn: Turn, stimulus: Stimulus) -> None:
    """RPC ``set_resources``: tasks that waited for them may run now; those that can no more go elsewhere."""
    message = stimulus.message
    ws = turn.state.workers.get(message.worker)
    if ws is None:
        turn.reply(stimulus.request_id, "not found")
        return
    set_resources(turn.state, ws, message.resources or {})
    turn.reply(stimulus.request_id, "OK")
    take_back(turn, ws, [ts for ts in ws.processing if _asks_too_much(ts, ws)])
    _use_worker(turn, ws)


def _asks_too_much(ts: TaskState, ws: WorkerState) -> bool:
    """Whether the worker does not supply what the task needs, however long it waits."""
    needed = ts.resource_restrictions or {}
    return any(amount > ws.resources.get(resource, 0) for resource, amount in needed.items())


def handle_worker_status_change(turn: Turn, stimulus: Stimulus) -> None:
    """The worker paused, resumed, or is closing."""
    ws = turn.state.workers.get(stimulus.source)
    if ws is not None:
        change_status(turn, ws, stimulus.message.status)


def handle_set_worker_status(turn: Turn, stimulus: Stimulus) -> None:
    """The scheduler itself retires a worker, or takes that back."""
    command: SetWorkerStatus = stimulus.message
    ws = turn.state.workers.get(command.address)
    if ws is not None:
        turn.to_worker(
            ws.address,
            WorkerStatusChange(status=command.status, stimulus_id=turn.stimulus_id),
        )
        change_status(turn, ws, command.status)
        if command.status == "closing_gracefully":
            take_back(turn, ws, reversed(ws.processing))


def handle_close_worker(turn: Turn, stimulus: Stimulus) -> None:
    """Ask a worker to close; it leaves the state when its connection ends."""
    address = stimulus.message.address
    if address in turn.state.workers:
        turn.log(20, f"Closing worker {address}")
        turn.log_event(address, {"action": "close-worker"})
        turn.to_worker(address, Close(reason="scheduler-close-worker"))


def handle_worker_clogged(turn: Turn, stimulus: Stimulus) -> None:
    """The worker's connection takes nothing more for now, or does again."""
    ws = turn.state.workers.get(stimulus.message.address)
    if ws is not None and ws.clogged != stimulus.message.clogged:
        ws.clogged = stimulus.message.clogged
        _availability_changed(turn, ws)


def change_status(turn: Turn, ws: WorkerState, status: str) -> None:
    """``status`` as in WorkerState.status."""
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
    _availability_changed(turn, ws)


def _availability_changed(turn: Turn, ws: WorkerState) -> None:
    state = turn.state
    if placement.is_available(ws):
        state.running[ws] = None
        placement.update_idle(state, ws)
        _use_worker(turn, ws)
    else:
        state.running.pop(ws, None)
        placement.leave_idle(state, ws)
    refresh_no_workers(state, turn.now)


def refresh_no_workers(state: SchedulerState, now: float) -> None:
    """Since when tasks wait and nobody runs."""
    if state.running or not (len(state.queued) or state.unrunnable):
        state.no_workers_since = None
    elif state.no_workers_since is None:
        state.no_workers_since = now


# ------------------------------------------------------------------ going


def handle_worker_gone(turn: Turn, stimulus: Stimulus) -> None:
    """A worker left or died: its tasks go elsewhere, lost data is made again, killers are blamed."""
    state = turn.state
    gone: WorkerGone = stimulus.message
    ws = state.workers.get(gone.address)
    if ws is None:
        turn.reply(stimulus.request_id, "already-removed")
        return
    turn.log(
        20,
        f"Remove worker addr: {ws.address} name: {ws.name} (stimulus_id={turn.stimulus_id!r})",
    )
    if gone.close:
        turn.to_worker(ws.address, Close(reason="scheduler-remove-worker"))
    turn.instruct(DropWorkerConnection(ws.address))
    _strike_off(state, ws)
    state.spans.note_threads(state.total_nthreads, turn.now)

    recs: Recommendations = {}
    departure = Departure(ws, gone.expected, list(ws.processing))
    part_with_worker(turn, departure, recs)
    recomputed, lost = lose_data(turn, ws, recs)
    processing = [ts.key for ts in departure.tasks]
    _tell_losses(turn, ws, processing, recomputed, lost, gone.expected)
    run(turn, recs)
    refresh_no_workers(state, turn.now)
    if state.plugins is not None:
        state.plugins.remove_worker(ws.address, turn.stimulus_id)
    if not state.workers:
        turn.log(20, "Lost all workers")
    for other in state.workers:
        state.bandwidth_workers.pop((ws.address, other), None)
        state.bandwidth_workers.pop((other, ws.address), None)
        turn.to_worker(other, RemoveWorker(worker=ws.address, stimulus_id=turn.stimulus_id))
    fill_slots(turn)
    turn.reply(stimulus.request_id, "OK")


def _strike_off(state: SchedulerState, ws: WorkerState) -> None:
    """The worker is in no table any more."""
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
    state.domains.forget(ws)
    placement.leave_idle(state, ws)
    state.running.pop(ws, None)
    del state.workers[ws.address]
    state.worker_removed_count += 1
    ws.status = "closed"


def _tell_losses(
    turn: Turn,
    ws: WorkerState,
    processing: list[Key],
    recomputed: list[Key],
    lost: list[Key],
    expected: bool,
) -> None:
    stimulus = f"(stimulus_id={turn.stimulus_id!r})"
    if recomputed:
        turn.log(
            30,
            f"Removing worker {ws.address!r} caused the cluster to lose "
            "already computed task(s), which will be recomputed elsewhere: "
            f"{_some(recomputed)} {stimulus}",
        )
    if lost:
        turn.log(
            40,
            f"Removing worker {ws.address!r} caused the cluster to lose scattered "
            f"data, which can't be recovered: {_some(lost)} {stimulus}",
        )
    event = {
        "action": "remove-worker",
        "processing-tasks": FixedSet(processing),
        "lost-computed-tasks": FixedSet(recomputed),
        "lost-scattered-tasks": FixedSet(lost),
        "stimulus_id": turn.stimulus_id,
        "expected": expected,
    }
    turn.log_event(ws.address, event)
    turn.log_event("all", {**event, "worker": ws.address})


#: A log line names at most this many keys.
KEYS_IN_LOG_LINE = 20


def _some(keys: list[Key]) -> str:
    shown = "{" + ", ".join(map(repr, keys[:KEYS_IN_LOG_LINE])) + "}"
    more = len(keys) - KEYS_IN_LOG_LINE
    return f"{shown} and {more} more" if more > 0 else shown
