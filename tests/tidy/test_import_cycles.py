"""No import cycles between modules, counting imports that only a type checker follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.support.source_tree import sources

#: Cycles that still exist. Remove a line with its cycle; do not add one.
KNOWN: list[set[str]] = []


def import_graph() -> dict[str, set[str]]:
    """Return module -> modules of the program that it imports."""
    found = {source.module: source for source in sources()}
    graph: dict[str, set[str]] = {}
    for module, source in found.items():
        names = [item.name for item in source.imports()]
        imported = {name if name in found else name.rpartition(".")[0] for name in names}
        graph[module] = (imported & found.keys()) - {module}
    return graph


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return the nodes that can be reached from `start` by at least one edge."""
    seen: set[str] = set()
    stack = list(graph[start])
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += graph[node]
    return seen


def cycles(graph: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Yield the strongly connected components of more than one node."""
    below = {node: reachable(graph, node) for node in graph}
    done: set[str] = set()
    for node in graph:
        if node not in done and node in below[node]:
            component = {other for other in below[node] if node in below[other]}
            done |= component
            yield component


def test_imports_have_no_cycles() -> None:
    prefix = "paceline.scheduler."
    found = [{name.removeprefix(prefix) for name in names} for names in cycles(import_graph())]
    assert [sorted(names) for names in found if not any(names <= old for old in KNOWN)] == []
    solved = [sorted(old) for old in KNOWN if not any(names & old for names in found)]
    assert solved == [], "remove these from KNOWN"


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}
    assert list(cycles(graph)) == [{"a", "b", "c"}]
