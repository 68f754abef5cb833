"""Spans of the task groups of a graph, from the annotations of its tasks.

As in stock, all tasks of a group are in the span of the first one; the annotations of the others
are changed to match.
"""

from __future__ import annotations

from typing import Any

from paceline.protocol.payload import Payload
from paceline.scheduler.core.state.graphs.pending_graph import PendingGraph
from paceline.scheduler.core.state.graphs.spans import SpanTree
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.stimuli import AnnotationSet
from paceline.scheduler.core.turn import Turn


def note_span(graph: PendingGraph, ts: TaskState, annotations: AnnotationSet) -> None:
    """Record the span that the annotations of the new task `ts` name."""
    path = annotations.span
    if path is None:
        if ts.group.span_id is not None:
            graph.other_spans.append((ts, annotations))
        return
    group = ts.group
    first = graph.spans.setdefault(group, path)
    elsewhere = group.span_id is not None and group.span_id != path[1][-1]
    if elsewhere or (first is not path and first != path):
        graph.other_spans.append((ts, annotations))


def observe_spans(turn: Turn, graph: PendingGraph) -> None:
    """Assign a span to each group of `graph`, when its tasks exist and none is scheduled yet.

    Roots of the graph go first, so that spans are in the same order as in stock.
    """
    commit = graph.commit
    assert commit is not None
    known = turn.state.task_groups
    groups = [known[name] for name, _ in graph.group_names[::-1] if name in known]
    tree = turn.state.spans
    tree.observe(
        [(group, graph.spans.get(group)) for group in groups],
        turn.now,
        commit.code,
        commit.span_metadata,
    )
    for ts, annotation_set in graph.other_spans:
        follow_group(tree, ts, annotation_set)


def follow_group(tree: SpanTree, ts: TaskState, annotations: AnnotationSet | None) -> None:
    """Change the annotations of `ts` to name the span of its group."""
    span = tree.spans.get(ts.group.span_id or "")
    if span is None:
        return
    present: Any = ts.annotations
    wanted = span.annotation
    if isinstance(present, Payload):
        if annotations is not None and annotations.span is not None:
            ts.annotations = annotations.value_less_span
        return
    if (present or {}).get("span") == wanted:
        return
    changed = {name: value for name, value in (present or {}).items() if name != "span"}
    if wanted is not None:
        changed["span"] = wanted
    ts.annotations = changed or None
