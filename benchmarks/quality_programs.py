"""What the quality of a schedule is measured on: programs whose tasks hold and move enough for figures to mean something.

Each takes a stock client and returns nothing. They must not know which scheduler serves them, nor what is measured.
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
    """A frame with a partition a day, some 3 MB each."""
    end = f"2000-02-{days:02d}"
    return timeseries("2000-02-01", end, freq="2s", partition_freq="1d", seed=seed)


def shuffle_tasks(client: Client) -> None:
    frame().shuffle("id", shuffle_method="tasks").x.sum().compute()


def shuffle_p2p(client: Client) -> None:
    frame().shuffle("id", shuffle_method="p2p").x.sum().compute()


def merge_tasks(client: Client) -> None:
    left, right = frame(9), frame(9, seed=8)
    right = right.drop_duplicates("id", shuffle_method="tasks", split_out=4)[["id", "y"]]
    left.merge(right, on="id", shuffle_method="tasks", broadcast=False).y_y.mean().compute()


def merge_p2p(client: Client) -> None:
    left, right = frame(9), frame(9, seed=8)
    right = right.drop_duplicates("id", shuffle_method="tasks", split_out=4)[["id", "y"]]
    left.merge(right, on="id", shuffle_method="p2p", broadcast=False).y_y.mean().compute()


def groupby_tree(client: Client) -> None:
    """Many partitions reduced in a tree."""
    frame(28).groupby("name").agg({"x": ["mean", "std"], "y": ["min", "max"]}).compute()


def square(side: int = 6000, chunk: int = 1000) -> Any:
    return da.random.default_rng(1).random((side, side), chunks=(chunk, chunk))


def transpose_sum(client: Client) -> None:
    """Each block meets its mirror image."""
    x = square()
    (x + x.T)[::2, 3000:].mean(axis=1).compute()


def matrix_product(client: Client) -> None:
    x = square(2400, 600)
    (x @ x.T).sum(axis=1).compute()


def anomaly(client: Client) -> None:
    """A mean that needs all, taken from all: the data has to wait somewhere."""
    x = da.random.default_rng(2).random((4000, 6000), chunks=(250, 1500))
    (x - x.mean(axis=0)).std(axis=0).compute()


def sums_of_columns(client: Client) -> None:
    """Far more root tasks than threads, each reduced soon after."""
    x = da.random.default_rng(3).random((40_000, 2_000), chunks=(500, 1000))
    x.sum(axis=0).compute()


def rechunk_tasks(client: Client) -> None:
    x = da.random.default_rng(4).random((5000, 5000), chunks=(5000, 250))
    x.rechunk((250, 5000), method="tasks").sum(axis=1).compute()


def rechunk_p2p(client: Client) -> None:
    x = da.random.default_rng(4).random((5000, 5000), chunks=(5000, 250))
    x.rechunk((250, 5000), method="p2p").sum(axis=1).compute()


def map_overlap(client: Client) -> None:
    x = square(5000, 500)
    x.map_overlap(lambda b: (b + b[::-1]) / 2, depth=8, boundary="reflect").sum(axis=0).compute()


def tree_of_arrays(client: Client) -> None:
    """A binary reduction over arrays of 2 MB."""
    import numpy as np

    level = [delayed(np.ones)(250_000) for _ in range(256)]
    while len(level) > 1:
        level = [delayed(operator.add)(a, b) for a, b in zip(level[::2], level[1::2])]
    level[0].sum().compute()


def compressed_svd(client: Client) -> None:
    x = da.random.default_rng(6).random((8000, 2000), chunks=(1000, 500))
    dask.compute(da.linalg.svd_compressed(x, k=10, n_power_iter=1, seed=8)[1])


def skewed(client: Client) -> None:
    """All data lies on one worker, tasks on it take unevenly long: the others have to take some over."""
    import numpy as np

    def slow_double(x: Any, seconds: float) -> Any:  # local: it travels by value
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
    shuffle_tasks, shuffle_p2p, merge_tasks, merge_p2p, groupby_tree, transpose_sum, matrix_product, anomaly,
    sums_of_columns, rechunk_tasks, rechunk_p2p, map_overlap, tree_of_arrays, compressed_svd, skewed,
)  # fmt: skip
