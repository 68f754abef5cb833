"""Graphs: chunks, failures, and the start of a commit."""

from __future__ import annotations

from paceline.protocol.messages import TaskErredReport
from paceline.scheduler.core.graphs.commit import drop_graph, run_commits
from paceline.scheduler.core.state.pending_graph import PendingGraph
from paceline.scheduler.core.stimuli import (
    GraphChunk,
    GraphCommit,
    GraphDropped,
    GraphFailed,
    GraphRestarted,
)
from paceline.scheduler.core.turn import Turn


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
    """Report a graph that could not be compiled to its client and others that want its keys."""
    state = turn.state
    state.graphs.pop(failed.graph_id, None)
    turn.log_event(
        ["scheduler", failed.client],
        {"action": "update-graph", "stimulus_id": turn.stimulus_id, "status": "error"},
    )
    turn.log(40, failed.text)
    for key in failed.keys:
        report = TaskErredReport(key=key, exception=failed.exception, traceback=failed.traceback)
        ts = state.tasks.get(key)
        names = [cs.client_key for cs in ts.who_wants] if ts is not None else []
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
