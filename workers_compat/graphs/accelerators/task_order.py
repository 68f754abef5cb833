"""The order of ``dask.order.order``, computed over lists of integers.

Tasks are *places*: small integers (see ``ordering``). They get the priorities that dask gives to a
graph whose keys are these integers, if it breaks ties by the text of the original keys. Some of
dask's choices depend on the order of iteration over a set. There, an equal set is made here.

In outline: select a leaf and follow the dependencies that are most expensive down to a root, which
gives the critical path. Rank what the tasks on this path need, and these tasks. In between, rank
other tasks that became runnable, if no further roots have to be ranked for them. Repeat until all
tasks have a rank. The comments in dask's module give the reasons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from .measured_graph import KeyTexts, MeasuredGraph


def task_order(
    dependencies: list[list[int]], is_data: list[bool], keys: list[Any]
) -> list[int] | None:
    """Return the priority of each place in dask's order, or None if the graph has a cycle.

    Args:
        dependencies: place -> places of its dependencies, ascending.
        is_data: place -> True for plain data, which is not a task.
        keys: place -> key. Places without an entry in `dependencies` are keys outside the graph.
    """
    texts = KeyTexts(keys)
    size = len(dependencies)
    dependents = [place for place, needed in enumerate(dependencies) if needed]
    if not dependents or (
        len(dependents) == 1 and len(dependencies[dependents[0]]) == len(keys) - 1
    ):
        roots = [place for place in range(len(keys)) if place >= size or not dependencies[place]]
        roots.sort(key=texts.get, reverse=True)
        return numbered(roots + dependents, size)
    graph = MeasuredGraph(dependencies, is_data, texts)
    graph.set_data_apart()
    if not graph.measure():
        return None
    return numbered(_Ordering(graph).run(), size)


def numbered(in_order: Iterable[int], size: int) -> list[int]:
    """Return place -> its number in `in_order`, where places from `size` on are not counted."""
    priorities = [0] * size
    number = 0
    for place in in_order:
        if place < size:
            priorities[place] = number
            number += 1
    return priorities


class _Leaves:
    """Selects the next leaf.

    Attributes:
        is_reached: flags of places without a rank that have a dependency with a rank.
        n_reached: their number.
    """

    def __init__(self, graph: MeasuredGraph) -> None:
        self._graph = graph
        leaves = [place for place, dependents in enumerate(graph.dependents) if not dependents]
        leaves = [place for place in leaves if graph.dependencies[place] or place in graph.roots]
        self._in_order = leaves
        graph.sort(leaves)
        if not self._prefers_long_paths():
            leaves.reverse()
        # leaf -> number of roots below it without a rank, if there are any
        self._degrees: dict[int, int] = {}
        self._by_degree: dict[int, set[int]] = {}
        self._none = self._least = graph.n_places
        for leaf in leaves:
            if graph.dependencies[leaf]:
                degree = graph.n_roots[leaf]
                self._degrees[leaf] = degree
                self._by_degree.setdefault(degree, set()).add(leaf)
                self._least = min(self._least, degree)
        self._reached_leaves: set[int] = set()
        self.is_reached = [False] * graph.n_places
        self.n_reached = 0

    def _prefers_long_paths(self) -> bool:
        """Return whether dask begins with the leaf that has most tasks below it."""
        roots = self._graph.roots
        if abs(len(roots) - len(self._in_order)) >= 0.8 * len(roots):
            return True
        expected = 0
        for root in roots:
            count = len(self._graph.leaves_above[root])
            if not expected:
                expected = count
            elif count != expected:
                return False
        return True

    def next(self) -> int:
        """Return the leaf to which the next critical path leads.

        Once some places are reached, it is one that needs the fewest further roots.
        """
        if not self.n_reached or self._least == self._none:
            return self._in_order.pop()
        nearest = self._by_degree[self._least]
        found = -1
        for leaf in (self._reached_leaves & nearest) or nearest:
            if found < 0 or self._graph.is_less(leaf, found):
                found = leaf
        return found

    def reach(self, place: int) -> None:
        """Record that a dependency of `place`, the first, has a rank."""
        self.is_reached[place] = True
        self.n_reached += 1
        if not self._graph.dependents[place]:
            self._reached_leaves.add(place)

    def leave(self, place: int) -> None:
        """Record that `place`, which was reached, has a rank."""
        self.is_reached[place] = False
        self.n_reached -= 1
        self._reached_leaves.discard(place)

    def subtract_root(self, root: int, is_ranked: list[bool]) -> None:
        """Record that `root` has a rank, which the leaves above it no longer need."""
        for leaf in self._graph.leaves_above[root]:
            if is_ranked[leaf]:
                continue
            degree = self._degrees.pop(leaf)
            same = self._by_degree[degree]
            same.remove(leaf)
            degree -= 1
            if degree:
                self._degrees[leaf] = degree
                self._by_degree.setdefault(degree, set()).add(leaf)
                self._least = min(self._least, degree)
            elif not same:
                while self._least < self._none and not self._by_degree.get(self._least):
                    self._least += 1


class _Ordering:
    """Ranks the tasks.

    Attributes:
        ranked: places in the order of their ranks, as keys.
        is_ranked: flags of these places.
        missing: place -> number of its dependencies without a rank.
        runnable: places that miss none, in the order in which that happened. One that was the only
            dependent is not here, but ranked at once.
        is_followed: flags of places that ``_follow`` has reached.
        waiting: place with several dependencies -> paths that lead to it from runnable places.
    """

    def __init__(self, graph: MeasuredGraph) -> None:
        self.graph = graph
        self.leaves = _Leaves(graph)
        self.ranked: dict[int, None] = {}
        self.is_ranked = [False] * graph.n_places
        self.missing = [len(needed) for needed in graph.dependencies]
        self.runnable: list[int] = []
        self.is_followed = [False] * graph.n_places
        self.waiting: dict[int, list[list[int]]] = {}

    def run(self) -> dict[int, None]:
        """Rank all places and return them in order."""
        while len(self.ranked) < self.graph.n_places:
            self._walk(self._critical_path(self.leaves.next()))
            self._rank_runnable()
        return self.ranked

    def _critical_path(self, leaf: int) -> list[int]:
        """Return the way from `leaf` down to a root, with the dependencies on both sides of it."""
        graph = self.graph
        path = [leaf]
        needed = graph.dependencies[leaf]
        while needed:
            largest = needed[0]
            for place in needed:
                if place != largest and graph.is_less(largest, place):
                    largest = place
            path.append(largest)
            needed = self._unranked(largest)
            path += needed
        return path

    def _unranked(self, place: int) -> list[int]:
        """Return dependencies of `place` without a rank, in the order of dask's set."""
        needed = self.graph.dependencies[place]
        if len(needed) == 1:
            return [] if self.is_ranked[needed[0]] else needed
        if not needed:
            return needed
        found = frozenset(self.graph.all_dependencies[place])
        if self.graph.shared_data:
            found -= self.graph.shared_data
        return list(found.difference(self.ranked))

    def _walk(self, path: list[int]) -> None:
        """Rank the places of `path`, last first, and all that they need."""
        graph, is_ranked, missing = self.graph, self.is_ranked, self.missing
        walked_back = False
        while path:
            place = path.pop()
            if is_ranked[place]:
                continue
            if not missing[place]:
                if walked_back and len(self.runnable) < len(path):
                    self._rank_runnable()
                self._rank(place)
                continue
            path.append(place)
            needed = [other for other in graph.dependencies[place] if not is_ranked[other]]
            graph.sort(needed)
            unknown = needed
            if self.waiting:
                unknown = [other for other in needed if other not in self.waiting]
            path += unknown
            walked_back = walked_back or len(unknown) > 1
            if len(unknown) < len(needed):
                for other in needed:
                    for waiting in self.waiting.pop(other, ()):
                        path += reversed(waiting)

    def _rank(self, place: int) -> None:
        """Rank `place`, and further the only dependent of a place if it misses nothing else."""
        graph, leaves, missing = self.graph, self.leaves, self.missing
        only = [place]
        while only:
            place = only.pop()
            self.is_followed[place] = False
            if leaves.is_reached[place]:
                leaves.leave(place)
            if self.is_ranked[place]:
                continue
            if graph.data:
                for datum in graph.data.get(place, ()):
                    self.ranked[datum] = None
            self.ranked[place] = None
            self.is_ranked[place] = True
            if not graph.dependencies[place]:
                leaves.subtract_root(place, self.is_ranked)
            dependents = graph.dependents[place]
            for dependent in dependents:
                left = missing[dependent] - 1
                missing[dependent] = left
                if not leaves.is_reached[dependent]:
                    leaves.reach(dependent)
                if not left:
                    (only if len(dependents) == 1 else self.runnable).append(dependent)

    def _rank_runnable(self) -> None:
        """Rank runnable places, and those above them, as far as no further root is needed."""
        while self.runnable:
            runnable = self.runnable
            self.runnable = []
            for place in reversed(runnable):
                if self.is_followed[place] or self.is_ranked[place]:
                    continue
                branches: deque[tuple[int, list[int]]] = deque([(0, [place])])
                while branches:
                    n_splits, path = branches.popleft()
                    self._follow(n_splits, path, branches)

    def _follow(
        self, n_splits: int, path: list[int], branches: deque[tuple[int, list[int]]]
    ) -> None:
        """Extend `path` upwards to a leaf, a split or a place with several dependencies.

        Rank it if possible. `n_splits` is the number of splits on it. The paths that begin at a
        split are added to `branches`.
        """
        graph = self.graph
        while True:
            place = path[-1]
            self.is_followed[place] = True
            dependents = graph.dependents[place]
            if not dependents:
                if self.missing[place] <= 1:
                    self._rank_all(path)
                else:
                    self.is_followed[place] = False
                return
            if len(path) > 1 and len(graph.dependencies[place]) > 1:
                self._join(n_splits, path, branches)
                return
            if len(dependents) > 1:
                split = [each for each in dependents if len(graph.dependencies[each]) == 1]
                graph.sort(split)
                branches.extend([(n_splits + 1, [*path, each]) for each in split])
                return
            path.append(dependents[0])

    def _join(self, n_splits: int, path: list[int], branches: deque[tuple[int, list[int]]]) -> None:
        """Rank `path` if its last place, which has several dependencies, misses no others.

        Otherwise, keep it until there are paths to all that are missing.
        """
        place = path[-1]
        missing = self.missing[place]
        waiting = self.waiting.get(place)
        if waiting is None and missing <= 1:
            self._rank_all(path)
            return
        self.is_followed[place] = False
        if waiting is None:
            self.waiting[place] = [path]
            return
        waiting.append(path)
        if len(waiting) < missing:
            return
        waiting = [other for other in waiting if not self.is_ranked[other[-2]]]
        if len(waiting) < missing:
            self.waiting[place] = waiting
            return
        del self.waiting[place]
        if n_splits > 1:
            branches.append((n_splits - 1, [place for path in waiting for place in path]))
        else:
            self._rank_joined(deque(waiting))

    def _rank_all(self, path: list[int]) -> None:
        for place in path:
            self._rank(place)

    def _rank_joined(self, paths: deque[list[int]]) -> None:
        """Rank the places of all paths. One that misses dependencies follows after the others."""
        while paths:
            path = paths.popleft()
            for place in path:
                if self.missing[place]:
                    paths.append(path)
                    break
                self._rank(place)
