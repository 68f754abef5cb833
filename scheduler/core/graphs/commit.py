"""The commit of a graph: receive its rows, begin it, run its stages, drop it.

Rows are inserted dependencies first, so that a task's dependencies always exist. Other turns may
come in between, so each row is checked again for clients that left and keys that were cancelled.
External dependencies are pinned while a commit takes several turns.
"""

from __future__ import annotations

from paceline.protocol.keys import Key
from paceline.protocol.messages import CancelledKeys, TaskErredReport
from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.lifecycle.availability import free_thread_of
from paceline.scheduler.core.lifecycle.recommendations import release_desire
from paceline.scheduler.core.lifecycle.transitions import run
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.graphs.computations import Computation, note_code
from paceline.scheduler.core.state.graphs.pending_graph import PendingGraph
from paceline.scheduler.core.state.model import ClientState, TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stimuli import (
    GraphChunk,
    GraphCommit,
    GraphDropped,
    GraphFailed,
    GraphRestarted,
)
from paceline.scheduler.core.turn import ERROR, INFO, Registry, Turn

from . import stages
from .insert import insert
from .stages import Stage

#: The generation of tasks that a task submits is this much less than the first item of its
#: priority. As in stock, they precede all other graphs.
SUBTASK_GENERATION_STEP = 0.01

#: Dropped graphs that are remembered, to ignore chunks that their compilers had already sent.
DROPPED_GRAPHS_MAX = 10_000


_RELEASE_PINS = Stage(
    "release_pins",
    stages.release_pins,
    stages.n_pins,
    counts_edges=False,
    finish=stages.remove_placeholder,
)
#: Stages of a commit, in order.
STAGES = (
    Stage("insert", insert, lambda graph: len(graph.keys)),
    Stage(
        "register",
        stages.register,
        lambda graph: graph.n_wanted,
        counts_edges=False,
        finish=stages.finish_registration,
    ),
    Stage("mark_needed", stages.mark_needed, backwards=True),
    Stage("activate", stages.activate),
    Stage(
        "prune",
        stages.prune,
        lambda graph: len(graph.tasks) if graph.needs_prune else 0,
        backwards=True,
        finish=stages.sort_ready,
    ),
    Stage("dispatch", stages.dispatch, lambda graph: len(graph.ready), counts_edges=False),
    _RELEASE_PINS,
)
#: Stages of a graph that was dropped during its commit.
ROLLBACK_STAGES = (
    _RELEASE_PINS,
    Stage("rollback", stages.rollback, backwards=True, counts_edges=False),
)


def handle_graph_chunk(turn: Turn, chunk: GraphChunk) -> None:
    """Store rows of a graph until its commit."""
    if chunk.graph_id in turn.state.dropped_graphs:
        return
    graph = turn.state.graphs.get(chunk.graph_id)
    if graph is None:
        if turn.source not in turn.state.clients:
            return  # its client left while the graph was compiled
        graph = PendingGraph(chunk.graph_id, turn.source)
        turn.state.graphs[chunk.graph_id] = graph
    graph.add(chunk)


def handle_graph_restarted(turn: Turn, message: GraphRestarted) -> None:
    """Discard the chunks received so far of a graph that is compiled again."""
    turn.state.graphs.pop(message.graph_id, None)


def handle_graph_dropped(turn: Turn, message: GraphDropped) -> None:
    """Drop a cancelled graph and roll back its commit."""
    drop_graph(turn, message.graph_id)
    if turn.state.deferred.commits:
        turn.wants_continue()


