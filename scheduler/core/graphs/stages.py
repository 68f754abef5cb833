"""The stages of a commit that follow the insertion of its rows. ``commit.py`` runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from paceline.protocol.messages import CancelledKeys
from paceline.scheduler.core.graphs.graph_spans import observe_spans
from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.lifecycle.outgoing import report_to
from paceline.scheduler.core.lifecycle.recommendations import (
    due,
    erred_dependency,
    is_wanted,
    priority_of,
    release_desire,
)
from paceline.scheduler.core.lifecycle.slots import fill_slots
from paceline.scheduler.core.lifecycle.transitions import run, transition
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.graphs.pending_graph import PendingGraph
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import ACTIVE_STATES
from paceline.scheduler.core.stimuli import GraphCommit
from paceline.scheduler.core.turn import Turn


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a commit.

    Attributes:
        name: as in ``PendingGraph.stage``.
        run: processes some rows, in the order of the range.
        n_rows: returns the number of rows to process; by default all.
        backwards: process the last row first, so that dependents come before their dependencies.
        counts_edges: dependencies of the rows count towards the budget.
        finish: called after the last row, or None.
    """

    name: str
    run: Callable[[Turn, PendingGraph, range], None]
    n_rows: Callable[[PendingGraph], int] = lambda graph: len(graph.tasks)
    backwards: bool = False
    counts_edges: bool = True
    finish: Callable[[Turn, PendingGraph], None] | None = None


# -- register: the client wants its keys


def register(turn: Turn, graph: PendingGraph, rows: range) -> None:
    """Add the keys that the client wants, and report those that are finished.

    A released key that is not a row of the graph is recomputed.
    """
    state = turn.state
    assert graph.commit is not None
    n_rows = len(graph.commit.rows)
    cs = state.clients[graph.client]
    unknown = []
    recs: Recs = {}
    for number, key in enumerate(graph.wanted(rows.start, rows.stop), rows.start):
        if key in graph.cancelled_keys:
            continue
        ts = state.tasks.get(key)
        if ts is None:
            unknown.append(key)
        else:
            accounting.add_desire(ts, cs)
            report_to(turn, ts, graph.client)
            if number >= n_rows and ts.state == "released" and ts.run_spec is not None:
                recs[ts] = "waiting"
    run(turn, recs)
    if unknown:
        turn.to_client(graph.client, CancelledKeys(keys=unknown, reason="lost dependencies"))


def finish_registration(turn: Turn, graph: PendingGraph) -> None:
    """Mark actors, assign spans and call plugins, before any task of the graph is scheduled."""
    state = turn.state
    commit = graph.commit
    assert commit is not None
    actors = graph.wanted() if commit.actors is True else (commit.actors or ())
    for key in actors:
        ts = state.tasks.get(key)
        if ts is not None:
            ts.actor = True
    observe_spans(turn, graph)
    if state.plugins is not None:
        state.plugins.update_graph(
            client=graph.client,
            keys=graph.wanted(),
            touched=lambda: _touched(state, graph),
            new_tasks=graph.new_tasks,
            stimulus_id=turn.stimulus_id,
        )


def _touched(state: SchedulerState, graph: PendingGraph) -> list[TaskState]:
    """Return the tasks of a graph, wanted tasks, and dependencies, as stock passes to plugins."""
    found = dict.fromkeys(graph.tasks)
    for key in graph.wanted():
        if key in state.tasks:
            found[state.tasks[key]] = None
    for ts in graph.tasks:
        found.update(dict.fromkeys(ts.dependencies))
    return list(found)


# -- mark_needed: find the tasks that have to run


def mark_needed(turn: Turn, graph: PendingGraph, rows: range) -> None:
    """Mark rows that a client or a needed dependent needs; forget rows that neither needs."""
    tasks = graph.tasks
    is_new = graph.is_new
    if is_new and rows:  # all dependents belong to the graph, so each row that has some is needed
        graph.needed[rows[-1] : rows[0] + 1] = b"\1" * len(rows)
    for row in rows:
        ts = tasks[row]
        if not ts.dependents and not ts.who_wants:
            if ts.state != "memory":  # it may have failed in another turn
                run(turn, {ts: "forgotten"})
        elif not is_new and ts.state == "released":
            _need_dependencies(graph, row, ts)


def _need_dependencies(graph: PendingGraph, row: int, ts: TaskState) -> None:
    """Mark the dependencies of ``row`` if it is needed itself."""
    needed = graph.needed
    if needed[row] or ts.who_wants or ts.waiters_count:
        needed[row] = 1
        if row not in graph.collisions:
            for n in graph.dependencies[row]:
                if n >= 0:
                    needed[n] = 1


