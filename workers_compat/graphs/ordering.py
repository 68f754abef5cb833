"""The order of tasks: dask's static order, and rows in topological order.

Keys are hashed once and replaced by *places*: small integers in the order of the graph, followed
by the keys that the graph only refers to.

dask's ``order`` decides. It iterates over sets of keys, so its choice among equals depends on the
hash seed. Here it gets integers with the text of the keys, which makes it deterministic and faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dask._task_spec import DataNode, GraphNode, Task
from dask.order import order as dask_order

from . import accelerators
from .accelerators.fast_order import fast_order

_EMPTY: frozenset[Any] = frozenset()


class _TaskNode(Task):
    """The facts of a task that ``order`` reads: its class and its dependencies."""

    __slots__ = ()

    def __init__(self, dependencies: frozenset[Any]) -> None:
        self._dependencies = dependencies  # type: ignore[misc]


class _DataNode(DataNode):
    """The facts of plain data that ``order`` reads: its class and its dependencies."""

    __slots__ = ()

    def __init__(self, dependencies: frozenset[Any]) -> None:
        self._dependencies = dependencies  # type: ignore[misc]


class GraphIndex:
    """A graph by places.

    Attributes:
        keys: place -> key; from ``size`` on, keys outside the graph.
        specs: place -> task.
        places: key -> place.
        dependencies: place -> places of its dependencies, ascending.
        size: number of tasks in the graph.
    """

    def __init__(self, graph: Mapping[Any, GraphNode]) -> None:
        self.keys: list[Any] = list(graph)
        self.specs: list[GraphNode] = list(graph.values())
        self.size = len(self.keys)
        self.places: dict[Any, int] = {key: place for place, key in enumerate(self.keys)}
        self.dependencies: list[list[int]] = [
            self._numbers(spec.dependencies) if spec.dependencies else [] for spec in self.specs
        ]

    def _numbers(self, dependencies: Iterable[Any]) -> list[int]:
        get = self.places.get
        numbers = [get(key, -1) for key in dependencies]
        if len(numbers) > 1:
            numbers.sort()
        if numbers[0] < 0:
            numbers = [place for place in numbers if place >= 0]
            foreign = [key for key in dependencies if key not in self.places]
            for key in sorted(foreign, key=repr) if len(foreign) > 1 else foreign:
                self.places[key] = len(self.keys)
                numbers.append(len(self.keys))
                self.keys.append(key)
        return numbers

    def reachable(self, wanted: Iterable[Any]) -> list[int]:
        """Return the places of the wanted keys and all that they depend on, ascending."""
        size = self.size
        needed = bytearray(len(self.keys))
        stack = [self.places[key] for key in wanted if key in self.places]
        while stack:
            place = stack.pop()
            if not needed[place]:
                needed[place] = 1
                if place < size:
                    stack += self.dependencies[place]
        if needed.count(1, 0, size) == size:
            return list(range(size))
        return [place for place in range(size) if needed[place]]

    def ordered(self, among: list[int]) -> dict[int, int]:
        """Return dask's order of the tasks: place -> priority. Raises RuntimeError for a cycle."""
        if len(among) == 1:
            return {among[0]: 0}
        if not any(self.dependencies[place] for place in among):
            by_text = sorted(among, key=lambda place: str(self.keys[place]), reverse=True)
            return {place: priority for priority, place in enumerate(by_text)}
        needs = self.dependencies
        keys = self.keys
        order = None
        if accelerators.are_enabled():
            order = fast_order(
                {place: frozenset(needs[place]) if needs[place] else _EMPTY for place in among},
                {place: not isinstance(self.specs[place], DataNode) for place in among},
                lambda place: str(keys[place]),
            )
        if order is None:
            order = self._dask_order(among)
        return {place: order[place] for place in among}

    def _dask_order(self, among: list[int]) -> dict[int, int]:
        """Return the order of ``dask.order`` itself, which also raises dask's error for a cycle."""
        numbers = self._places_with_key_text()
        graph: dict[Any, GraphNode] = {}
        for place in among:
            dependencies = self.dependencies[place]
            needs = frozenset([numbers[p] for p in dependencies]) if dependencies else _EMPTY
            node = _DataNode if isinstance(self.specs[place], DataNode) else _TaskNode
            graph[numbers[place]] = node(needs)
        order: dict[int, int] = dask_order(graph)
        return order

    def _places_with_key_text(self) -> list[Any]:
        """Return an integer per place whose text is that of its key, by which dask breaks ties."""
        keys = self.keys

        class Place(int):
            __slots__ = ()

            def __str__(self) -> str:
                return str(keys[self])

        return [Place(place) for place in range(len(keys))]

    def given(self, priorities: Mapping[Any, int], among: list[int]) -> dict[int, int]:
        """Return the order that the client sent. Tasks that are missing in it come last."""
        last = len(priorities)
        return {place: priorities.get(self.keys[place], last) for place in among}

    def topological(self, among: list[int], priorities: Mapping[int, int]) -> list[int]:
        """Return places with dependencies first, as close to the order of `priorities` as possible.

        Raise RuntimeError if the graph has a cycle.
        """
        rows = sorted(among, key=priorities.__getitem__)
        row_of = [-1] * len(self.keys)
        for row, place in enumerate(rows):
            row_of[place] = row
        for row, place in enumerate(rows):
            for needed in self.dependencies[place]:
                if row_of[needed] >= row:
                    return self._depth_first(rows, row_of)
        return rows

    def _depth_first(self, rows: list[int], row_of: list[int]) -> list[int]:
        """Return each task right after its dependencies, if `rows` is not in topological order."""
        done = bytearray(len(self.keys))
        out: list[int] = []
        for root in rows:
            stack = [root]
            path: dict[int, None] = {}
            while stack:
                place = stack[-1]
                if done[place]:
                    stack.pop()
                    continue
                missing = [p for p in self.dependencies[place] if row_of[p] >= 0 and not done[p]]
                if not missing:
                    done[place] = 1
                    out.append(place)
                    path.pop(place, None)
                    stack.pop()
                    continue
                path[place] = None
                for needed in missing:
                    if needed in path:
                        raise RuntimeError(self._cycle_text(list(path), needed))
                missing.sort(key=row_of.__getitem__, reverse=True)
                stack += missing
        return out

    def _cycle_text(self, path: list[int], place: int) -> str:
        """Return dask's error text for a cycle."""
        names = [str(self.keys[p]) for p in [*path[path.index(place) :], place]]
        return "Cycle detected between the following keys:\n  -> " + "\n  -> ".join(names)
