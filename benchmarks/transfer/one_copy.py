"""One large array on all workers of a host: how much memory that is (PSS), and what each further read costs.

``python -m benchmarks.transfer.one_copy --mb 1000``; everything else is in the other modules.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from distributed import wait

from . import meter, work
from .ways import Setup, running

KEEPS = {"DASK_DISTRIBUTED__SCHEDULER__ACTIVE_MEMORY_MANAGER__START": "False"}
"""Else the memory manager drops, after two seconds, what no task waits for."""
AGAIN = 20


def held_in_memory(key: str, dask_worker: object = None) -> float:
    """On a worker: seconds that fetching the key took, by the worker's own log."""
    log = dask_worker.transfer_incoming_log  # type: ignore[attr-defined]
    return sum(each["duration"] for each in log if key in each["keys"])


async def again(key: str, owner: str, times: int, dask_worker: object = None) -> list[float]:
    """On a worker: seconds of fetching the key anew, all of it."""
    import distributed.worker

    found = []
    for _ in range(times):
        began = time.perf_counter()
        await distributed.worker.get_data_from_worker(
            dask_worker.rpc,  # type: ignore[attr-defined]
            [key],
            owner,
            who="benchmark",
        )
        found.append(time.perf_counter() - began)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--ways", default="stock,auto")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        for way in given.ways.split(","):
            with running(way, Setup(Path(folder), workers=4, config=KEEPS)) as cluster:
                client = cluster.client
                addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
                before = sum(map(meter.pss_mb, cluster.pids))
                made = client.submit(work.make, "numpy", given.mb * 10**6, 1, workers=addresses[:1])
                wait(made)
                one = sum(map(meter.pss_mb, cluster.pids))
                print(f"{way}: made, +{one - before:.0f} MB")
                for number, address in enumerate(addresses[1:], 1):
                    began = time.perf_counter()
                    got = client.submit(len, made, workers=[address], pure=False)
                    got.result()
                    whole = time.perf_counter() - began
                    fetch = client.run(held_in_memory, made.key, workers=[address])[address]
                    began = time.perf_counter()
                    client.submit(work.read, made, workers=[address], pure=False).result()
                    read = time.perf_counter() - began
                    memory = sum(map(meter.pss_mb, cluster.pids)) - before
                    print(
                        f"  read {number}: fetch {fetch * 1000:.1f} ms (task and all {whole * 1000:.1f} ms),"
                        f" every byte read {read * 1000:.0f} ms, all workers +{memory:.0f} MB",
                        flush=True,
                    )
                if way != "stock":
                    last, owner = addresses[-1], addresses[0]
                    times = sorted(client.run(again, made.key, owner, AGAIN, workers=[last])[last])
                    print(
                        f"  fetched {AGAIN} times more by the third: best {times[0] * 1000:.1f} ms,"
                        f" median {times[AGAIN // 2] * 1000:.1f} ms, load {os.getloadavg()[0]:.0f}"
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