def handle_graph_failed(turn: Turn, failed: GraphFailed) -> None:
    """Report a graph that could not be compiled to its client and others that wait for its keys.

    Clients that want a key of an earlier graph or of scattered data do not wait for this one.
    """
    state = turn.state
    state.graphs.pop(failed.graph_id, None)
    turn.log_event(
        ["scheduler", failed.client],
        {"action": "update-graph", "stimulus_id": turn.stimulus_id, "status": "error"},
    )
    turn.log(ERROR, failed.text)
    for key in failed.keys:
        report = TaskErredReport(key=key, exception=failed.exception, traceback=failed.traceback)
        ts = state.tasks.get(key)
        names: list[str] = []
        if ts is not None and ts.run_spec is None and not ts.who_has:
            names += [cs.client_key for cs in ts.who_wants]
        if failed.client not in names:
            names.append(failed.client)
        for name in names:
            turn.to_client(name, report)


def handle_graph_commit(turn: Turn, commit: GraphCommit) -> None:
    """Queue a complete graph for its commit. Graphs are committed in the order of their arrival."""
    state = turn.state
    graph = state.graphs.get(commit.graph_id)
    if commit.client not in state.clients or commit.graph_id in state.dropped_graphs:
        return  # the client or the graph was removed during compilation
    if graph is None:
        graph = PendingGraph(commit.graph_id, commit.client)
        state.graphs[commit.graph_id] = graph
    graph.client = commit.client
    graph.commit = commit
    graph.stimulus_id = turn.stimulus_id
    state.deferred.commits.append(graph)
    if len(state.deferred.commits) == 1:
        run_commits(turn)
    else:
        turn.wants_continue()


def drop_graph(turn: Turn, graph_id: int) -> None:
    """Drop a graph and ignore its further chunks. Later turns roll back a commit that has begun."""
    state = turn.state
    if len(state.dropped_graphs) >= DROPPED_GRAPHS_MAX:
        del state.dropped_graphs[next(iter(state.dropped_graphs))]
    state.dropped_graphs[graph_id] = None
    graph = state.graphs.pop(graph_id, None)
    if graph is None or graph not in state.deferred.commits:
        return
    if graph.has_begun:
        graph.dropped = True
        graph.stage = ROLLBACK_STAGES[0].name
        graph.cursor = 0
        turn.wants_continue()
    else:
        state.deferred.commits.remove(graph)


def run_commits(turn: Turn) -> None:
    """Continue with commits, for as many rows as a turn allows."""
    state = turn.state
    budget = state.config.turn_tasks_max
    while state.deferred.commits and budget > 0:
        graph = state.deferred.commits[0]
        if graph.stage != "done":
            turn.stimulus_id = graph.stimulus_id
            try:
                budget -= _run_commit(turn, graph, budget)
            except Exception:  # a defect must not block the graphs behind this one
                state.deferred.commits.popleft()
                state.graphs.pop(graph.graph_id, None)
                raise
        if graph.stage == "done":
            state.graphs.pop(graph.graph_id, None)
            if graph.free_rows():
                break
            state.deferred.commits.popleft()
    if state.deferred.commits:
        turn.wants_continue()


def _run_commit(turn: Turn, graph: PendingGraph, budget: int) -> int:
    """Process rows of a commit up to a cost of ``budget``. Return the cost, at least 1."""
    if not graph.has_begun and not _begin(turn, graph, budget):
        graph.stage = "done"
        return 1
    done = 0
    while graph.stage != "done" and done < budget:
        done += 1 + _run_stage(turn, graph, budget - done)
    return max(done, 1)


def _run_stage(turn: Turn, graph: PendingGraph, budget: int) -> int:
    """Run the current stage for rows up to a cost of ``budget``. Return the cost.

    The stage after the last row is the next one.
    """
    order = ROLLBACK_STAGES if graph.dropped else STAGES
    position = next(i for i, stage in enumerate(order) if stage.name == graph.stage)
    stage = order[position]
    n_rows = stage.n_rows(graph)
    rows, cost = graph.next_rows(
        n_rows, budget, backwards=stage.backwards, counts_edges=stage.counts_edges
    )
    stage.run(turn, graph, rows)
    graph.cursor += len(rows)
    if graph.cursor >= n_rows:
        if stage.finish is not None:
            stage.finish(turn, graph)
        graph.cursor = 0
        if position + 1 < len(order):
            graph.stage = order[position + 1].name
        else:
            graph.stage = "done"
            stages.finish_commit(turn, graph)
    return cost


