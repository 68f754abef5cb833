"""The cost of a task in the core does not depend on the number of tasks. Counts bytecodes instead of measuring time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from paceline.scheduler import core
from paceline.testing import Env, Graph

FOLDER = core.__path__[0]
FEW, MANY = 250, 1500


class Count:
    """Count executed bytecodes of the core."""

    def __init__(self) -> None:
        self.bytecodes = 0

    def call(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Trace a call."""
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Trace within a call."""
        self.bytecodes += event == "opcode"
        return self.step


@contextmanager
def counting() -> Iterator[Count]:
    count, before = Count(), sys.gettrace()
    sys.settrace(count.call)
    try:
        yield count
    finally:
        sys.settrace(before)


def apart(n: int) -> Graph:
    return {("x", i): [] for i in range(n)}


def groups(n: int) -> Graph:
    """Return a graph in which each task is a separate group, as the sums of many small arrays are."""
    return {(f"x-{i:032x}", 0): [] for i in range(n)}


def merge(n: int) -> Graph:
    return {**apart(n - 1), "total": list(apart(n - 1))}


def spread(n: int) -> Graph:
    return {"root": [], **{("x", i): ["root"] for i in range(n - 1)}}


def layers(n: int) -> Graph:
    width = 50
    graph: Graph = {("layer-0", i): [] for i in range(width)}
    for depth in range(1, n // width):
        for i in range(width):
            near = [(f"layer-{depth - 1}", (i + d) % width) for d in (-1, 0, 1)]
            graph[f"layer-{depth}", i] = near
    return graph


def tree(n: int) -> Graph:
    level: list[Any] = [("leaf", i) for i in range(n // 2)]
    graph: Graph = {key: [] for key in level}
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        above = [(f"level-{len(level)}", i) for i in range(len(pairs))]
        graph.update((key, list(pair)) for key, pair in zip(above, pairs, strict=True))
        level = above + level[2 * len(pairs) :]
    return graph


def cost(graph: Graph) -> float:
    """Return the bytecodes per task, from the graph's chunk to the last free-keys."""
    env = Env()
    env.checks = False
    env.client("alice")
    env.join(*(f"w{i}" for i in range(8)), memory_limit=10**9)
    with counting() as count:
        env.submit(graph)
        while any(ws.processing for ws in env.state.workers.values()):
            for ws in list(env.state.workers.values()):
                for ts in list(ws.processing):
                    env.finish(ts.key)
        env.release(*(ts.key for ts in env.state.clients["alice"].wants_what))
    assert not env.state.tasks
    return count.bytecodes / len(graph)


@pytest.mark.pure  # counts bytecodes
@pytest.mark.parametrize("shape", [apart, groups, merge, spread, layers, tree])
def test_cost_of_a_task_does_not_depend_on_number_of_tasks(shape: Callable[[int], Graph]) -> None:
    assert cost(shape(MANY)) < 1.15 * cost(shape(FEW))
