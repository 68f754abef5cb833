"""The order of tasks by dask's own code, for graphs of places (see ``ordering``)."""

from __future__ import annotations

from typing import Any

from dask._task_spec import DataNode, Task
from dask.order import order

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


def dask_order(dependencies: list[list[int]], is_data: list[bool], keys: list[Any]) -> list[int]:
    """Return the priority of each place. Raises dask's error, RuntimeError, if there is a cycle.

    The arguments are those of ``task_order``.
    """

    class Place(int):
        """An integer with the text of its key, by which dask breaks ties."""

        __slots__ = ()

        def __str__(self) -> str:
            return str(keys[self])

    places = [Place(place) for place in range(len(keys))]
    graph: dict[Any, Any] = {}
    for place, needed in enumerate(dependencies):
        node = _DataNode if is_data[place] else _TaskNode
        graph[places[place]] = node(frozenset([places[p] for p in needed]) if needed else _EMPTY)
    priorities: dict[Any, int] = order(graph)
    return [priorities[place] for place in places[: len(dependencies)]]
