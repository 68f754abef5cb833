"""Programs in which one large value is an argument of many tasks.

They do not depend on the scheduler that serves them. The test measures the scheduler's memory.
"""

from __future__ import annotations

from functools import partial

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client

N_TASKS = 50

# The stock scheduler fails here (the client sends a key without a priority), so the expected result is listed.
EXPECTED = {
    "keyword_of_map": [i * 1000.0 for i in range(N_TASKS)],
    "keyword_of_two_maps": ([0.0, 1000.0, 2000.0], [1.0, 1001.0, 2001.0]),
}


def table() -> np.ndarray:
    """Return 8 MB of numbers."""
    return np.arange(1_000_000, dtype="float64")


def lookup(values: np.ndarray, i: int) -> float:
    return float(values[i * 1000])


class Model:
    """Return an object that contains a large array."""

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = weights

    def predict(self, i: int) -> float:
        return float(self.weights[i] * 2)


def array_in_a_partial(client: Client) -> object:
    futures = client.map(partial(lookup, table()), range(N_TASKS), pure=False)
    return client.gather(futures)


def array_in_map_partitions(client: Client) -> object:
    frame = pd.DataFrame({"i": range(N_TASKS)})
    df = dd.from_pandas(frame, npartitions=N_TASKS)

    def look_up(part: pd.DataFrame, values: np.ndarray) -> pd.Series:
        return part.i.map(lambda i: lookup(values, i))

    return df.map_partitions(look_up, table(), meta=("i", "float64")).compute()


def object_with_an_array(client: Client) -> object:
    futures = client.map(Model(table()).predict, range(N_TASKS), pure=False)
    return client.gather(futures)


def keyword_of_map(client: Client) -> object:
    futures = client.map(lambda i, values: lookup(values, i), range(N_TASKS), values=table())
    return client.gather(futures)


def keyword_of_two_maps(client: Client) -> object:
    """Use the same keyword with other contents, while the first value is still needed."""
    one = client.map(lambda i, values: lookup(values, i), range(3), values=table())
    two = client.map(lambda i, values: lookup(values, i), range(3), values=table() + 1)
    return client.gather(one), client.gather(two)


def large_results(client: Client) -> object:
    """Gather results of 8 MB each through the scheduler and from the workers."""
    futures = client.map(lambda i: table() + i, range(6), pure=False)
    through = client.gather(futures, direct=False)
    direct = client.gather(futures, direct=True)
    return [float(x.sum()) for x in through], [float(x.sum()) for x in direct]
