"""Task graphs of known shape and size. The tasks are trivial, so that the scheduler dominates."""

from __future__ import annotations

from collections.abc import Callable

from dask._task_spec import List, Task, TaskRef

Graph = dict[object, Task]
Shape = Callable[[int, str], tuple[Graph, list[object]]]


def leaves(count: int, name: str) -> list[Task]:
    """Return `count` tasks without dependencies.

    They call `max`, which is pickled by reference, like functions of a package.
    """
    return [Task((name, i), max, i, 0) for i in range(count)]


def embarrassing(count: int, tag: str) -> tuple[Graph, list[object]]:
    """Return independent tasks, all of them requested."""
    graph: Graph = {task.key: task for task in leaves(count, f"embar-{tag}")}
    return graph, list(graph)


def merge(count: int, tag: str) -> tuple[Graph, list[object]]:
    """Return independent tasks and one task that depends on all of them."""
    graph: Graph = {task.key: task for task in leaves(count - 1, f"merge-{tag}")}
    total = f"total-{tag}"
    graph[total] = Task(total, max, List(*[TaskRef(key) for key in list(graph)]))
    return graph, [total]


def tree(count: int, tag: str) -> tuple[Graph, list[object]]:
    """Return a binary reduction with `count` tasks in total."""
    level = leaves((count + 1) // 2, f"leaf-{tag}")
    graph: Graph = {task.key: task for task in level}
    depth = 0
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2])
        parents = [
            Task((f"level{depth}-{tag}", i), max, TaskRef(a.key), TaskRef(b.key))
            for i, (a, b) in enumerate(pairs)
        ]
        graph.update((task.key, task) for task in parents)
        level = parents + level[len(parents) * 2 :]
        depth += 1
    return graph, [level[0].key]


def chains(count: int, tag: str, length: int = 10) -> tuple[Graph, list[object]]:
    """Return chains of `length` tasks, with their last tasks requested."""
    graph: Graph = {}
    ends: list[object] = []
    for i in range(max(1, count // length)):
        link = Task((f"link0-{tag}", i), max, i, 0)
        graph[link.key] = link
        for j in range(1, length):
            link = Task((f"link{j}-{tag}", i), max, TaskRef(link.key), 0)
            graph[link.key] = link
        ends.append(link.key)
    return graph, ends


def layers(count: int, tag: str) -> tuple[Graph, list[object]]:
    """Return a stencil: each task depends on three neighbours in the previous layer."""
    width = max(3, int(count**0.5))
    current = leaves(width, f"layer0-{tag}")
    graph: Graph = {task.key: task for task in current}
    for depth in range(1, max(2, count // width)):
        previous = current
        current = [
            Task(
                (f"layer{depth}-{tag}", i),
                max,
                *(TaskRef(previous[(i + offset) % width].key) for offset in (-1, 0, 1)),
            )
            for i in range(width)
        ]
        graph.update((task.key, task) for task in current)
    return graph, [task.key for task in current]


SHAPES: dict[str, Shape] = {
    "merge": merge,
    "tree": tree,
    "chains": chains,
    "layers": layers,
    "embarrassing": embarrassing,
}
