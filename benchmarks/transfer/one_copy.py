"""Memory (PSS) of one large array on all workers of a host, and the time of each further read.

usage: python -m benchmarks.transfer.one_copy --mb 1000
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from distributed import wait

from ..process_costs import proportional_memory
from . import work
from .methods import STOCK, RunningCluster, Setup, running

#: The active memory manager would drop replicas that no task needs after two seconds.
CONFIG = {"DASK_DISTRIBUTED__SCHEDULER__ACTIVE_MEMORY_MANAGER__START": "False"}
FETCHES = 20


def fetch_seconds(key: str, dask_worker: object = None) -> float:
    """Return the time in which the worker fetched `key`, according to its own log."""
    log = dask_worker.transfer_incoming_log  # type: ignore[attr-defined]
    return sum(entry["duration"] for entry in log if key in entry["keys"])


async def fetch_again(key: str, owner: str, times: int, dask_worker: object = None) -> list[float]:
    """Fetch `key` again from `owner`, and return the seconds of each fetch."""
    import distributed.worker

    found = []
    for _ in range(times):
        started = time.perf_counter()
        await distributed.worker.get_data_from_worker(
            dask_worker.rpc,  # type: ignore[attr-defined]
            [key],
            owner,
            who="benchmark",
        )
        found.append(time.perf_counter() - started)
    return found


def measure(method: str, size_nbytes: int, cluster: RunningCluster) -> None:
    """Create an array on the first worker, read it on the others, and print the costs."""
    client = cluster.client
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    before = sum(map(proportional_memory, cluster.pids))
    array = client.submit(work.make, "numpy", size_nbytes, 1, workers=addresses[:1])
    wait(array)
    print(f"{method}: created, +{sum(map(proportional_memory, cluster.pids)) - before:.0f} MB")
    for number, address in enumerate(addresses[1:], 1):
        started = time.perf_counter()
        client.submit(len, array, workers=[address], pure=False).result()
        task = time.perf_counter() - started
        fetch = client.run(fetch_seconds, array.key, workers=[address])[address]
        started = time.perf_counter()
        client.submit(work.read, array, workers=[address], pure=False).result()
        read = time.perf_counter() - started
        memory = sum(map(proportional_memory, cluster.pids)) - before
        print(
            f"  read {number}: fetch {fetch * 1000:.1f} ms (with its task {task * 1000:.1f} ms), "
            f"read of every page {read * 1000:.0f} ms, all workers +{memory:.0f} MB",
            flush=True,
        )
    if method != STOCK:
        last = addresses[-1]
        times = client.run(fetch_again, array.key, addresses[0], FETCHES, workers=[last])[last]
        times.sort()
        print(
            f"  {FETCHES} more fetches by the last worker: minimum {times[0] * 1000:.1f} ms, "
            f"median {times[FETCHES // 2] * 1000:.1f} ms, load {os.getloadavg()[0]:.0f}"
        )


def main() -> None:
    """Measure each method on a cluster of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000, help="size of the array")
    parser.add_argument("--methods", default="stock,auto")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        for method in options.methods.split(","):
            with running(method, Setup(Path(folder), workers=4, config=CONFIG)) as cluster:
                measure(method, options.mb * 10**6, cluster)


if __name__ == "__main__":
    sys.exit(main())
