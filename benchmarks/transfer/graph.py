"""The graph: layers of tasks, each of which reads some results of the previous layer."""

from __future__ import annotations

import random
from typing import Any

from . import work

LAYERS = 8
#: Minimum and maximum number of dependencies of a task.
DEPENDENCIES = (4, 10)


def build_graph(sizes: list[int], kind: str, prefix: str, url: str = "", seed: int = 3) -> Any:
    """Return a graph as a dict, and its last key.

    Args:
        sizes: sizes of the results, in order.
        kind: one of `work.KINDS`, or "mixed".
        prefix: prefix of the keys.
        url: URL of Redis if the tasks store results there, else empty.
        seed: seed of the choice of dependencies.
    """
    chance = random.Random(seed)
    layer = max(1, -(-len(sizes) // LAYERS))
    graph: dict[str, Any] = {}
    previous: list[str] = []
    for begin in range(0, len(sizes), layer):
        current = []
        for i in range(begin, min(begin + layer, len(sizes))):
            inputs = chance.sample(previous, min(len(previous), chance.randint(*DEPENDENCIES)))
            this = work.KINDS[i % len(work.KINDS)] if kind == "mixed" else kind
            key = f"{prefix}-{i}"
            if url:
                graph[key] = (work.task_redis, url, this, sizes[i], i, *inputs)
            else:
                graph[key] = (work.task, this, sizes[i], i, *inputs)
            current.append(key)
        previous = current
    last = f"{prefix}-total"
    graph[last] = (work.total_redis, url, *previous) if url else (work.total, *previous)
    return graph, last
