"""Graphs written as ``{key: [dependencies]}``, converted as a graph compiler does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.protocol.keys import Key, key_group, key_split
from paceline.scheduler.core.stimuli import AnnotationSet, GraphChunk, GraphCommit

Graph = Mapping[Key, Iterable[Key]]


def topological(graph: Graph) -> list[Key]:
    """Return the keys of `graph`, dependencies first, otherwise in their order."""
    out: dict[Key, None] = {}
    for root in graph:
        stack = [root]
        while stack:
            key = stack[-1]
            missing = [d for d in graph[key] if d in graph and d not in out]
            if missing:
                stack.append(missing[0])
            else:
                out[stack.pop()] = None
    return list(out)


@dataclass
class Rows:
    """Properties of the tasks of a graph besides their dependencies.

    Attributes:
        annotations: key -> annotations.
        producers: keys of tasks whose spec is marked as a data producer.
        priorities: key -> position in dask's order. The default is the order of the rows.
        commit: further fields of the commit.
    """

    annotations: dict[Key, AnnotationSet] = field(default_factory=dict)
    producers: Iterable[Key] = ()
    priorities: dict[Key, int] = field(default_factory=dict)
    commit: dict[str, Any] = field(default_factory=dict)


def compile_rows(
    graph: Graph, graph_id: int, want: list[Key], client: str, rows: Rows, chunk_size: int = 10_000
) -> list[GraphChunk | GraphCommit]:
    """Return the chunks of `graph`, each with at most `chunk_size` rows, and its commit."""
    order = topological(graph)
    number = {key: row for row, key in enumerate(order)}
    externals: dict[Key, int] = {}
    groups: dict[str, int] = {}
    sets: list[AnnotationSet] = []
    out: list[GraphChunk | GraphCommit] = []
    for first in range(0, len(order), chunk_size):
        keys = order[first : first + chunk_size]
        chunk = GraphChunk(graph_id, keys, [], [], [], [], [], [])
        for row, key in enumerate(keys):
            name = key_group(key)
            if name not in groups:
                groups[name] = len(groups)
                chunk.new_groups.append((name, key_split(key)))
            chunk.groups.append(groups[name])
            chunk.dependencies.append(
                [_dependency(d, number, externals, chunk) for d in graph[key]]
            )
            chunk.run_specs.append(b"run " + repr(key).encode())
            chunk.priorities.append(rows.priorities.get(key, first + row))
            if key in rows.producers:
                chunk.data_producers.append(row)
            annotation = rows.annotations.get(key)
            if annotation is not None:
                if annotation not in sets:
                    sets.append(annotation)
                    chunk.new_annotations.append(annotation)
                chunk.annotations[row] = sets.index(annotation)
        out.append(chunk)
    commit = {"n_tasks": len(order), **rows.commit}
    wanted = list(want)
    n_rows = next((i for i, key in enumerate(wanted) if key not in number), len(wanted))
    by_number = [number[key] for key in wanted[:n_rows]]
    out.append(GraphCommit(graph_id, wanted[n_rows:], client, rows=by_number, **commit))
    return out


def _dependency(
    key: Key, number: dict[Key, int], externals: dict[Key, int], chunk: GraphChunk
) -> int:
    if key in number:
        return number[key]
    if key not in externals:
        externals[key] = len(externals)
        chunk.new_externals.append(key)
    return -1 - externals[key]
