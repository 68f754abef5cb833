"""Programs to measure the quality of schedules with: their tasks hold and transfer much data.

Each takes a stock client and returns nothing.
"""

from __future__ import annotations

import operator
import time
from typing import Any

import dask
import dask.array as da
from dask import delayed
from dask.datasets import timeseries
from distributed import Client, wait


def frame(days: int = 16, seed: int = 7) -> Any:
    """Return a frame with one partition of about 3 MB per day."""
    end = f"2000-02-{days:02d}"
    return timeseries("2000-02-01", end, freq="2s", partition_freq="1d", seed=seed)


def shuffle_tasks(client: Client) -> None:
    """Shuffle a frame with tasks."""
    frame().shuffle("id", shuffle_method="tasks").x.sum().compute()


def shuffle_p2p(client: Client) -> None:
    """Shuffle a frame peer to peer."""
    frame().shuffle("id", shuffle_method="p2p").x.sum().compute()


def merge_tasks(client: Client) -> None:
    """Merge two frames with tasks."""
    left, right = frame(9), frame(9, seed=8)
    right = right.drop_duplicates("id", shuffle_method="tasks", split_out=4)[["id", "y"]]
    left.merge(right, on="id", shuffle_method="tasks", broadcast=False).y_y.mean().compute()


def merge_p2p(client: Client) -> None:
    """Merge two frames peer to peer."""
    left, right = frame(9), frame(9, seed=8)
    right = right.drop_duplicates("id", shuffle_method="tasks", split_out=4)[["id", "y"]]
    left.merge(right, on="id", shuffle_method="p2p", broadcast=False).y_y.mean().compute()


def groupby_tree(client: Client) -> None:
    """Group a frame by a column, with a tree reduction of many partitions."""
    frame(28).groupby("name").agg({"x": ["mean", "std"], "y": ["min", "max"]}).compute()


def square(side: int = 6000, chunk: int = 1000) -> Any:
    """Return a square array of random numbers."""
    return da.random.default_rng(1).random((side, side), chunks=(chunk, chunk))


def transpose_sum(client: Client) -> None:
    """Add an array to its transpose: each block meets its mirror image."""
    x = square()
    (x + x.T)[::2, 3000:].mean(axis=1).compute()


def matrix_product(client: Client) -> None:
    """Multiply a matrix by its transpose."""
    x = square(2400, 600)
    (x @ x.T).sum(axis=1).compute()


def anomaly(client: Client) -> None:
    """Subtract the mean over all blocks from each block, which has to be held until then."""
    x = da.random.default_rng(2).random((4000, 6000), chunks=(250, 1500))
    (x - x.mean(axis=0)).std(axis=0).compute()


def sums_of_columns(client: Client) -> None:
    """Sum columns: far more root tasks than threads, each reduced soon after."""
    x = da.random.default_rng(3).random((40_000, 2_000), chunks=(500, 1000))
    x.sum(axis=0).compute()


def rechunk_tasks(client: Client) -> None:
    """Rechunk columns to rows with tasks."""
    x = da.random.default_rng(4).random((5000, 5000), chunks=(5000, 250))
    x.rechunk((250, 5000), method="tasks").sum(axis=1).compute()


def rechunk_p2p(client: Client) -> None:
    """Rechunk columns to rows peer to peer."""
    x = da.random.default_rng(4).random((5000, 5000), chunks=(5000, 250))
    x.rechunk((250, 5000), method="p2p").sum(axis=1).compute()


def map_overlap(client: Client) -> None:
    """Apply a function to blocks with their neighbours' borders."""
    x = square(5000, 500)
    x.map_overlap(lambda b: (b + b[::-1]) / 2, depth=8, boundary="reflect").sum(axis=0).compute()


def tree_of_arrays(client: Client) -> None:
    """Reduce arrays of 2 MB in pairs."""
    import numpy as np

    level = [delayed(np.ones)(250_000) for _ in range(256)]
    while len(level) > 1:
        level = [delayed(operator.add)(a, b) for a, b in zip(level[::2], level[1::2])]
    level[0].sum().compute()


def compressed_svd(client: Client) -> None:
    """Compute an approximate singular value decomposition."""
    x = da.random.default_rng(6).random((8000, 2000), chunks=(1000, 500))
    dask.compute(da.linalg.svd_compressed(x, k=10, n_power_iter=1, seed=8)[1])


def skewed(client: Client) -> None:
    """Run tasks of unequal durations on data that one worker holds, so that others must steal."""
    import numpy as np

    def slow_double(x: Any, seconds: float) -> Any:  # local: pickled by value
        time.sleep(seconds)
        return x * 2

    address = sorted(client.scheduler_info(n_workers=-1)["workers"])[0]
    data = client.map(np.ones, [125_000] * 80, workers=[address], pure=False)
    wait(data)
    seconds = [0.3 if i % 8 == 0 else 0.05 for i in range(len(data))]
    done = wait(client.map(slow_double, data, seconds, pure=False)).done
    if failed := [future for future in done if future.status != "finished"]:
        failed[0].result()


PROGRAMS = (
    *(shuffle_tasks, shuffle_p2p, merge_tasks, merge_p2p, groupby_tree, transpose_sum),
    *(matrix_product, anomaly, sums_of_columns, rechunk_tasks, rechunk_p2p, map_overlap),
    *(tree_of_arrays, compressed_svd, skewed),
)
