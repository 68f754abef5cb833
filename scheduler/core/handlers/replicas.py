"""Where data lies: copies that came, went, or are asked for.

Must not know: how data moves.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.protocol.keys import Key
from paceline.protocol.messages import FreeKeys, KeyInMemory, RefreshWhoHas, RemoveReplicas

from .. import mirrors
from ..needs import Recommendations, is_wanted
from ..state import TaskState, WorkerState
from ..stimuli import Stimulus
from ..transitions import become_data, fill_slots, run
from ..turn import Turn
from .clients import client_desires_keys
from .graph import new_task


def handle_add_keys(turn: Turn, stimulus: Stimulus) -> None:
    """A worker fetched copies, or tells what it holds."""
    ws = turn.state.workers.get(stimulus.source)
    if ws is not None:
        add_keys(turn, ws, stimulus.message.keys)


def handle_replicas_added(turn: Turn, stimulus: Stimulus) -> None:
    """A flow placed copies on a worker."""
    ws = turn.state.workers.get(stimulus.message.address)
    if ws is not None:
        add_keys(turn, ws, stimulus.message.keys)


def add_keys(turn: Turn, ws: WorkerState, keys: Iterable[Key]) -> None:
    """The worker holds copies; those that nobody knows as data it is told to drop."""
    state = turn.state
    redundant = []
    for key in keys:
        ts = state.tasks.get(key)
        if ts is not None and ts.state == "memory":
            mirrors.add_replica(state, ts, ws)
        else:
            redundant.append(key)
    if redundant:
        turn.to_worker(ws.address, RemoveReplicas(keys=redundant, stimulus_id=turn.stimulus_id))


def handle_release_worker_data(turn: Turn, stimulus: Stimulus) -> None:
    """A worker dropped a copy."""
    drop_replicas(turn, stimulus.source, [stimulus.message.key])


def handle_replicas_lost(turn: Turn, stimulus: Stimulus) -> None:
    """A worker was found not to have copies that it was thought to have."""
    drop_replicas(turn, stimulus.message.address, stimulus.message.keys)


def drop_replicas(turn: Turn, address: str, keys: Iterable[Key]) -> None:
    """Copies on a worker are gone; tasks whose last copy it was are released."""
    state = turn.state
    ws = state.workers.get(address)
    if ws is None:
        return
    recs: Recommendations = {}
    for key in keys:
        ts = state.tasks.get(key)
        if ts is not None and ts in ws.has_what:
            mirrors.remove_replica(state, ts, ws)
            ws.actors.pop(ts, None)
            if not ts.who_has and ts.state == "memory":
                recs[ts] = "released"
    run(turn, recs)
    fill_slots(turn)


def handle_request_refresh_who_has(turn: Turn, stimulus: Stimulus) -> None:
    """A worker did not find data where it was told: where is it now?

    What nobody has, and no task on that worker needs, it is told to forget: it was asked to make a copy that cannot be made, and
    would ask again every second for as long as the task is known.
    """
    state = turn.state
    ws = state.workers.get(stimulus.source)
    if ws is None:
        return
    who_has: dict[Key, list[str]] = {}
    unknown: list[Key] = []
    for key in stimulus.message.keys:
        ts = state.tasks.get(key)
        if ts is None or not (ts.who_has or _is_needed_on(ts, ws)):
            unknown.append(key)
        else:
            who_has[key] = [holder.address for holder in ts.who_has]
    if who_has:
        turn.to_worker(
            stimulus.source, RefreshWhoHas(who_has=who_has, stimulus_id=turn.stimulus_id)
        )
    if unknown:
        turn.to_worker(stimulus.source, FreeKeys(keys=unknown, stimulus_id=turn.stimulus_id))


def _is_needed_on(ts: TaskState, ws: WorkerState) -> bool:
    """Whether the worker was sent the task, or one that takes its result."""
    return ts.processing_on is ws or any(dts.processing_on is ws for dts in ts.dependents)


def handle_data_placed(turn: Turn, stimulus: Stimulus) -> None:
    """Data was put on workers from outside (scatter, update_data)."""
    state = turn.state
    placed = stimulus.message
    recs: Recommendations = {}
    placed_tasks: list[TaskState] = []
    for key, addresses in placed.who_has.items():
        ws_list = [ws for ws in map(state.resolve_worker, addresses) if ws is not None]
        ts = state.tasks.get(key)
        if not ws_list:
            continue
        if ts is None:
            ts = new_task(state, key)
        placed_tasks.append(ts)
        become_data(turn, ts, placed.nbytes.get(key, -1), ws_list, recs)
        report = KeyInMemory(key=key, workers=[ws.address for ws in ws_list])
        for cs in ts.who_wants:
            turn.to_client(cs.client_key, report)
    if placed.client:
        client_desires_keys(turn, list(placed.who_has), placed.client)
    for ts in placed_tasks:
        # pure data that was placed for nobody stays, as in stock: somebody may come for it
        if ts.run_spec is not None and not is_wanted(ts):
            recs[ts] = "released"
    run(turn, recs)
    fill_slots(turn)
