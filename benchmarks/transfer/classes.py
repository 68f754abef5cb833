"""Time that three workers take to fetch values of one type and size from a fourth."""

from __future__ import annotations

import time
from typing import Any

from distributed import wait

from . import work
from .methods import RunningCluster

SIZES_MB = (0.01, 0.1, 1.0, 10.0, 100.0)
#: Total size of the values of a type and size, within the limits of their number.
TOTAL_MB = 200.0
COUNT_MAX = 200
COUNT_MIN = 3


def count_of(size_mb: float) -> int:
    """Return the number of values of `size_mb` to transfer."""
    return int(min(COUNT_MAX, max(COUNT_MIN, TOTAL_MB / size_mb)))


def seconds(running: RunningCluster, kind: str, size_mb: float, repeat: int) -> float:
    """Return the time in which other workers read all values, without that of creating them."""
    client = running.client
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    count = count_of(size_mb)
    values = client.map(
        work.make,
        [kind] * count,
        [int(size_mb * 1e6)] * count,
        [repeat * COUNT_MAX + i for i in range(count)],
        workers=[addresses[0]],
        pure=False,
    )
    wait(values)
    started = time.perf_counter()
    reads: list[Any] = []
    for i, value in enumerate(values):
        reader = addresses[1 + i % (len(addresses) - 1)]
        reads.append(client.submit(work.read, value, workers=[reader], pure=False))
    client.gather(reads)
    return time.perf_counter() - started
