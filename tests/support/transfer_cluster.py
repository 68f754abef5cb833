"""Clusters of stock workers in this process, over real sockets, with a transfer configured."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from distributed import Client, Scheduler, Worker
from paceline.transfer import Transfer


@dataclass
class TransferCluster:
    """A stock scheduler, workers and client."""

    client: Client
    workers: list[Worker]

    def transfer(self, index: int) -> Any:
        return self.workers[index].plugins["paceline-transfer"].transfer

    def traffic(self, name: str) -> dict[str, int]:
        """Return counters of the transfer, summed over the workers."""
        each = [self.transfer(i).health.backends[name].traffic for i in range(len(self.workers))]
        return {field: sum(getattr(t, field) for t in each) for field in vars(each[0])}


@asynccontextmanager
async def transfer_cluster(
    transfer: Transfer | None, n_workers: int = 3, **options: Any
) -> AsyncIterator[TransferCluster]:
    """Start the cluster; close it when the block ends."""
    options = {"nthreads": 1, "memory_limit": "2GB", "dashboard_address": ":0", **options}
    async with Scheduler(port=0, host="127.0.0.1", dashboard_address=":0") as scheduler:
        workers = [Worker(scheduler.address, name=str(i), **options) for i in range(n_workers)]
        for worker in workers:
            await worker
            # all workers share the memory of the test process
            worker.memory_manager.memory_spill_fraction = False
            worker.memory_manager.memory_pause_fraction = False
        async with Client(scheduler.address, asynchronous=True) as client:
            if transfer is not None:
                await client.register_plugin(transfer)
            try:
                yield TransferCluster(client, workers)
            finally:
                for worker in workers:
                    await worker.close(nanny=False)
