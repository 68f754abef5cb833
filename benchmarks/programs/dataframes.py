"""Programs with dataframes from CSV and parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.datasets import timeseries
from distributed import Client

from .program import main, program

PRODUCTS = ("apple", "bread", "cheese", "coffee", "honey", "milk", "olives", "tea")


def orders(folder: Path, files: int = 24, rows: int = 20_000) -> None:
    """Write one CSV file of orders per fortnight."""
    rng = np.random.default_rng(1)
    for n in range(files):
        days = pd.Timestamp("2025-01-01") + pd.to_timedelta(rng.integers(0, 14, rows) + 14 * n, "D")
        frame = pd.DataFrame(
            {
                "day": days.sort_values(),
                "customer": rng.integers(0, 5_000, rows),
                "product": rng.choice(PRODUCTS, rows),
                "price": rng.gamma(2, 20, rows).round(2),
                "quantity": rng.integers(1, 9, rows),
            }
        )
        frame.to_csv(folder / f"orders-{n:02}.csv", index=False)


def trips(folder: Path) -> None:
    """Write a parquet dataset of trips with many columns."""
    rng = np.random.default_rng(2)
    rows = 30_000
    for n in range(30):
        frame = pd.DataFrame(rng.random((rows, 12)), columns=[f"feature{i}" for i in range(12)])
        frame["zone"] = rng.integers(0, 250, rows)
        frame["fare"] = rng.gamma(3, 5, rows)
        frame["passengers"] = rng.integers(1, 6, rows)
        frame.to_parquet(folder / f"trips-{n:02}.parquet")


def pages(folder: Path, files: int = 20, rows: int = 12_000) -> None:
    """Write CSV files of a web server's log."""
    rng = np.random.default_rng(3)
    for n in range(files):
        frame = pd.DataFrame(
            {
                "host": [f"10.0.{a}.{b}" for a, b in rng.integers(0, 40, (rows, 2))],
                "request": [
                    f"{verb} /shop/{product}?page={page} HTTP/1.1"
                    for verb, product, page in zip(
                        rng.choice(["GET", "POST"], rows),
                        rng.choice(PRODUCTS, rows),
                        rng.integers(0, 300, rows),
                    )
                ],
            }
        )
        frame.to_csv(folder / f"log-{n:02}.csv", index=False)


def sorted_values(frame: Any) -> Any:
    """Return the values of a pandas object in the order of its index."""
    return frame.sort_index().to_numpy()


@program(orders)
def csv_groupby(client: Client, folder: Path) -> Any:
    """Read CSV files and summarize them by product, month and customer."""
    frame = dd.read_csv(folder / "*.csv", parse_dates=["day"], blocksize="300kB")
    frame["revenue"] = frame.price * frame.quantity
    by_product = frame.groupby("product").revenue.agg(["sum", "mean", "std", "max"])
    by_month = frame.groupby(frame.day.dt.month).revenue.sum()
    best = frame.groupby("customer").revenue.sum().nlargest(10)
    return [sorted_values(each) for each in dask.compute(by_product, by_month, best)]


@program(trips)
def parquet_columns(client: Client, folder: Path) -> Any:
    """Read three of fifteen columns, filter, write the result to parquet and read it again."""
    frame = dd.read_parquet(folder / "trips-*.parquet")
    zones = frame.groupby("zone").agg({"fare": ["mean", "count"], "passengers": "sum"})
    first = zones.compute()
    frame[frame.fare > 20][["zone", "fare"]].to_parquet(folder / "expensive", overwrite=True)
    expensive = dd.read_parquet(folder / "expensive")
    features = dd.read_parquet(folder / "trips-*.parquet", columns=["feature1", "feature7"])
    return [
        sorted_values(first),
        sorted_values(expensive.groupby("zone").fare.max().compute()),
        len(expensive),
        sorted_values(features.mean().compute()),
    ]


@program(orders)
def shuffle_and_merge(client: Client, folder: Path) -> Any:
    """Sort orders by customer, join them with customers by P2P, and aggregate ranges and groups."""
    frame = dd.read_csv(folder / "*.csv", blocksize="300kB")
    by_customer = frame.set_index("customer", npartitions=20, shuffle_method="p2p").persist()
    ranges = [by_customer.loc[start : start + 499] for start in range(0, 5_000, 500)]
    sums = [each.price.sum().compute() for each in ranges]
    countries = np.random.default_rng(4).choice(list("ABCDEF"), 5_000)
    customers = pd.DataFrame({"customer": np.arange(5_000), "country": countries})
    right = dd.from_pandas(customers, npartitions=8)
    joined = frame.merge(right, on="customer", shuffle_method="p2p", broadcast=False)
    groups = joined.groupby(["country", "product"]).price.agg(["sum", "count"])
    return [len(by_customer), sums, sorted_values(groups.compute())]


@program()
def rolling_time_series(client: Client, folder: Path) -> Any:
    """Resample and smooth time series of sensors."""
    frame = timeseries("2025-01-01", "2025-03-01", freq="5s", partition_freq="1d", seed=5)
    smooth = frame[["x", "y"]].rolling("10min").mean()
    hourly = smooth.resample("1h").agg(["mean", "max"])
    changes = frame.x.diff().abs().resample("1D").sum()
    lagged = (frame.x * frame.y.shift(12)).mean()
    hours, days, lag = dask.compute(hourly, changes, lagged)
    return [len(hours), hours.sum().to_numpy(), days.to_numpy(), lag]


@program(pages)
def string_columns(client: Client, folder: Path) -> Any:
    """Parse the lines of a log with string methods and categories."""
    frame = dd.read_csv(folder / "*.csv", blocksize="400kB")
    parts = frame.request.str.extract(r"(\w+) /shop/(\w+)\?page=(\d+)")
    parts = parts.rename(columns={0: "verb", 1: "product", 2: "page"}).assign(host=frame.host)
    parts["page"] = parts.page.astype(int)
    parts["subnet"] = parts.host.str.rsplit(".", n=1).str[0]
    parts = parts.categorize(["product", "verb"])
    posts = parts[(parts.verb == "POST") & parts.host.str.endswith("7")]
    found = dask.compute(
        posts.groupby("product", observed=True).page.mean(),
        parts.host.value_counts().nlargest(5).astype(int),
        parts.groupby("subnet").page.count(),
        frame.request.str.len().sum(),
    )
    return [np.sort(np.asarray(each).ravel()) for each in found]


if __name__ == "__main__":
    main()
