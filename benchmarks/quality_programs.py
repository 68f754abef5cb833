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


# ------------------------------------------------- workloads that users reported or publish


def anomaly_by_day(client: Client) -> None:
    """Subtract the mean of each day of the year (dask/distributed#2602)."""
    x = da.random.default_rng(10).random((1460, 120, 120), chunks=(73, 60, 120))
    years = x.reshape((4, 365, 120, 120))
    (years - years.mean(axis=0)).std(axis=(0, 1)).compute()


def quadratic_means(client: Client) -> None:
    """Average products of two fields (pangeo-data/distributed-array-examples#2)."""
    rng = da.random.default_rng(11)
    u = rng.random((800, 100, 100), chunks=(20, 100, 100))
    v = rng.random((800, 100, 100), chunks=(20, 100, 100))
    dask.compute((u**2).mean(axis=0), (u * v).mean(axis=0), (v**2).mean(axis=0))


def vorticity(client: Client) -> None:
    """Subtract two fields along two axes, padded (coiled/benchmarks, test_vorticity)."""
    rng = da.random.default_rng(12)
    u = rng.random((3000, 3000), chunks=(500, 500))
    v = rng.random((3000, 3000), chunks=(500, 500))
    dx = da.pad(da.diff(v, axis=0), ((0, 1), (0, 0)))
    dy = da.pad(da.diff(u, axis=1), ((0, 0), (0, 1)))
    abs(dx - dy).sum(axis=0).compute()


def double_difference(client: Client) -> None:
    """Subtract two arrays that are shifted by a row (coiled/benchmarks, test_double_diff)."""
    rng = da.random.default_rng(13)
    a = rng.random((4000, 4000), chunks=(500, 1000))
    b = rng.random((4000, 4000), chunks=(500, 1000))
    (a[1:, 1:] - b[:-1, :-1]).std().compute()


def sum_of_residuals(client: Client) -> None:
    """Sum the residuals of all rows (coiled/benchmarks, test_sum_residuals)."""
    x = da.random.default_rng(14).random((4000, 4000), chunks=(500, 1000))
    ((x - x.mean(axis=0)) ** 2).sum().compute()


def filter_then_average(client: Client) -> None:
    """Average the elements above a limit (coiled/benchmarks, test_filter_then_average)."""
    x = da.random.default_rng(15).random((4000, 4000), chunks=(500, 1000))
    x[x > 0.9].mean().compute()


def slices(client: Client) -> None:
    """Sum a window in the middle of a large array (coiled/benchmarks, test_access_slices)."""
    x = da.random.default_rng(16).random((6000, 6000), chunks=(600, 600))
    x[1500:4500, 1500:4500].sum(axis=0).compute()


def climatology(client: Client) -> None:
    """Subtract monthly means from a field (dask/dask#4610)."""
    x = da.random.default_rng(17).random((1200, 150, 150), chunks=(30, 150, 150))
    months = x.reshape((100, 12, 150, 150))
    mean = months.mean(axis=0)
    (months - mean).std(axis=0).compute()


def covariance(client: Client) -> None:
    """Compute the covariance of columns (coiled/benchmarks, test_covariance)."""
    x = da.random.default_rng(18).random((20_000, 400), chunks=(1000, 400))
    centred = x - x.mean(axis=0)
    (centred.T @ centred).compute()


def least_squares(client: Client) -> None:
    """Decompose a tall matrix (dask.array.linalg.tsqr)."""
    x = da.random.default_rng(19).random((40_000, 200), chunks=(2000, 200))
    da.linalg.tsqr(x)[1].compute()


def correlation_of_pairs(client: Client) -> None:
    """Multiply neighbouring chunks in time (dask/distributed#6614)."""
    x = da.random.default_rng(20).random((1600, 40_000), chunks=(50, 40_000))
    (x[1:] * x[:-1]).mean(axis=1).compute()


def stack_of_images(client: Client) -> None:
    """Average groups of images that are loaded one by one (dask/distributed#6360)."""
    import numpy as np

    images = [delayed(np.full)((400, 400), float(i)) for i in range(120)]
    stack = da.stack([da.from_delayed(i, (400, 400), float) for i in images])
    stack.rechunk((6, 400, 400)).mean(axis=0).compute()


def cumulative_sum(client: Client) -> None:
    """Add up rows cumulatively."""
    x = da.random.default_rng(21).random((8000, 1500), chunks=(400, 1500))
    x.cumsum(axis=0)[-1].compute()


def tensor_product(client: Client) -> None:
    """Contract two tensors (coiled/benchmarks, test_dot_product)."""
    rng = da.random.default_rng(22)
    a = rng.random((1800, 1800), chunks=(450, 450))
    b = rng.random((1800, 1800), chunks=(450, 450))
    da.tensordot(a, b, axes=1).sum().compute()


def smoothed_differences(client: Client) -> None:
    """Run two overlapping computations in succession, one per axis."""
    x = square(4000, 500)
    y = x.map_overlap(lambda b: b - b.mean(), depth={0: 4, 1: 0}, boundary="none")
    y.map_overlap(lambda b: b * 2, depth={0: 0, 1: 4}, boundary="none").max().compute()


def pairwise_join(client: Client) -> None:
    """Add frames that are partitioned alike (coiled/benchmarks, test_dataframe_align)."""
    left, right = frame(20), frame(20, seed=9)
    (left.x + right.y).mean().compute()


def rolling_mean(client: Client) -> None:
    """Compute rolling means, which need the end of the partition before."""
    frame(24).x.rolling(100).mean().std().compute()


def cleaned_groupby(client: Client) -> None:
    """Clean a frame, then several aggregations of it (h2oai/db-benchmark, groupby)."""
    cleaned = frame(20)
    cleaned = cleaned[cleaned.y > -0.9].assign(z=lambda f: f.x * f.y)
    by_name = cleaned.groupby("name")
    dask.compute(by_name.z.sum(), by_name.x.mean(), cleaned.z.std())


def distinct_values(client: Client) -> None:
    """Count values, in a tree."""
    frame(24).id.value_counts(split_every=4).compute()


def delayed_pipelines(client: Client) -> None:
    """Load, transform and combine arrays in groups of four (dask/distributed#7555)."""
    import numpy as np

    loaded = [delayed(np.full)(200_000, i) for i in range(96)]
    scaled = [delayed(operator.mul)(each, 2.0) for each in loaded]
    groups = [delayed(np.add.reduce)(scaled[i : i + 4]) for i in range(0, len(scaled), 4)]
    delayed(max)([delayed(np.max)(group) for group in groups]).compute()


PROGRAMS = (
    *(shuffle_tasks, shuffle_p2p, merge_tasks, merge_p2p, groupby_tree, transpose_sum),
    *(matrix_product, anomaly, sums_of_columns, rechunk_tasks, rechunk_p2p, map_overlap),
    *(tree_of_arrays, compressed_svd, skewed),
    *(anomaly_by_day, quadratic_means, vorticity, double_difference, sum_of_residuals),
    *(filter_then_average, slices, climatology, covariance, least_squares, correlation_of_pairs),
    *(stack_of_images, cumulative_sum, tensor_product, smoothed_differences, pairwise_join),
    *(rolling_mean, cleaned_groupby, distinct_values, delayed_pipelines),
)
