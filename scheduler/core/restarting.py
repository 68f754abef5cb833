"""Everything is forgotten at once: the tables are emptied in one turn, and nobody ever sees half of it.

What the tasks hold of one another is taken apart in later turns: nobody sees that either, and 200,000 tasks that
are freed at once would be a long turn.

Must not know: what follows a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.protocol.messages import FreeKeys

from . import departures
from .containers import PriorityQueue
from .transitions import take_apart

if TYPE_CHECKING:
    from .state import SchedulerState, TaskState, WorkerState
    from .turn import Turn

#: Forgotten tasks are taken apart this many times as fast as others make transitions.
DEBRIS_FACTOR = 5


def forget_everything(turn: Turn) -> None:
    """No tasks, no wishes, no histories; workers are told to drop what they have. Graphs are dropped by now."""
    state = turn.state
    tasks = list(state.tasks.values())
    if state.plugins is not None:
        _tell_plugins(turn, tasks)
    _forget_unfinished(state)
    for ws in state.workers.values():
        _empty(turn, ws)
    for ts in tasks:
        if ts.details is not None:
            for address in ts.details.erred_on or ():  # it keeps them until it is told
                if address in state.workers:
                    turn.free_keys(address, ts.key)
    for cs in state.clients.values():
        cs.wants_what = {}
    state.tasks = {}
    state.queued = PriorityQueue()
    state.unrunnable = {}
    state.replicated_tasks = {}
    state.task_metadata.clear()
    state.computations.clear()
    state.erred_tasks.clear()
    state.spans.all_groups_over()
    state.task_groups.clear()
    state.task_prefixes.clear()
    state.compute_occupancy = 0.0
    state.network_occ = 0
    state.no_workers_since = None
    state.debris.add(tasks)
    clear_debris(turn)


def _tell_plugins(turn: Turn, tasks: list[TaskState]) -> None:
    """Plugins hear of each task, as they do in stock; dependents first."""
    plugins = turn.state.plugins
    assert plugins is not None
    for ts in reversed(tasks):
        plugins.transition(
            ts, ts.state, "forgotten", turn.stimulus_id, None, (ts.dependencies, ts.dependents)
        )


def _forget_unfinished(state: SchedulerState) -> None:
    state.commits.clear()
    state.backlog.clear()
    state.let_go.clear()
    departures.forget_departures(state)


def _empty(turn: Turn, ws: WorkerState) -> None:
    """The worker has nothing to do and holds nothing."""
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
    ws.known_counts = {}
    ws.unknown_counts = {}
    ws.unknown_total = 0
    ws.nbytes = 0
    ws.network_occ = 0
    ws.used_resources = dict.fromkeys(ws.resources, 0.0)
    turn.state.restless[ws] = None


def clear_debris(turn: Turn) -> None:
    """Take apart some of the tasks that were forgotten at once."""
    state = turn.state
    for ts in state.debris.take(state.config.turn_tasks_max * DEBRIS_FACTOR):
        take_apart(ts)
    if state.debris:
        turn.wants_continue()
