"""Shapes of what the dashboard draws that are the same in both of its homes.

Must not know: where the facts come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def layered(dependencies: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Dependencies among those that are there, without those that close a circle; what others depend on comes first.

    Groups that outlived others, and groups that depend on each other, have no order as they are.
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
                    continue  # gone, or on the way here: a circle
                links[name].append(other)
                if other not in links:
                    links[other] = []
                    stack.append((other, iter(dependencies[other])))
                    break
            else:
                out[name] = links[name]
                stack.pop()
    return out


def placed(
    dependencies: Mapping[str, Iterable[str]],
) -> tuple[dict[str, tuple[int, int]], dict[str, list[str]]]:
    """Places on a grid: a group stands right of all that it depends on, no two stand in one place.

    Returns:
        name -> (column, row), and the dependencies that arrows are drawn for (``layered``).
    """
    links = layered(dependencies)
    where: dict[str, tuple[int, int]] = {}
    taken: set[tuple[int, int]] = set()
    rows = 0
    for name, others in links.items():
        column, row = 0, rows
        if others:
            column = 1 + max(where[other][0] for other in others)
            row = min(where[other][1] for other in others)
        while (column, row) in taken:
            row += 1
        taken.add((column, row))
        where[name] = (column, row)
        rows = max(rows, row + 1)
    return where, links
