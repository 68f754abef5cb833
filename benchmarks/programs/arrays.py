"""Programs with arrays, and with labelled arrays of xarray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr
from distributed import Client

from .program import main, program


def random(seed: int, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Any:
    """Return an array of random numbers."""
    return da.random.default_rng(seed).random(shape, chunks=chunks)


@program()
def reductions(client: Client, folder: Path) -> Any:
    """Reduce a large array along each axis and as a whole."""
    x = random(1, (7_500, 7_500), (500, 500))
    spread = (x - x.mean(axis=0)).std(axis=1)
    counts, _ = da.histogram(x, bins=20, range=(0, 1))
    found = dask.compute(spread.sum(), x.max(axis=0).min(), x.argmin(axis=1).sum(), counts)
    return [*found, (x[::7, 3_000:] ** 2).sum().compute()]


@program(tolerance=1e-4)
def decompositions(client: Client, folder: Path) -> Any:
    """Compute singular values, a compressed decomposition and a least-squares fit."""
    tall = random(2, (200_000, 60), (5_000, 60))
    wide = random(3, (8_000, 3_000), (1_000, 500))
    singular = da.linalg.svd(tall)[1]
    compressed = da.linalg.svd_compressed(wide, k=10, n_power_iter=2, seed=4)[1]
    weights = tall @ da.arange(60, chunks=60)
    fit = da.linalg.lstsq(tall, weights)[0]
    singular, compressed, fit = dask.compute(singular, compressed, fit)
    return [singular, compressed[:3], fit[1:]]


@program()
def image_filters(client: Client, folder: Path) -> Any:
    """Smooth an image with overlapping blocks, find edges and count the bright spots."""
    from scipy import ndimage

    image = random(5, (4_500, 4_500), (500, 500))
    smooth = image.map_overlap(ndimage.gaussian_filter, depth=12, boundary="reflect", sigma=3)
    edges = smooth.map_overlap(ndimage.sobel, depth=1, boundary="reflect")
    bright = (smooth > smooth.mean() + 3 * smooth.std()).sum()
    return dask.compute(bright, abs(edges).sum(), edges.max())


@program()
def rechunk_and_fft(client: Client, folder: Path) -> Any:
    """Transform an array along both axes, with a rechunk between them."""
    x = random(6, (3_600, 3_600), (200, 3_600))
    rows = da.fft.fft(x, axis=1)
    spectrum = da.fft.fft(rows.rechunk((3_600, 200)), axis=0)
    power = (abs(spectrum) ** 2).rechunk((600, 600))
    return dask.compute(power.sum(), power[1:50, 1:50].max(), power.mean(axis=0)[1:5])


@program()
def climatology(client: Client, folder: Path) -> Any:
    """Compute the anomalies of daily temperatures from the mean of their month."""
    days = pd.date_range("2023-01-01", "2023-12-31")
    shape = (len(days), 60, 120)
    season = np.cos(np.arange(len(days)) * 2 * np.pi / 365.25)
    data = random(9, shape, (73, 60, 120)) * 10 + da.asarray(season)[:, None, None] * 8
    coordinates = {"time": days, "lat": np.linspace(-89, 89, 60), "lon": np.arange(0, 360, 3)}
    air = xr.DataArray(data, coordinates, ("time", "lat", "lon"), "air")
    months = air.groupby("time.month").mean("time")
    anomalies = air.groupby("time.month") - months
    weights = np.cos(np.deg2rad(air.lat))
    seasons = anomalies.weighted(weights).mean(("lat", "lon")).groupby("time.season").std()
    north = air.sel(lat=slice(0, 90)).chunk(lat=30).rolling(time=30).mean().max("time").mean()
    return [each.values for each in dask.compute(seasons, months.mean(("lat", "lon")), north)]


if __name__ == "__main__":
    main()
