"""Programs with futures, coordination primitives, actors and interactive rhythms."""

from __future__ import annotations

import math
import operator
import random
import time
from pathlib import Path
from typing import Any

import dask.array as da
from distributed import (
    Client,
    Lock,
    Queue,
    Variable,
    as_completed,
    get_client,
    secede,
    wait,
    worker_client,
)

from .program import main, program


@program()
def map_of_small_tasks(client: Client, folder: Path) -> Any:
    """Map functions over 2,000 values, three times, and gather all results."""
    squares = client.map(lambda n: n * n, range(2_000))
    roots = client.map(math.sqrt, squares)
    differences = client.map(operator.sub, roots, range(2_000))
    return [sum(client.gather(squares)), sum(client.gather(differences))]


@program()
def tree_reduction(client: Client, folder: Path) -> Any:
    """Sum values in pairs with one submitted future for each addition."""
    level = client.map(lambda n: n % 97, range(1_024))
    while len(level) > 1:
        level = [client.submit(operator.add, a, b) for a, b in zip(level[::2], level[1::2])]
    return level[0].result()


@program()
def search_as_completed(client: Client, folder: Path) -> Any:
    """Search a minimum: submit new points near the best ones as results arrive."""

    def evaluate(x: float, y: float) -> tuple[float, float, float]:
        deadline = time.process_time() + 0.004
        while time.process_time() < deadline:
            value = (x * x + y - 11) ** 2 + (x + y * y - 7) ** 2
        return value, x, y

    rng = random.Random(1)
    points = [(rng.uniform(-5, 5), rng.uniform(-5, 5)) for _ in range(200)]
    running = as_completed([client.submit(evaluate, *point) for point in points])
    found = []
    for future in running:
        found.append(future.result())
        if len(found) <= 600:
            _, x, y = min(found)
            width = 3 / (1 + len(found) / 20)
            nearby = x + rng.uniform(-width, width), y + rng.uniform(-width, width)
            running.add(client.submit(evaluate, *nearby))
    # the points depend on the order of completion, the minimum does not
    return [len(found), min(found)[0] < 0.01]


@program()
def notebook(client: Client, folder: Path) -> Any:
    """Compute 60 small cells with pauses between them, as in a notebook."""
    data = da.random.default_rng(2).random((2_000, 2_000), chunks=(500, 500)).persist()
    found = []
    for cell in range(60):
        column = data[:, cell * 30 : cell * 30 + 30]
        question = (column.mean(), column.std(), (column > 0.9).sum(), column.max(axis=0).min())
        found.append(question[cell % 4].compute())
        time.sleep(0.1)
    return found


class Parameters:
    """Weights on one worker that tasks read and change."""

    def __init__(self, size: int) -> None:
        self.weights = [0.0] * size

    def add(self, index: int, value: float) -> None:
        """Add `value` to one weight."""
        self.weights[index] += value

    def total(self) -> float:
        """Return the sum of the weights."""
        return sum(self.weights)


@program()
def actor_of_parameters(client: Client, folder: Path) -> Any:
    """Change the state of an actor from the client and from tasks."""

    def push(actor: Any, index: int) -> int:
        for round_ in range(4):
            actor.add(index, round_ + 1).result()
        return index

    actor = client.submit(Parameters, 64, actor=True).result()
    for index in range(300):
        actor.add(index % 64, 0.5).result()
    pushed = client.gather(
        client.map(push, [actor] * 128, [n % 64 for n in range(128)], pure=False)
    )
    return [sum(pushed), actor.total().result()]


@program()
def coordination(client: Client, folder: Path) -> Any:
    """Pass work between tasks and the client with a queue, a variable and a lock."""

    def produce(n: int) -> int:
        with Lock("counter"):
            total = Variable("total")
            total.set(total.get() + n)
        Queue("done").put(n)
        return n

    total, done = Variable("total"), Queue("done")
    total.set(0)
    futures = client.map(produce, range(150))
    received = [done.get(timeout=60) for _ in futures]
    wait(futures)
    return [sorted(received)[-1], total.get()]


@program()
def nested_tasks(client: Client, folder: Path) -> Any:
    """Submit tasks from tasks: a recursive sum of Fibonacci numbers, and maps in tasks."""

    def fibonacci(n: int) -> int:
        if n < 2:
            return n
        inner = get_client()
        parts = inner.map(fibonacci, [n - 1, n - 2])
        secede()
        return sum(inner.gather(parts))

    def mapped(n: int) -> int:
        with worker_client() as inner:
            return sum(inner.gather(inner.map(lambda m: m * n, range(20))))

    first = client.submit(fibonacci, 12).result()
    return [first, sum(client.gather(client.map(mapped, range(40))))]


@program()
def persisted_collections(client: Client, folder: Path) -> Any:
    """Hold many persisted arrays, combine them in pairs and release them one after the other."""
    rng = da.random.default_rng(3)
    held = [rng.random((500, 500), chunks=(125, 125)).persist() for _ in range(40)]
    sums = []
    while len(held) > 1:
        left, right = held.pop(0), held.pop(0)
        both = (left + right.T).persist()
        sums.append(both.sum().compute())
        if len(held) % 4:
            held.append(both)
    return sums


if __name__ == "__main__":
    main()
