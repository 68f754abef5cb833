"""The graph: layers of tasks, each of which takes some results of the layer before and gives one."""

from __future__ import annotations

import random
from typing import Any

from . import work

LAYERS = 8
TAKES = (4, 10)
"""So many results a task takes, at least and at most."""


def graph(drawn: list[int], kind: str, prefix: str, url: str = "", seed: int = 3) -> Any:
    """A dict graph and its last key.

    Args:
        drawn: sizes of the results, in order.
        kind: one of ``work.KINDS``, or "mixed".
        prefix: of the keys.
        url: of Redis, for the way by hand; empty for all others.
        seed: of who takes what.
    """
    chance = random.Random(seed)
    layer = max(1, -(-len(drawn) // LAYERS))
    made: dict[str, Any] = {}
    before: list[str] = []
    for begin in range(0, len(drawn), layer):
        now = []
        for i in range(begin, min(begin + layer, len(drawn))):
            taken = chance.sample(before, min(len(before), chance.randint(*TAKES)))
            this = work.KINDS[i % len(work.KINDS)] if kind == "mixed" else kind
            key = f"{prefix}-{i}"
            if url:
                made[key] = (work.task_by_hand, url, this, drawn[i], i, *taken)
            else:
                made[key] = (work.task, this, drawn[i], i, *taken)
            now.append(key)
        before = now
    last = f"{prefix}-total"
    made[last] = (work.total_by_hand, url, *before) if url else (work.total, *before)
    return made, last
