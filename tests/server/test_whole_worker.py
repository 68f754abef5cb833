"""A stock nanny restarts its worker because of its memory: the task is tried again alone."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, KilledWorker, Nanny
from paceline.scheduler.server.scheduler import Scheduler

MB = 1_000_000


def hold(megabytes: int, seconds: float) -> int:
    """Hold as much memory for `seconds`."""
    import time

    held = [np.ones(10 * MB // 8) for _ in range(megabytes // 10)]
    time.sleep(seconds)
    return len(held)


async def test_two_tasks_that_fit_one_by_one() -> None:
    options: dict[str, Any] = {"nthreads": 2, "memory_limit": 450 * MB, "dashboard_address": None}
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        async with (
            Scheduler(host="127.0.0.1", dashboard=False, compile_in_threads=True) as scheduler,
            Nanny(scheduler.address, **options),
            Client(scheduler.address, asynchronous=True) as client,
        ):
            futures = client.map(hold, [200, 201], [1.0, 1.0], key="hold")
            assert await client.gather(futures) == [20, 20]
            state = scheduler.server.state
            assert state.whole_workers.sent_count == 2
            assert all(ts.suspicious == 0 for ts in state.tasks.values())
            with pytest.raises(KilledWorker):
                await client.submit(hold, 600, 5.0)
            assert state.whole_workers.sent_count == 3
