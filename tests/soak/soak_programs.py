"""Programs that the clients of a soak run, drawn from a seed; each knows the right result.

A program takes a stock client and a generator of random numbers, and raises ``WrongResult`` if a result is not the
expected one. The soak decides whether a fault explains any other error.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from random import Random
from typing import Any

#: Timeout after which the soak reports a program as stuck, seconds.
PROGRAM_TIMEOUT_SECONDS = 150


class WrongResult(AssertionError):
    """A wrong result, which no fault explains."""


def expect(got: Any, wanted: Any, what: str) -> None:
    """Compare a result with the expected one."""
    if got != wanted:
        raise WrongResult(f"{what}: got {got!r}, wanted {wanted!r}")


def slow_add(a: int, b: int, seconds: float = 0.0) -> int:
    time.sleep(seconds)
    return a + b


def mapped_futures(client: Any, draw: Random) -> None:
    """Chain ``map`` calls and gather the results as they complete."""
    from distributed import as_completed

    n = draw.randrange(20, 200)
    seconds = draw.choice([0, 0, 0.01, 0.05])
    salt = draw.random()
    first = client.map(slow_add, range(n), [1] * n, seconds=seconds, key=f"soak-map-{salt}")
    second = client.map(slow_add, first, first, key=f"soak-map2-{salt}")
    total = 0
    for _, result in as_completed(second, with_results=True, timeout=PROGRAM_TIMEOUT_SECONDS):
        total += result
    expect(total, sum(2 * (i + 1) for i in range(n)), "mapped futures")


def tree(client: Any, draw: Random) -> None:
    """Compute a binary reduction, with one submit per node."""
    salt = draw.random()
    level = client.map(operator.neg, range(draw.randrange(8, 64)), key=f"soak-leaf-{salt}")
    wanted = -sum(range(len(level)))
    depth = 0
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [
            client.submit(sum, pair, key=(f"soak-tree-{salt}", depth, i))
            for i, pair in enumerate(pairs)
        ]
        depth += 1
    expect(level[0].result(timeout=PROGRAM_TIMEOUT_SECONDS), wanted, "tree")


def scattered(client: Any, draw: Random) -> None:
    """Scatter data to the workers and compute on it."""
    n = draw.randrange(1, 8)
    data = client.scatter([list(range(1000 * (i + 1))) for i in range(n)], hash=False)
    sums = client.map(sum, data, pure=False)
    wanted = [sum(range(1000 * (i + 1))) for i in range(n)]
    expect(client.gather(sums), wanted, "scattered")


def counted(client: Any, draw: Random) -> None:
    """Count with an actor."""
    counter = client.submit(Counter, actor=True, pure=False).result(timeout=PROGRAM_TIMEOUT_SECONDS)
    n = draw.randrange(3, 30)
    for _ in range(n):
        last = counter.increment().result(timeout=PROGRAM_TIMEOUT_SECONDS)
    expect(last, n, "actor")


class Counter:
    n = 0

    def increment(self) -> int:
        self.n += 1
        return self.n


def array(client: Any, draw: Random) -> None:
    """Multiply matrices and rechunk the result, by tasks or P2P."""
    import dask
    import dask.array as da

    n = draw.choice([200, 400, 600])
    with dask.config.set({"array.rechunk.method": draw.choice(["tasks", "p2p"])}):
        x = da.ones((n, n), chunks=(n // 4, n)).rechunk((n, n // 4))
        total = client.compute((x @ x.T).sum()).result(timeout=PROGRAM_TIMEOUT_SECONDS)
    expect(float(total), float(n) ** 3, "array")


def frame(client: Any, draw: Random) -> None:
    """Shuffle a dataframe by tasks or P2P, and sum by group."""
    import dask
    import dask.dataframe as dd
    import pandas as pd

    rows, groups = draw.choice([2_000, 10_000]), draw.randrange(3, 40)
    plain = pd.DataFrame({"g": [i % groups for i in range(rows)], "x": range(rows)})
    with dask.config.set({"dataframe.shuffle.method": draw.choice(["tasks", "p2p"])}):
        df = dd.from_pandas(plain, npartitions=draw.randrange(2, 12)).shuffle("g")
        got = client.compute(df.groupby("g").x.sum()).result(timeout=PROGRAM_TIMEOUT_SECONDS)
    expect(got.sort_index().to_dict(), plain.groupby("g").x.sum().to_dict(), "frame")


def raising(client: Any, draw: Random) -> None:
    """Run a task that fails, and others that depend on it."""
    salt = draw.random()
    bad = client.submit(operator.truediv, 1, 0, key=f"soak-bad-{salt}")
    after = client.submit(slow_add, bad, 1, key=f"soak-after-{salt}")
    try:
        after.result(timeout=PROGRAM_TIMEOUT_SECONDS)
    except ZeroDivisionError:
        return
    raise WrongResult("a task that depends on a failed one has a result")


def cancelled(client: Any, draw: Random) -> None:
    """Cancel tasks half way and submit them again."""
    salt = draw.random()
    futures = client.map(slow_add, range(60), [0] * 60, seconds=0.05, key=f"soak-cancel-{salt}")
    time.sleep(draw.random() / 4)
    client.cancel(futures[: draw.randrange(60)])
    del futures
    again = client.map(slow_add, range(60), [0] * 60, key=f"soak-cancel-{salt}")
    expect(sum(client.gather(again)), sum(range(60)), "cancelled")


PROGRAMS: tuple[Callable[[Any, Random], None], ...] = (
    mapped_futures, tree, scattered, counted, array, frame, raising, cancelled,
)  # fmt: skip
