"""The dataframe program that runs on every cluster that a deployment tool has started, and checks that it uses paceline.

`python dataframe_program.py ADDRESS [WORKERS]` runs it from a shell.
"""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle

START_TIMEOUT_SECONDS = 90


def scheduler_module(dask_scheduler: Any) -> str:
    """Return the module of the scheduler's class; runs in the scheduler process."""
    return type(dask_scheduler).__module__


def run(client: Any, workers: int = 2) -> float:
    """Join and group two dataframes by a shuffle, and compare with pandas.

    Raises:
        AssertionError: the scheduler is not paceline, or the result differs from that of pandas.
    """
    import dask.dataframe as dd
    import pandas as pd

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        module = client.run_on_scheduler(scheduler_module)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert module.startswith("paceline."), module
    client.wait_for_workers(workers, timeout=START_TIMEOUT_SECONDS)

    sales = pd.DataFrame({"item": [i * 7 % 50 for i in range(3_000)], "count": range(3_000)})
    prices = pd.DataFrame({"item": range(50), "price": [i * 1.5 for i in range(50)]})
    joined = dd.from_pandas(sales, npartitions=6).merge(
        dd.from_pandas(prices, npartitions=3), on="item"
    )
    joined["total"] = joined["count"] * joined["price"]
    found = joined.groupby("item")["total"].sum().compute(scheduler=client.get).sort_index()
    expected = sales.merge(prices, on="item")
    expected["total"] = expected["count"] * expected["price"]
    pd.testing.assert_series_equal(found, expected.groupby("item")["total"].sum())
    return float(found.sum())


def main() -> None:
    """Run the program from the command line."""
    from distributed import Client

    with Client(sys.argv[1], timeout=START_TIMEOUT_SECONDS) as client:
        print("computed", run(client, int(sys.argv[2]) if len(sys.argv) > 2 else 2))


if __name__ == "__main__":
    main()
