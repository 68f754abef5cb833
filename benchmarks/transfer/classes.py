"""Time that three workers take to fetch values of one type and size from a fourth."""

from __future__ import annotations

import time
from typing import Any

from distributed import wait

from . import work
from .ways import Running

SIZES_MB = (0.01, 0.1, 1.0, 10.0, 100.0)
TOTAL_MB = 200.0
"""What is made of each kind and size; small ones are fewer than that would be."""
COUNT_MAX = 200
COUNT_MIN = 3


def count_of(size_mb: float) -> int:
    return int(min(COUNT_MAX, max(COUNT_MIN, TOTAL_MB / size_mb)))


def seconds(running: Running, kind: str, size_mb: float, repeat: int) -> float:
    """From asking for all values on the other workers until they have read them; making them is not counted."""
    client = running.client
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    count = count_of(size_mb)
    made = client.map(
        work.make,
        [kind] * count,
        [int(size_mb * 1e6)] * count,
        [repeat * COUNT_MAX + i for i in range(count)],
        workers=[addresses[0]],
        pure=False,
    )
    wait(made)
    began = time.perf_counter()
    taken: list[Any] = []
    for i, value in enumerate(made):
        reader = addresses[1 + i % (len(addresses) - 1)]
        taken.append(client.submit(work.read, value, workers=[reader], pure=False))
    client.gather(taken)
    return time.perf_counter() - began
