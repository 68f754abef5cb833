"""The workload of a seed: shapes of graphs, durations, and which tasks fail, kill their worker or secede."""

from __future__ import annotations

from random import Random
from typing import Any

from paceline.scheduler.core.stimuli import AnnotationSet
from paceline.scheduler.core.task_policy import TaskPolicy

Graph = dict[Any, list[Any]]


class Workload:
    """Draws graphs, and records how each task behaves.

    Args:
        hazards: whether tasks may fail, kill their workers, reschedule and secede.
    """

    def __init__(self, rng: Random, hazards: bool) -> None:
        self.rng = rng
        self.hazards = hazards
        self.count = 0
        self._seconds: dict[Any, float] = {}
        self._nbytes: dict[Any, int] = {}
        self._fate: dict[Any, list[str]] = {}
        self.scale = rng.choice([0.01, 0.1, 0.1, 1.0])

    def draw(self, known: list[Any], missing: list[Any]) -> Graph:
        """Return a graph; some depend on known keys, redefine them, or depend on forgotten keys."""
        rng = self.rng
        self.count += 1
        shape = rng.choice(SHAPES)
        graph: Graph = shape(rng, f"s{self.count}")
        roots = [k for k, deps in graph.items() if not deps]
        if known and rng.random() < 0.6:
            for key in rng.sample(roots, min(len(roots), rng.randint(1, 3))):
                graph[key] = [rng.choice(known)]
        if missing and rng.random() < 0.1:
            graph[rng.choice(roots)] = [rng.choice(missing)]
        return graph

    def annotation(self, worker_count: int) -> AnnotationSet:
        """Return a random annotation; `worker_count` limits the names of workers in it."""
        rng = self.rng
        kind = rng.choice(["retries", "workers", "loose", "resources", "priority"])
        workers = [f"w{rng.randint(1, worker_count + 1)}"]
        if kind == "retries":
            return AnnotationSet(retries=rng.randint(1, 3))
        if kind == "resources":
            return AnnotationSet(resources={"gpu": 1})
        if kind == "priority":
            return AnnotationSet(priority=rng.choice([-1.0, 5.0]))
        if kind == "workers":
            return AnnotationSet(workers=workers)
        gpu = {"gpu": 1.0} if rng.random() < 0.5 else None
        return AnnotationSet(workers=workers, allow_other_workers=True, resources=gpu)

    def policy(self, now: float) -> AnnotationSet:
        """Return random policies about timeouts, deadlines and retries."""
        rng = self.rng
        policy = TaskPolicy()
        if rng.random() < 0.4:
            policy.timeout_seconds = rng.choice([0.05, 0.5, 3.0])
        if rng.random() < 0.2:
            policy.deadline = now + rng.uniform(0, 10)
        if rng.random() < 0.7:
            policy.retry_on = rng.choice([None, ["builtins.OSError"], ["builtins.KeyError"]])
            policy.retry_delay_seconds = rng.choice([0.0, 0.1, 2.0])
            policy.retry_backoff = rng.choice([1.0, 2.0])
            policy.retry_elsewhere = rng.random() < 0.5
        if rng.random() < 0.7:
            policy.speculative = True
        return AnnotationSet(retries=rng.randint(0, 3), policy=policy)

    def seconds(self, key: Any) -> float:
        """Return the duration of a task, seconds."""
        if key not in self._seconds:
            self._seconds[key] = self.rng.expovariate(1.0) * self.scale
        return self._seconds[key]

    def nbytes(self, key: Any) -> int:
        """Return the size of a task's result, bytes."""
        if key not in self._nbytes:
            self._nbytes[key] = self.rng.choice([0, 8, 1000, 10**6, 10**8])
        return self._nbytes[key]

    def fate(self, key: Any) -> str:
        """Return how the next attempt of a task ends: "ok", "error", "reschedule", "kill" or "secede"."""
        fates = self._fate.get(key)
        if fates is None:
            fates = self._fate[key] = self._draw_fates()
        return fates.pop() if len(fates) > 1 else fates[0]

    def _draw_fates(self) -> list[str]:
        rng = self.rng
        if not self.hazards or rng.random() < 0.85:
            return ["ok"]
        draw = rng.random()
        if draw < 0.3:
            return ["error"]
        if draw < 0.5:
            return ["ok", *["error"] * rng.randint(1, 2)]
        if draw < 0.65:
            return ["ok", "reschedule"]
        if draw < 0.85:
            return ["secede"]
        return ["kill"] if draw < 0.9 else ["ok", "kill"]


def _chains(rng: Random, name: str) -> Graph:
    out: Graph = {}
    for i in range(rng.randint(1, 5)):
        for j in range(rng.randint(1, 6)):
            out[(f"chain-{name}", i, j)] = [(f"chain-{name}", i, j - 1)] if j else []
    return out


def _tree(rng: Random, name: str) -> Graph:
    level: list[Any] = [(f"leaf-{name}", i) for i in range(rng.randint(2, 20))]
    out: Graph = {key: [] for key in level}
    depth = 0
    while len(level) > 1:
        width = rng.randint(2, 4)
        depth += 1
        above: list[Any] = []
        for i in range(0, len(level), width):
            key = (f"sum-{name}", depth, i)
            out[key] = level[i : i + width]
            above.append(key)
        level = above
    return out


def _layers(rng: Random, name: str) -> Graph:
    out: Graph = {}
    before: list[Any] = []
    for depth in range(rng.randint(2, 4)):
        layer = [(f"layer{depth}-{name}", i) for i in range(rng.randint(2, 7))]
        for key in layer:
            out[key] = rng.sample(before, min(len(before), rng.randint(1, 3)))
        before = layer
    return out


def _wide(rng: Random, name: str) -> Graph:
    return {(f"map-{name}", i): [] for i in range(rng.randint(5, 40))}


def _map_reduce(rng: Random, name: str) -> Graph:
    n = rng.randint(4, 25)
    out: Graph = {(f"load-{name}", i): [] for i in range(n)}
    out.update({(f"map-{name}", i): [(f"load-{name}", i)] for i in range(n)})
    out[f"reduce-{name}"] = [(f"map-{name}", i) for i in range(n)]
    return out


def _one(rng: Random, name: str) -> Graph:
    return {f"one-{name}": []}


SHAPES = (_chains, _tree, _layers, _wide, _map_reduce, _one)
