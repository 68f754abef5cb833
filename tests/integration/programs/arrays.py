"""Programs on dask.array and xarray. Each takes a stock client and returns a comparable result.

They do not depend on the scheduler that serves them. Random numbers are seeded; rechunking is by tasks.
"""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
from distributed import Client


def numpy_transpose_mean(client: Client) -> object:
    """The numpy program of rsds: `x + x.T`, a slice, a mean."""
    x = da.random.default_rng(1).random((1200, 1200), chunks=(200, 200))
    y = x + x.T
    return y[::2, 600:].mean(axis=1).compute()


def xarray_climatology(client: Client) -> object:
    """The xarray program of rsds on synthetic air temperatures: a mean, a difference, a groupby."""
    import pandas as pd
    import xarray as xr

    times = pd.date_range("2013-01-01", periods=96, freq="6h")
    values = 280 + 10 * np.random.default_rng(3).standard_normal((96, 25, 53))
    air = xr.DataArray(
        values,
        dims=("time", "lat", "lon"),
        coords={"time": times, "lat": np.linspace(75, 15, 25), "lon": np.linspace(200, 330, 53)},
        name="air",
    ).chunk({"time": 16, "lat": 25, "lon": 27})
    anomaly = air - air.mean("time")
    hourly = anomaly.groupby("time.hour").mean()
    dask_std = air.std("time")
    hourly, deviation = dask.compute(hourly, dask_std)
    return hourly.values, deviation.values


def map_overlap(client: Client) -> object:
    x = da.random.default_rng(2).random((400, 400), chunks=(100, 100))
    smoothed = x.map_overlap(
        lambda block: (block + np.roll(block, 1, 0) + np.roll(block, 1, 1)) / 3,
        depth=2,
        boundary="reflect",
    )
    return smoothed.sum(axis=0).compute()


def matrix_product(client: Client) -> object:
    x = da.random.default_rng(4).random((600, 300), chunks=(150, 150))
    return (x @ x.T).sum(axis=1).compute()


def singular_values(client: Client) -> object:
    x = da.random.default_rng(5).random((2000, 20), chunks=(250, 20))
    _, s, _ = da.linalg.svd(x)
    return s.compute()


def compressed_svd(client: Client) -> object:
    x = da.random.default_rng(6).random((500, 400), chunks=(250, 100))
    _, s, _ = da.linalg.svd_compressed(x, k=5, seed=8)
    return s.compute()


def rechunk_by_tasks(client: Client) -> object:
    x = da.arange(1_000_000, chunks=100_000).reshape((1000, 1000))
    y = x.rechunk((1000, 50), method="tasks").rechunk((130, 130), method="tasks")
    return y.numblocks, (y * 2).sum(axis=0).compute()


def cumulative_and_stack(client: Client) -> object:
    x = da.ones((40, 300), chunks=(10, 50))
    stacked = da.stack([x.cumsum(axis=1), x * 2])
    return stacked.shape, stacked.max(axis=(0, 1)).compute()


def rechunk_by_p2p(client: Client) -> object:
    x = da.random.default_rng(9).random((600, 600), chunks=(600, 30))
    y = x.rechunk((30, 600), method="p2p")
    return y.numblocks, y.sum(axis=1).compute()
