"""Layout of the graph of task groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def acyclic_links(dependencies: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return ``dependencies`` in topological order, without cycles and unknown groups.

    A group may outlive its dependencies, and groups may depend on each other.
    """
    out: dict[str, list[str]] = {}
    links: dict[str, list[str]] = {}
    for root in dependencies:
        if root in links:
            continue
        links[root] = []
        stack = [(root, iter(dependencies[root]))]
        while stack:
            name, rest = stack[-1]
            for other in rest:
                if other not in dependencies or (other in links and other not in out):
                    continue  # forgotten, or an ancestor: a cycle
                links[name].append(other)
                if other not in links:
                    links[other] = []
                    stack.append((other, iter(dependencies[other])))
                    break
            else:
                out[name] = links[name]
                stack.pop()
    return out


def layout(
    dependencies: Mapping[str, Iterable[str]],
) -> tuple[dict[str, tuple[int, int]], dict[str, list[str]]]:
    """Assign each group a cell of a grid, to the right of its dependencies.

    Returns:
        name -> (column, row), and the dependencies to draw as arrows (``acyclic_links``).
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
