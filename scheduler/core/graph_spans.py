"""Which spans a graph's task groups belong to: what its annotations say, and what becomes of tasks that say otherwise.

All tasks of a group are in one span, that of the first that was seen, as in stock; the others' annotations follow.

Must not know: how a graph is taken in; who reads spans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.protocol.payload import Payload

if TYPE_CHECKING:
    from .graphs import PendingGraph
    from .spans import SpanTree
    from .state import TaskState
    from .stimuli import AnnotationSet
    from .turn import Turn


def note_span(graph: PendingGraph, ts: TaskState, annotations: AnnotationSet) -> None:
    """A task that is annotated with a span was taken in."""
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
    """All tasks of a graph are there, and none is scheduled: each of its groups gets its span.

    Roots of the graph go first, so that spans stand in the order in which stock has them.
    """
    commit = graph.commit
    assert commit is not None
    known = turn.state.task_groups
    groups = [known[name] for name, _ in reversed(graph.group_names) if name in known]
    tree = turn.state.spans
    tree.observe(
        [(group, graph.spans.get(group)) for group in groups],
        turn.now,
        commit.code,
        commit.span_metadata,
    )
    for ts, said in graph.other_spans:
        follow_group(tree, ts, said)


def follow_group(tree: SpanTree, ts: TaskState, annotations: AnnotationSet | None) -> None:
    """A task's annotations name the span of its group, whatever they said."""
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
