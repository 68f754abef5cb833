"""The order of tasks: dask's static order, and rows in topological order.

Keys are hashed once and replaced by *places*: small integers in the order of the graph, followed
by the keys that the graph only refers to.

dask's ``order`` iterates over sets of keys, so its choice among equals depends on the hash seed.
Here it gets integers with the text of the keys, which makes it deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dask._task_spec import DataNode

from . import accelerators
from .accelerators.task_order import task_order
from .dask_order import dask_order


class GraphIndex:
    """A graph by places.

    Attributes:
        keys: place -> key; from ``size`` on, keys outside the graph.
        specs: place -> task.
        places: key -> place.
        dependencies: place -> places of its dependencies, ascending.
        size: number of tasks in the graph.
    """

    def __init__(self, graph: dict[Any, Any]) -> None:
        self.keys: list[Any] = list(graph)
        self.specs: list[Any] = list(graph.values())
        self.size = len(self.keys)
        self.places: dict[Any, int] = {key: place for place, key in enumerate(self.keys)}
        self.dependencies: list[list[int]] = [
            self._numbers(spec.dependencies) if spec.dependencies else [] for spec in self.specs
        ]

    def _numbers(self, dependencies: Any) -> list[int]:
        places = self.places
        numbers: list[int] = []
        foreign: list[Any] = []
        for key in dependencies:
            place = places.get(key, -1)
            if 0 <= place < self.size:
                numbers.append(place)
            else:
                foreign.append(key)
        if len(numbers) > 1:
            numbers.sort()
        if foreign:
            numbers += self._external_numbers(foreign)
        return numbers

    def _external_numbers(self, foreign: list[Any]) -> list[int]:
        """Return the places of keys outside the graph, ascending."""
        for key in sorted(foreign, key=repr) if len(foreign) > 1 else foreign:
            if key not in self.places:
                self.places[key] = len(self.keys)
                self.keys.append(key)
        return sorted([self.places[key] for key in foreign])

    def reachable(self, wanted: Iterable[Any]) -> list[int]:
        """Return the places of the wanted keys and all that they depend on, ascending."""
        size = self.size
        stack = [place for key in wanted if (place := self.places.get(key, size)) < size]
        needed = [False] * len(self.keys)
        n_needed = 0
        while stack:
            place = stack.pop()
            if not needed[place]:
                needed[place] = True
                if place < size:
                    n_needed += 1
                    stack += self.dependencies[place]
        if n_needed == size:
            return list(range(size))
        return [place for place in range(size) if needed[place]]

    def culled(self, needed: list[int]) -> GraphIndex:
        """Return the index of the graph that has only the tasks `needed`."""
        if len(needed) == self.size:
            return self
        return GraphIndex({self.keys[place]: self.specs[place] for place in needed})

    def ordered(self) -> list[int]:
        """Return dask's order of the tasks: place -> priority. Raises RuntimeError for a cycle."""
        if self.size == 1:
            return [0]
        is_data = [isinstance(spec, DataNode) for spec in self.specs]
        if accelerators.are_enabled():
            order = task_order(self.dependencies, is_data, self.keys)
            if order is not None:
                return order
        return dask_order(self.dependencies, is_data, self.keys)

    def given(self, priorities: Mapping[Any, Any]) -> list[Any]:
        """Return the order that the client sent. Tasks that are missing in it come last."""
        last = len(priorities)
        return [priorities.get(key, last) for key in self.keys[: self.size]]

    def topological(self, priorities: list[Any]) -> list[int]:
        """Return places with dependencies first, as close to the order of `priorities` as possible.

        Raise RuntimeError if the graph has a cycle.
        """
        rows = sorted(range(self.size), key=priorities.__getitem__)
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
        done = [False] * len(self.keys)
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
                    done[place] = True
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
