"""Forget all tasks at once, for a restart.

The tables are emptied in one turn, so that no stimulus sees half of a restart. References between
the forgotten tasks are cleared in later turns, because freeing 200,000 tasks at once would make a
long turn.
"""

from __future__ import annotations

from paceline.protocol.messages import FreeKeys
from paceline.scheduler.core.state.containers import take
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.sharing.fair_queue import FairQueue
from paceline.scheduler.core.turn import Turn

from .extra_runs import refresh_running
from .second_runs import drop_second_run
from .steps import clear_references, mark_forgotten

#: Forgotten tasks torn down per turn, as a multiple of the transitions of a turn.
TEARDOWN_FACTOR = 5


def forget_everything(turn: Turn) -> None:
    """Forget all tasks, desires and histories, and ask workers to free their data.

    Graphs have to be dropped before.
    """
    state = turn.state
    tasks = list(state.tasks.values())
    for ts in list(state.task_policies.second_runs):
        drop_second_run(turn, ts)
    if state.plugins is not None:
        _call_hooks(turn, tasks)
    state.deferred.clear()
    for ws in state.whole_workers.reserved:
        ws.reserved_for = None
        refresh_running(state, ws)
    state.whole_workers.clear()
    for ws in state.workers.values():
        _empty(turn, ws)
    for ts in tasks:
        if ts.details is not None:
            for address in ts.details.erred_on or ():  # workers keep erred tasks until freed
                if address in state.workers:
                    turn.free_keys(address, ts.key)
    for cs in state.clients.values():
        cs.wants_what = {}
    state.tasks = {}
    state.shares.forget_tasks()
    for ws in state.workers.values():  # these runs go on
        for account in ws.extra_runs.values():
            state.shares.start_extra_run(account.share, ws)
    state.queued = FairQueue(state.shares)
    state.unrunnable = {}
    state.replicated_tasks = {}
    state.second_copies.clear()
    state.task_metadata.clear()
    state.computations.clear()
    state.erred_tasks.clear()
    state.spans.all_groups_over()
    state.task_groups.clear()
    state.task_prefixes.clear()
    state.idle_prefixes.clear()
    state.compute_occupancy = 0.0
    state.network_occ = 0
    state.no_workers_since = None
    state.deferred.teardown.extend(tasks)
    run_deferred_teardown(turn)


def _call_hooks(turn: Turn, tasks: list[TaskState]) -> None:
    """Mark `tasks` as forgotten and call their hooks, as stock does; dependents first."""
    plugins = turn.state.plugins
    assert plugins is not None
    for ts in reversed(tasks):
        start = ts.state
        mark_forgotten(ts)
        edges = ts.dependencies, ts.dependents
        plugins.transition(ts, start, "forgotten", turn.stimulus_id, None, edges)


def _empty(turn: Turn, ws: WorkerState) -> None:
    """Remove all tasks and data from `ws`, and ask it to free them."""
    keys = [ts.key for ts in ws.processing]
    keys += [ts.key for ts in ws.has_what]
    if keys:
        turn.to_worker(ws.address, FreeKeys(keys=keys, stimulus_id=turn.stimulus_id))
    ws.processing = {}
    ws.long_running = {}
    ws.executing = {}
    ws.has_what = {}
    ws.actors = {}
    ws.needs_what = {}
    ws.task_prefix_count = {}
    ws.unknown_duration_count = {}
    ws.unknown_duration_total = 0
    ws.nbytes = ws.spilled_nbytes = 0
    ws.network_occ = 0
    ws.used_resources = dict.fromkeys(ws.resources, 0.0)
    turn.state.loads.touch(ws)


def run_deferred_teardown(turn: Turn) -> None:
    """Clear the references of further forgotten tasks."""
    state = turn.state
    for ts in take(state.deferred.teardown, state.config.turn_tasks_max * TEARDOWN_FACTOR):
        clear_references(ts)
    if state.deferred.teardown:
        turn.wants_continue()
