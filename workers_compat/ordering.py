"""Which task comes before which: dask's static order, and rows with dependencies first.

dask's own ``order`` decides. It walks sets of keys, so its choice among equals depends on the hash seed;
here it is given small integers that print like the keys, which makes it deterministic, and faster.

Must not know: pickles, chunks, where a graph came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dask._task_spec import DataNode, GraphNode, Task
from dask.order import order as dask_order

_NOTHING: frozenset[Any] = frozenset()


class _TaskNode(Task):
    """All of a task that the order looks at: its dependencies, and that it is one."""

    __slots__ = ()

    def __init__(self, dependencies: frozenset[Any]) -> None:
        self._dependencies = dependencies


class _DataNode(DataNode):
    """All of a datum that the order looks at: that it is none of the tasks."""

    __slots__ = ()

    def __init__(self, dependencies: frozenset[Any]) -> None:
        self._dependencies = dependencies


def ordered(graph: Mapping[Any, GraphNode]) -> dict[Any, int]:
    """dask's order: key -> place. Raises RuntimeError when the graph has a cycle."""
    if len(graph) == 1:
        return dict.fromkeys(graph, 0)
    if not any(spec.dependencies for spec in graph.values()):
        return _unconnected(graph)
    keys = list(graph)
    place_class = _places_of(keys)
    places = {key: place_class(index) for index, key in enumerate(keys)}
    stand_ins = {}
    for key, spec in graph.items():
        numbers = _NOTHING
        if spec.dependencies:
            numbers = frozenset(_numbers(spec.dependencies, places, keys, place_class))
        node = _DataNode if isinstance(spec, DataNode) else _TaskNode
        stand_ins[places[key]] = node(numbers)
    order = dask_order(stand_ins)
    return dict(zip(graph, map(order.__getitem__, range(len(graph))), strict=True))


def _places_of(keys: list[Any]) -> Callable[[int], Any]:
    """A class of integers that print as the keys at their places: dask breaks ties by ``str(key)``."""

    class Place(int):
        __slots__ = ()

        def __str__(self) -> str:
            return str(keys[self])

    return Place


def _numbers(
    dependencies: Iterable[Any], places: dict[Any, Any], keys: list[Any], new: Callable[[int], Any]
) -> list[Any]:
    """Dependencies as places; keys that are not in the graph get places behind it, by their text."""
    numbers = []
    foreign = []
    for key in dependencies:
        place = places.get(key)
        if place is None:
            foreign.append(key)
        else:
            numbers.append(place)
    for key in sorted(foreign, key=repr) if len(foreign) > 1 else foreign:
        place = places[key] = new(len(keys))
        keys.append(key)
        numbers.append(place)
    return numbers


def _unconnected(graph: Mapping[Any, GraphNode]) -> dict[Any, int]:
    """What dask's order comes to when no task needs another: by text, backwards."""
    return {key: place for place, key in enumerate(sorted(graph, key=str, reverse=True))}


def reachable(graph: Mapping[Any, GraphNode], wanted: Iterable[Any]) -> set[Any]:
    """Keys of the tasks that the wanted keys need, themselves included."""
    seen: set[Any] = set()
    stack = list(wanted)
    while stack:
        key = stack.pop()
        if key in seen:
            continue
        spec = graph.get(key)
        if spec is not None:
            seen.add(key)
            if spec.dependencies:
                stack.extend(spec.dependencies)
    return seen


def topological(
    graph: Mapping[Any, GraphNode], needed: set[Any], priorities: Mapping[Any, int]
) -> list[Any]:
    """The needed keys, dependencies first, as near to the given order as that allows.

    Keys that the order does not name come last. Raises RuntimeError when the graph has a cycle.
    """
    last = len(priorities)
    rows = list(graph) if len(needed) == len(graph) else [key for key in graph if key in needed]
    rows.sort(key=lambda key: priorities.get(key, last))
    seen: set[Any] = set()
    for key in rows:
        for dependency in graph[key].dependencies:
            if dependency not in seen and dependency in needed:
                return _depth_first(graph, rows, needed)
        seen.add(key)
    return rows


def _depth_first(graph: Mapping[Any, GraphNode], rows: list[Any], needed: set[Any]) -> list[Any]:
    """``topological`` for an order that is none: each task right after what it needs."""
    place = {key: index for index, key in enumerate(rows)}
    done: dict[Any, None] = {}
    for root in rows:
        stack = [root]
        path: dict[Any, None] = {}
        while stack:
            key = stack[-1]
            if key in done:
                stack.pop()
                continue
            missing = [d for d in graph[key].dependencies if d in needed and d not in done]
            if not missing:
                done[key] = None
                path.pop(key, None)
                stack.pop()
                continue
            path[key] = None
            for dependency in missing:
                if dependency in path:
                    raise RuntimeError(_cycle_text(list(path), dependency))
            stack.extend(sorted(missing, key=place.__getitem__, reverse=True))
    return list(done)


def _cycle_text(path: list[Any], key: Any) -> str:
    """The words in which dask reports a cycle."""
    names = [str(name) for name in [*path[path.index(key) :], key]]
    return "Cycle detected between the following keys:\n  -> " + "\n  -> ".join(names)
