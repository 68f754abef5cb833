"""Layout of the graph of task groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter


def acyclic_links(dependencies: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return ``dependencies`` in topological order, without cycles and unknown groups.

    A group may outlive its dependencies, and groups may depend on each other.
    """
    links = {
        name: [other for other in others if other in dependencies and other != name]
        for name, others in dependencies.items()
    }
    while True:
        try:
            return {name: links[name] for name in TopologicalSorter(links).static_order()}
        except CycleError as error:
            cycle: list[str] = error.args[1]  # each depends on the one before it
            first = cycle.index(next(name for name in links if name in cycle))
            links[cycle[first + 1]].remove(cycle[first])


def layout(
    dependencies: Mapping[str, Iterable[str]],
) -> tuple[dict[str, tuple[int, int]], dict[str, list[str]]]:
    """Assign each group a cell of a grid, to the right of its dependencies.

    Return name -> (column, row), and the dependencies to draw as arrows (``acyclic_links``).
    """
    links = acyclic_links(dependencies)
    cells: dict[str, tuple[int, int]] = {}
    taken: set[tuple[int, int]] = set()
    rows = 0
    for name, others in links.items():
        column, row = 0, rows
        if others:
            column = 1 + max(cells[other][0] for other in others)
            row = min(cells[other][1] for other in others)
        while (column, row) in taken:
            row += 1
        taken.add((column, row))
        cells[name] = (column, row)
        rows = max(rows, row + 1)
    return cells, links