# -- activate: needed tasks to waiting, dependencies first


def activate(turn: Turn, graph: PendingGraph, rows: range) -> None:
    """Move needed tasks to waiting, and collect those that can run in ``graph.ready``."""
    ready = graph.ready
    needed = graph.needed
    is_new = graph.is_new
    last = priority_of(ready[-1]) if ready else ()
    recs: Recs = {}
    for row in rows:
        ts = graph.tasks[row]
        blame = erred_dependency(ts) if ts.dependencies and not is_new else None
        if blame is not None and ts.state not in ("memory", "erred", "forgotten"):
            graph.needs_prune = True
            recs[ts] = "erred"
            run(turn, recs)
            continue
        if not needed[row] or ts.state != "released":
            continue
        transition(turn, ts, "waiting", recs)
        if recs.get(ts) == "processing":
            del recs[ts]
            priority = priority_of(ts)
            if priority < last:
                graph.sorts_ready = True
            last = priority
            ready.append(ts)
        if recs:  # released external dependencies run too
            run(turn, recs)


# -- prune: back to released what is not needed after all


def prune(turn: Turn, graph: PendingGraph, rows: range) -> None:
    """Release tasks that were activated for a dependent that did not become active."""
    for row in rows:
        ts = graph.tasks[row]
        if ts.state in ACTIVE_STATES and not is_wanted(ts):
            run(turn, {ts: "released"})


def sort_ready(turn: Turn, graph: PendingGraph) -> None:
    """Sort the tasks to dispatch by priority, unless the graph compiler has done so."""
    if graph.sorts_ready:
        graph.ready.sort(key=priority_of)


# -- dispatch: tasks that can run to workers


def dispatch(turn: Turn, graph: PendingGraph, rows: range) -> None:
    """Move ready tasks to processing, highest priority first."""
    recs: Recs = {}
    for position in rows:
        ts = graph.ready[position]
        if ts.state == "waiting" and not ts.waiting_count:
            transition(turn, ts, "processing", recs)
            if recs:
                run(turn, recs)


# -- release_pins: release what the commit retained


def n_pins(graph: PendingGraph) -> int:
    """Return the number of pinned tasks, with those that are released already."""
    cs = graph.placeholder_client
    return graph.cursor + len(cs.wants_what) if cs is not None else 0


def release_pins(turn: Turn, graph: PendingGraph, rows: range) -> None:
    """Release the latest pinned tasks."""
    cs = graph.placeholder_client
    if cs is None:
        return
    for ts in list(islice(reversed(cs.wants_what), len(rows))):
        recs: Recs = {}
        release_desire(ts, cs, recs)
        run(turn, recs)


def remove_placeholder(turn: Turn, graph: PendingGraph) -> None:
    """Remove the client that held the pins."""
    graph.placeholder_client = None


# -- rollback: the graph was dropped during its commit


def rollback(turn: Turn, graph: PendingGraph, rows: range) -> None:
    """Make the transitions that are due without the keys that the client wanted."""
    for row in rows:
        ts = graph.tasks[row]
        what = due(turn.state, ts, "")
        if what is not None:
            run(turn, {ts: what})


# -- done


def finish_commit(turn: Turn, graph: PendingGraph) -> None:
    """Fill free slots, and log the event of a committed graph."""
    fill_slots(turn)
    if not graph.dropped:
        assert graph.commit is not None
        turn.log_event(["scheduler", graph.client], _event(turn, graph, graph.commit))


def _event(turn: Turn, graph: PendingGraph, commit: GraphCommit) -> dict[str, Any]:
    """Return the event that stock logs for a graph; durations are in seconds."""
    total = turn.now - commit.received_at
    return {
        "action": "update-graph",
        "stimulus_id": turn.stimulus_id,
        "metrics": {
            "tasks": commit.n_tasks or len(graph.keys),
            "new_tasks": len(graph.new_tasks),
            "key_collisions": len(graph.collisions),
            "start_timestamp_seconds": commit.received_at,
            "materialization_duration_seconds": commit.materialized_seconds,
            "ordering_duration_seconds": commit.ordered_seconds,
            "state_initialization_duration_seconds": max(
                0.0, total - commit.materialized_seconds - commit.ordered_seconds
            ),
            "duration_seconds": total,
        },
        "status": "OK",
    }
