"""Load test of one scheduler: clients connect, wait for locks and queues, and leave. `python -m tests.soak.crowd --seconds 300`

Every waiter sends its next request as soon as it was served. The report counts how often each waiter was served (first come,
first served serves all waiters of a lock or queue about equally often), and what is left in the scheduler: objects, memory, names.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
from distributed import Client, Lock, Queue

from tests.support.real_cluster import Cluster, scheduler_command

#: Rounds of clients before the baseline is measured, in which caches and pools grow to their usual size.
WARM_UP_SECONDS = 5.0
#: Timeout for clients that still wait at the end to be served once more.
END_SECONDS = 60.0


@dataclass
class Report:
    """Result of a run.

    Attributes:
        served: name of a lock or queue -> number of times each of its waiters was served.
        before, after: facts of the scheduler's process without any of these clients.
        errors: unexpected errors.
    """

    served: dict[str, list[int]] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def spread(self, name: str) -> int:
        """Return the difference between the most and the least served waiter."""
        return max(self.served[name]) - min(self.served[name])

    def lines(self) -> list[str]:
        out = [
            f"{name:>10}: {sum(counts):6} served, each of {len(counts)} between {min(counts)} and {max(counts)} times"
            for name, counts in self.served.items()
        ]
        keys = sorted(self.before)
        out += [
            f"{key:>20}: {self.before[key]} before, {self.after.get(key)} after" for key in keys
        ]
        return [*out, *self.errors]


def facts(dask_scheduler: Any = None) -> dict[str, Any]:
    """Return facts of the scheduler's process: objects, memory, clients, remaining locks and queues."""
    gc.collect()
    found = {
        "objects": len(gc.get_objects()),
        "rss_mib": dask_scheduler.proc.memory_info().rss >> 20,
    }
    found["clients"] = len(dask_scheduler.clients)
    found["tasks"] = len(dask_scheduler.tasks)
    found["connections"] = len(dask_scheduler.proc.net_connections())
    extensions = dask_scheduler.extensions
    found["queues"] = len(extensions["queues"].queues)
    found["semaphores"] = len(extensions["semaphores"].max_leases)
    return found


async def settled(address: str) -> dict[str, Any]:
    """Return the facts once the calling client is the only one left."""
    async with Client(address, asynchronous=True) as client:
        for _ in range(100):
            found = await client.run_on_scheduler(facts)
            if found["clients"] <= 2:
                break
            await asyncio.sleep(0.2)
        return dict(found)


async def lock_waiter(lock: Lock, counts: list[int], number: int, over: asyncio.Event) -> None:
    while not over.is_set():
        if await lock.acquire():
            counts[number] += 1
            await lock.release()


async def queue_waiter(queue: Queue, counts: list[int], number: int, over: asyncio.Event) -> None:
    while not over.is_set():
        await queue.get()
        counts[number] += 1


async def producer(queue: Queue) -> None:
    while True:
        await queue.put(1)


async def crowd(
    address: str, report: Report, seconds: float, n_clients: int, n_waiters: int, n_names: int
) -> None:
    """Run the given number of clients with waiters at locks and queues for a number of seconds."""
    names = [f"{kind}-{i}" for kind in ("lock", "queue") for i in range(n_names)]
    report.served = {name: [] for name in names}
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for _ in range(n_clients):
            client = Client(address, asynchronous=True, timeout=60, set_as_default=False)
            clients.append(await stack.enter_async_context(client))
        over = asyncio.Event()
        producers, waiters = [], []
        queues: list[Queue] = []
        locks: dict[str, Lock] = {}
        for number in range(n_names):
            queue = await Queue(f"queue-{number}", client=clients[number], maxsize=20)
            queues.append(queue)
            producers.append(asyncio.create_task(producer(queue)))
        for number in range(n_waiters):
            client, name = clients[number % n_clients], names[number % len(names)]
            counts = report.served[name]
            counts.append(0)
            if name.startswith("lock"):
                locks[name] = await Lock(name, scheduler_rpc=client.scheduler, loop=client.loop)
                waiting = lock_waiter(locks[name], counts, len(counts) - 1, over)
            else:
                queues.append(await Queue(name, client=client))
                waiting = queue_waiter(queues[-1], counts, len(counts) - 1, over)
            waiters.append(asyncio.create_task(waiting))
        tasks = [*producers, *waiters]
        while not all(all(counts) for counts in report.served.values()):
            await asyncio.sleep(0.1)  # all waiters are connected
        for counts in report.served.values():
            counts[:] = [0] * len(counts)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not any(task.done() for task in tasks):
            await asyncio.sleep(0.2)
        over.set()
        report.served = {name: list(counts) for name, counts in report.served.items()}
        report.errors += [repr(task.exception()) for task in tasks if task.done()]
        await asyncio.wait(waiters, timeout=END_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for queue in queues:
            queue.close()
        for lock in locks.values():
            await lock.close()
        await asyncio.sleep(1)


async def measured(
    address: str, seconds: float, n_clients: int, n_waiters: int, n_names: int
) -> Report:
    """Measure before and after a large crowd, after a small one has filled caches."""
    report = Report()
    await crowd(address, report, WARM_UP_SECONDS, max(2, n_clients // 4), n_waiters // 4, 2)
    report.before = await settled(address)
    await crowd(address, report, seconds, n_clients, n_waiters, n_names)
    report.after = await settled(address)
    return report


def run(
    command: Sequence[str],
    folder: Path,
    seconds: float,
    n_clients: int = 200,
    n_waiters: int = 1000,
    n_names: int = 10,
) -> Report:
    """Run the load test on a separate cluster."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)  # the scheduler process cannot import this module
    try:
        with Cluster(command, folder, nannies=(False,)) as cluster:
            return asyncio.run(measured(cluster.address, seconds, n_clients, n_waiters, n_names))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--waiters", type=int, default=1000)
    parser.add_argument("--names", type=int, default=10)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = run(
            scheduler_command("paceline"),
            Path(place),
            chosen.seconds,
            chosen.clients,
            chosen.waiters,
            chosen.names,
        )
    print("\n".join(found.lines()))