def _begin(turn: Turn, graph: PendingGraph, budget: int) -> bool:
    """Check external dependencies and prepare the commit. Return False if the graph is refused."""
    state = turn.state
    commit = graph.commit
    assert commit is not None
    externals = [state.tasks.get(key) for key in graph.external_dependencies]
    missing = [
        k for k, ts in zip(graph.external_dependencies, externals, strict=True) if is_lost(ts)
    ]
    if missing:
        _refuse_lost(turn, graph, missing)
        return False
    graph.external_tasks = [ts for ts in externals if ts is not None]
    parent = state.tasks.get(commit.submitting_task)
    if commit.submitting_task is not None and (parent is None or parent.state != "processing"):
        free_thread_of(turn, commit.submitting_task)
    if parent is None:
        graph.account = state.shares.account(commit.client)
    else:
        graph.account = parent.account
        parent.ensure_details().parent_run_id = parent.run_id
    graph.generation = _next_generation(state, commit, parent)
    graph.needed = bytearray(len(graph.keys))
    graph.computation = _computation(turn, commit)
    if not graph.fits(budget):
        graph.needs_prune = True
        graph.placeholder_client = ClientState(f"graph-{graph.graph_id}")
        for ts in graph.external_tasks:
            accounting.add_desire(ts, graph.placeholder_client)
    return True


def is_lost(ts: TaskState | None) -> bool:
    """Return whether the data of ``ts`` can never exist: it is unknown, or has no run_spec."""
    return ts is None or (ts.run_spec is None and ts.state == "released")


def _refuse_lost(turn: Turn, graph: PendingGraph, missing: list[Key]) -> None:
    commit = graph.commit
    assert commit is not None
    keys = graph.wanted()
    for key in missing[:10]:
        turn.log(
            INFO,
            "User asked for computation on lost data. "
            f"Final key is {keys[0] if keys else None!s} with missing dependency {key!s}",
        )
    turn.to_client(graph.client, CancelledKeys(keys=list(keys), reason="lost dependencies"))
    cs = turn.state.clients.get(graph.client)
    recs: Recs = {}
    if cs is not None:
        for key in keys:
            ts = turn.state.tasks.get(key)
            if ts is not None:
                release_desire(ts, cs, recs)
    run(turn, recs)
    turn.log_event(
        ["scheduler", graph.client],
        {"action": "update-graph", "stimulus_id": turn.stimulus_id, "status": "cancelled"},
    )


def _next_generation(state: SchedulerState, commit: GraphCommit, parent: TaskState | None) -> float:
    """Return the generation of a graph, which the task `parent` has submitted if it is known.

    Graphs in quick succession share one.
    """
    if commit.submitting_task is not None:
        if parent is not None and parent.priority is not None:
            return parent.priority[0] - SUBTASK_GENERATION_STEP
    elif state.last_graph_at + commit.fifo_timeout_seconds < commit.received_at:
        state.generation += 1
        state.last_graph_at = commit.received_at
    return state.generation


def _computation(turn: Turn, commit: GraphCommit) -> Computation:
    state = turn.state
    if state.computations and not state.is_idle:
        computation = state.computations[-1]
    else:
        computation = Computation(start=turn.now, id=f"computation-{state.transition_counter}")
        state.computations.append(computation)
    note_code(computation.codes, commit.code)
    if commit.global_annotations:
        computation.annotations.update(commit.global_annotations)
    return computation


#: Message class -> handler.
HANDLERS: Registry = {
    GraphChunk: handle_graph_chunk,
    GraphRestarted: handle_graph_restarted,
    GraphDropped: handle_graph_dropped,
    GraphFailed: handle_graph_failed,
    GraphCommit: handle_graph_commit,
}
