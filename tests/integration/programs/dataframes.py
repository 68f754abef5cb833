"""Programs on dask.dataframe. Each takes a stock client and returns a comparable result.

They do not depend on the scheduler that serves them. Shuffles and merges are by tasks, set explicitly.
"""

from __future__ import annotations

import tempfile

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.datasets import timeseries
from distributed import Client

# p2p is the default of a stock client, also for many groupbys
BY_TASKS = {"dataframe.shuffle.method": "tasks"}


def synthetic(
    days: int = 4, freq: str = "60s", partition: str = "8h", seed: int = 7
) -> dd.DataFrame:
    """A seeded timeseries; rsds names its variants days-freq-partition."""
    return timeseries(end=f"2000-01-{1 + days:02d}", freq=freq, partition_freq=partition, seed=seed)


def groupby(client: Client) -> object:
    """The groupby of rsds: an aggregation with several statistics over groups."""
    df = synthetic()
    grouped = df.groupby("name").agg({"x": ["mean", "std", "count"], "y": ["min", "max"]})
    return grouped.compute().sort_index()


def join(client: Client) -> object:
    """The join of rsds: a frame joined with a part of itself on `id`."""
    df = synthetic(days=1, freq="300s", partition="4h")
    other = df[df.x > 0.5][["id", "y"]]
    with dask.config.set(BY_TASKS):
        joined = df.merge(other, on="id", suffixes=("_left", "_right"))
        result = joined.compute()
    return len(result), float(result.x.sum()), float(result.y_right.sum())


def timeseries_groupby(client: Client) -> object:
    df = synthetic(days=6)
    with dask.config.set(BY_TASKS):
        return df.groupby("name")["x"].mean().compute().sort_index()


def timeseries_filter(client: Client) -> object:
    df = synthetic(days=6)
    return df[(df["x"] > 0) | (df["y"] < 0)].compute()


def shuffle_by_tasks(client: Client) -> object:
    df = synthetic(days=2)
    shuffled = df.shuffle("id", npartitions=5, shuffle_method="tasks")
    sizes = shuffled.map_partitions(len, meta=(None, "int64")).compute()
    counts = shuffled.map_partitions(lambda part: part.id.nunique(), meta=(None, "int64")).compute()
    return sizes.tolist(), counts.tolist()


def merge_by_tasks(client: Client) -> object:
    left = synthetic(days=2)
    names = ["Alice", "Bob", "Charlie", "Dan", "Edith", "Frank"]
    right = pd.DataFrame({"name": names, "weight": range(len(names))})
    right = dd.from_pandas(right, npartitions=3)
    merged = left.merge(right, on="name", how="inner", shuffle_method="tasks", broadcast=False)
    return merged.groupby("weight").x.sum().compute().sort_index()


def rolling(client: Client) -> object:
    df = synthetic(days=2)
    return df[["x", "y"]].rolling(window=30).mean().compute()


def set_index(client: Client) -> object:
    df = synthetic(days=1, freq="120s")
    with dask.config.set(BY_TASKS):
        indexed = df.reset_index().set_index("id", shuffle_method="tasks")
        result = indexed[["x"]].compute()
    order = np.lexsort((result.x.to_numpy(), result.index.to_numpy()))
    return indexed.known_divisions, bool(result.index.is_monotonic_increasing), result.iloc[order]


def parquet(client: Client) -> object:
    df = synthetic(days=2)
    with tempfile.TemporaryDirectory() as folder:
        df.to_parquet(folder)
        again = dd.read_parquet(folder, columns=["x", "name"])
        return len(again), again.groupby("name").x.sum().compute().sort_index()


def quantiles_and_counts(client: Client) -> object:
    df = synthetic(days=2)
    with dask.config.set(BY_TASKS):
        counts = df.name.value_counts(sort=False)
        described, counts = dask.compute(df[["x", "y"]].describe(), counts)
    return described, counts.sort_index()


def groupby_by_default(client: Client) -> object:
    """Shuffle with the defaults of a stock client, that is by P2P."""
    df = synthetic(days=6)
    return df.groupby("name")["x"].mean().compute().sort_index()


def shuffle_by_p2p(client: Client) -> object:
    df = synthetic(days=2)
    shuffled = df.shuffle("id", npartitions=5, shuffle_method="p2p")
    sizes = shuffled.map_partitions(len, meta=(None, "int64")).compute()
    return sum(sizes.tolist()), shuffled.x.sum().compute()


def merge_by_p2p(client: Client) -> object:
    left, right = synthetic(days=1), synthetic(days=1, seed=8)
    merged = left.merge(right, on="id", shuffle_method="p2p", broadcast=False)
    return merged.groupby("name_x").y_y.sum().compute().sort_index()
