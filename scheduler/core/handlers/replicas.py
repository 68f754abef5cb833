"""Replicas: added, lost, located for workers, and moved.

A worker that is asked to drop a replica that it still needs refuses with ``add-keys``. Dropped
replicas are removed from the state at once, so that the scheduler does not rely on them; acquired
ones are added when the worker reports them.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.protocol import messages as m
from paceline.protocol.keys import Key, has_prefix
from paceline.scheduler.core.graphs.commit import is_lost
from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.lifecycle.new_tasks import new_task
from paceline.scheduler.core.lifecycle.placed_data import become_data
from paceline.scheduler.core.lifecycle.recommendations import is_wanted, recommend_ready_dependents
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run
from paceline.scheduler.core.policy import surplus_replicas
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stimuli import DataPlaced, MoveReplicas, ReplicasAdded, ReplicasLost
from paceline.scheduler.core.turn import ERROR, Registry, Turn

from .clients import client_desires_keys


def handle_add_keys(turn: Turn, message: m.AddKeys) -> None:
    """Add replicas that a worker reports, and drop those that these make unnecessary."""
    state = turn.state
    ws = state.workers.get(turn.source)
    if ws is None:
        return
    fetched: list[TaskState] = []
    if state.drops_replicas and ws.needs_what:
        fetched = surplus_replicas.large_inputs(state, ws, message.keys)
    add_keys(turn, ws, message.keys)
    if fetched:
        plan = surplus_replicas.MemoryPlan(state.config.amm_measure)
        for ts in fetched:
            if not surplus_replicas.may_be_fetched(state, ts):
                surplus_replicas.reduce_replicas_of(state, plan, ts)
        drop_planned(turn, plan)
    if state.admission.is_short:
        fill_slots(turn)


def handle_replicas_added(turn: Turn, message: ReplicasAdded) -> None:
    """Add replicas that a coroutine of the server put on a worker."""
    ws = turn.state.workers.get(message.address)
    if ws is not None:
        add_keys(turn, ws, message.keys)


def add_keys(turn: Turn, ws: WorkerState, keys: Iterable[Key]) -> None:
    """Add ``ws`` to the holders of ``keys``.

    Ask it to remove keys of tasks that are not in state "memory".
    """
    state = turn.state
    redundant = []
    recs: Recs = {}
    for key in keys:
        ts = state.tasks.get(key)
        if ts is None or ts.state != "memory":
            redundant.append(key)
            continue
        was_lost = not ts.who_has  # and its release is deferred
        accounting.add_replica(state, ts, ws)
        if was_lost:
            recommend_ready_dependents(ts, recs)
    run(turn, recs)
    if redundant:
        turn.to_worker(ws.address, m.RemoveReplicas(keys=redundant, stimulus_id=turn.stimulus_id))


def handle_release_worker_data(turn: Turn, message: m.ReleaseWorkerData) -> None:
    """Remove a replica that a worker dropped."""
    drop_replicas(turn, turn.source, [message.key])


def handle_replicas_lost(turn: Turn, message: ReplicasLost) -> None:
    """Remove replicas that a worker turned out not to have."""
    drop_replicas(turn, message.address, message.keys)


def drop_replicas(turn: Turn, address: str, keys: Iterable[Key]) -> None:
    """Remove the replicas on a worker, and release tasks that have no replica left."""
    state = turn.state
    ws = state.workers.get(address)
    if ws is None:
        return
    recs: Recs = {}
    for key in keys:
        ts = state.tasks.get(key)
        if ts is not None and ts in ws.has_what:
            accounting.remove_replica(state, ts, ws)
            ws.actors.pop(ts, None)
            if not ts.who_has and ts.state == "memory":
                recs[ts] = "released"
    run(turn, recs)
    fill_slots(turn)


def handle_request_refresh_who_has(turn: Turn, message: m.RequestRefreshWhoHas) -> None:
    """Send a worker the present holders of keys that it failed to fetch.

    Ask it to free keys that have no holder and that no task on it needs. Otherwise it would repeat
    the request every second for a replica that cannot be made.
    """
    state = turn.state
    ws = state.workers.get(turn.source)
    if ws is None:
        return
    who_has: dict[Key, list[str]] = {}
    unknown: list[Key] = []
    for key in message.keys:
        ts = state.tasks.get(key)
        if ts is None or not (ts.who_has or _is_needed_on(ts, ws)):
            unknown.append(key)
        else:
            who_has[key] = [holder.address for holder in ts.who_has]
    if who_has:
        turn.to_worker(turn.source, m.RefreshWhoHas(who_has=who_has, stimulus_id=turn.stimulus_id))
    if unknown:
        turn.to_worker(turn.source, m.FreeKeys(keys=unknown, stimulus_id=turn.stimulus_id))


def _is_needed_on(ts: TaskState, ws: WorkerState) -> bool:
    """Return whether ``ts`` or one of its dependents is processing on ``ws``."""
    return ts.processing_on is ws or any(dts.processing_on is ws for dts in ts.dependents)


def handle_data_placed(turn: Turn, placed: DataPlaced) -> None:
    """Register data that was put on workers by ``scatter`` or ``update_data``.

    Keys that no present worker holds are reported to the client as cancelled.
    """
    state = turn.state
    recs: Recs = {}
    placed_tasks: list[TaskState] = []
    lost: dict[Key, None] = {}
    for key, addresses in placed.who_has.items():
        ws_list = [ws for ws in map(state.resolve_worker, addresses) if ws is not None]
        ts = state.tasks.get(key)
        if not ws_list:
            if is_lost(ts):
                lost[key] = None
            continue
        if ts is None:
            if not has_prefix(key):
                turn.log(ERROR, f"Ignoring data under the invalid key {key!r}")
                continue
            ts = new_task(state, key, placed.client)
        placed_tasks.append(ts)
        become_data(turn, ts, placed.nbytes.get(key, -1), ws_list, recs)
        report = m.KeyInMemory(key=key, workers=[ws.address for ws in ws_list])
        turn.to_clients(ts.who_wants, report)
    if placed.client:
        client_desires_keys(turn, [key for key in placed.who_has if key not in lost], placed.client)
        if lost:
            turn.to_client(placed.client, m.CancelledKeys(keys=list(lost), reason="lost data"))
    for ts in placed_tasks:
        # scattered data that no client wants stays, as in stock
        if ts.run_spec is not None and not is_wanted(ts):
            recs[ts] = "released"
    run(turn, recs)
    fill_slots(turn)


# ------------------------------------------------------------------ requests to workers


def handle_move_replicas(turn: Turn, command: MoveReplicas) -> None:
    """Ask workers to acquire and drop replicas, as the server or a plugin decided."""
    state = turn.state
    for address, keys in command.acquire.items():
        ws = state.workers.get(address)
        if ws is not None:
            acquire(turn, ws, _known(state, keys))
    for address, keys in command.drop.items():
        ws = state.workers.get(address)
        if ws is not None:
            drop(turn, ws, _known(state, keys))


def _known(state: SchedulerState, keys: Iterable[Key]) -> list[TaskState]:
    return [ts for ts in map(state.tasks.get, keys) if ts is not None]


def acquire(turn: Turn, ws: WorkerState, tasks: Iterable[TaskState]) -> None:
    """Ask ``ws`` to fetch replicas in the background."""
    who_has = {}
    nbytes = {}
    for ts in tasks:
        if ts.state == "memory" and ts.who_has and not ts.actor and ws not in ts.who_has:
            who_has[ts.key] = [holder.address for holder in ts.who_has]
            nbytes[ts.key] = ts.nbytes
    if who_has:
        turn.to_worker(
            ws.address,
            m.AcquireReplicas(who_has=who_has, nbytes=nbytes, stimulus_id=turn.stimulus_id),
        )


def drop(turn: Turn, ws: WorkerState, tasks: Iterable[TaskState]) -> None:
    """Ask ``ws`` to drop replicas of ``tasks``.

    The last replica of a task is kept, as are those that a task on ``ws`` needs.
    """
    keys = []
    for ts in tasks:
        if ts.state != "memory" or ws not in ts.who_has or len(ts.who_has) < 2 or ts.actor:
            continue
        if ws in surplus_replicas.users_of(turn.state, ts):
            continue
        accounting.remove_replica(turn.state, ts, ws)
        keys.append(ts.key)
    if keys:
        turn.to_worker(ws.address, m.RemoveReplicas(keys=keys, stimulus_id=turn.stimulus_id))


def drop_planned(turn: Turn, plan: surplus_replicas.MemoryPlan) -> None:
    """Ask workers to drop the replicas in ``plan``."""
    for ws, tasks in plan.drops.items():
        drop(turn, ws, tasks)


#: Message class -> handler.
HANDLERS: Registry = {
    MoveReplicas: handle_move_replicas,
    m.AddKeys: handle_add_keys,
    ReplicasAdded: handle_replicas_added,
    m.ReleaseWorkerData: handle_release_worker_data,
    ReplicasLost: handle_replicas_lost,
    m.RequestRefreshWhoHas: handle_request_refresh_who_has,
    DataPlaced: handle_data_placed,
}
