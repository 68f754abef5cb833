"""A scheduler with stock workers and a stock client, all in this process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from distributed import Client, Worker
from paceline.scheduler.server.scheduler import Scheduler


@contextlib.asynccontextmanager
async def cluster(n_workers: int = 2, **options: Any) -> AsyncIterator[tuple[Any, Any, list[Any]]]:
    """Start a scheduler, a client, and workers with one thread each that are named w0, w1, ..."""
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        scheduler = await enter(Scheduler(host="127.0.0.1", port=0, dashboard=False, **options))
        workers = [
            await enter(Worker(scheduler.address, nthreads=1, name=f"w{i}", dashboard=False))
            for i in range(n_workers)
        ]
        client = await enter(Client(scheduler.address, asynchronous=True))
        yield scheduler, client, workers
