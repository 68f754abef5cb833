"""Shapes of what the dashboard draws that are the same in both of its homes.

Must not know: where the facts come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def layered(dependencies: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Dependencies among those that are there, without those that close a circle.

    distributed's graph of groups wants an order; groups that outlived others, and groups that depend on each other,
    have none as they are.
    """
    out: dict[str, list[str]] = {}
    done: dict[str, bool] = {}
    for root in dependencies:
        stack = [(root, iter(dependencies[root]))] if root not in done else []
        done.setdefault(root, False)
        out.setdefault(root, [])
        while stack:
            name, rest = stack[-1]
            for other in rest:
                if other == name or other not in dependencies or done.get(other) is False:
                    continue  # gone, or on the way here: a circle
                out[name].append(other)
                if other not in done:
                    done[other] = False
                    out[other] = []
                    stack.append((other, iter(dependencies[other])))
                    break
            else:
                done[name] = True
                stack.pop()
    return out
