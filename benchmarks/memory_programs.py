"""Programs that hold more results than their workers have memory for, from reports of Dask users.

Each takes a stock client and returns a number.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import psutil
from dask import delayed
from distributed import Client

MEGABYTE = 1_000_000


def prepare() -> int:
    """Import in a worker what the programs use, and return the bytes that its process uses."""
    make(8)
    return int(psutil.Process().memory_info().rss)


def prepare_arrays() -> int:
    """Do what `prepare` does for programs of `dask.array`, which takes more memory."""
    import dask.array as da

    da.ones(1).sum().compute(scheduler="sync")
    return prepare()


def make(nbytes: int, seconds: float = 0.0, *_: Any) -> Any:
    """Return an array of `nbytes` bytes after `seconds`."""
    time.sleep(seconds)
    return np.ones(nbytes // 8)


def open_file(i: int) -> int:
    """Return `i`, as a handle of a file."""
    return i


def add(arrays: list[Any], seconds: float = 0.0) -> Any:
    """Return the sum of `arrays`, an array, after `seconds`."""
    time.sleep(seconds)
    return sum(arrays)


def total(arrays: list[Any], seconds: float = 0.0) -> float:
    """Return the sum of `arrays` after `seconds`."""
    time.sleep(seconds)
    return float(sum(array.sum() for array in arrays))


def scheduler_failure_case(client: Client) -> float:
    """Sum pairs of arrays of 90 MB on workers of 400 MB (dask/distributed#5453).

    A worker has memory for two arrays beside its process, but not for three.
    """
    a = [delayed(make)(90 * MEGABYTE, 0.5, pure=False) for _ in range(12)]
    b = [delayed(total)(a[i : i + 2], 0.5) for i in range(0, len(a), 2)]
    return float(delayed(sum)(b).compute())


def backpressure(client: Client) -> float:
    """Make data quickly and reduce it slowly (dask/distributed#2602).

    What the tasks read depends on others, so that they are not root tasks.
    """
    opened = [delayed(open_file)(i) for i in range(8)]
    loaded = [delayed(make)(40 * MEGABYTE, 0.0, *opened, pure=False) for _ in range(80)]
    level = loaded
    while len(level) > 1:
        level = [delayed(add)(level[i : i + 4], 0.1) for i in range(0, len(level), 4)]
    return float(delayed(total)(level).compute())


def field(seed: int, hours: int) -> Any:
    """Return an array in chunks of hours, as a model of the weather writes them."""
    import dask.array as da

    shape, chunks = (hours, 800, 200), (5, 800, 200)
    return da.random.default_rng(seed).random(shape, chunks=chunks)


def anomaly(client: Client) -> float:
    """Subtract the mean over time (dask/distributed#6360)."""
    x = field(1, 1200)
    return float((x - x.mean(axis=0)).std().compute())


def climatology(client: Client) -> float:
    """Subtract monthly means from a field (dask/dask#4610)."""
    months = field(4, 1200).reshape((100, 12, 800, 200))
    return float((months - months.mean(axis=0)).std().compute())


def dot_product(client: Client) -> float:
    """Multiply a matrix by its transpose (coiled/benchmarks, `test_dot_product`)."""
    import dask.array as da

    x = da.random.default_rng(6).random((10_000, 10_000), chunks=(1000, 1000))
    return float((x @ x.T).sum().compute())


def covariance(client: Client) -> float:
    """Compute the covariance of columns (coiled/benchmarks, `test_covariance`)."""
    import dask.array as da

    x = da.random.default_rng(7).random((400_000, 400), chunks=(4000, 400))
    centred = x - x.mean(axis=0)
    return float((centred.T @ centred).sum().compute())


def rechunk(client: Client) -> float:
    """Rechunk columns to rows (dask/distributed#2602)."""
    import dask.array as da

    x = da.random.default_rng(5).random((12_000, 12_000), chunks=(12_000, 250))
    return float(x.rechunk((250, 12_000), method="tasks").std(axis=1).sum().compute())


def pairs(client: Client) -> float:
    """Combine parts of two sources, and the sums of one of them (dask/distributed#6614)."""
    left = [delayed(make)(10 * MEGABYTE, 0.01, i, pure=False) for i in range(160)]
    right = [delayed(make)(10 * MEGABYTE, 0.01, i, pure=False) for i in range(160)]
    level = left
    while len(level) > 1:
        level = [delayed(add)(level[i : i + 4], 0.02) for i in range(0, len(level), 4)]
    both = [delayed(total)([*pair], 0.02) for pair in zip(left, right)]
    return float(delayed(sum)([delayed(total)(level), *both]).compute())


#: Programs that run with a third of the memory that the stock scheduler's workers hold.
PROGRAMS = (backpressure, pairs, anomaly, climatology, dot_product, covariance, rechunk)
#: Those of them that use `dask.array`.
OF_ARRAYS = (anomaly, climatology, dot_product, covariance, rechunk)
