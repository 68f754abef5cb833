"""The ways to compare, each on a cluster of its own: four worker processes, paceline or the stock scheduler, one client."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.hosts import hosts
from tests.support.real_cluster import Cluster, scheduler_command
from tests.support.redis_servers import redis_server

from . import graph, meter, work

ROOT = Path(__file__).resolve().parents[2]
DASK, STOCK, BY_HAND = "dask", "stock", "by-hand"
"""Dask as it is, scheduler and all; its transfer under another scheduler; through Redis in the tasks' code."""
PLAIN = (DASK, STOCK, BY_HAND)
"""No transfer is turned on."""
WAYS = (DASK, STOCK, BY_HAND, "auto", "shm", "file", "redis", "direct")
SETTLE_SECONDS = 1.0
LEFT_SECONDS = 15.0  # until then everything that is over must be gone


@dataclass
class Setup:
    """What all runs have in common.

    Attributes:
        folder: for logs and shared files.
        workers: processes, one thread each.
        scheduler: "paceline" or "stock".
        memory: what a worker may use, as ``dask worker`` reads it.
        hosts: that the workers are on in turn, each a network of its own; 0 for all of them on this one.
        megabits: a second of each host's line; 0 for what the machine can do.
        config: more of the processes' environment.
    """

    folder: Path
    workers: int = 4
    scheduler: str = "paceline"
    memory: str = "0"
    hosts: int = 0
    megabits: float = 0
    config: dict[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """Of one run.

    Attributes:
        way, kind: what ran.
        cost: see ``meter``.
        right: a number that must be the same for all ways.
        asked_mb: what workers asked of each other, by the sizes that Dask knows.
        traffic: of the back ends, all workers together.
    """

    way: str
    kind: str
    cost: meter.Cost
    right: int
    asked_mb: float = 0.0
    traffic: dict[str, float] = field(default_factory=dict)


@dataclass
class Running:
    """A cluster with one way on."""

    way: str
    client: Any
    cluster: Cluster
    url: str = ""
    server: Any = None
    shared: Path | None = None

    @property
    def pids(self) -> list[int]:
        """Of the workers, and of the Redis server where there is one."""
        found = [process.pid for process in self.cluster.processes[1:] if process.running]
        if self.cluster.hosts:  # what was started there stands before the worker
            found = [psutil.Process(pid).children(recursive=True)[-1].pid for pid in found]
        return [*found, self.server.process.pid] if self.server is not None else found

    def compute(self, drawn: list[int], kind: str, prefix: str) -> Result:
        """Run the graph once."""
        url = self.url if self.way == BY_HAND else ""
        made, last = graph.graph(drawn, kind, prefix, url)
        before = self.client.run(numbers)
        with meter.Meter(self.pids) as measured:
            future = self.client.get(made, last, sync=False)
            right = work.checksum(future.result())
            del future
        after = self.client.run(numbers)
        moved = {
            name: sum(after[w][name] - before.get(w, {}).get(name, 0) for w in after)
            for name in next(iter(after.values()))
        }
        if url:
            self.flush_by_hand()
        asked = moved.pop("asked") / 1e6
        return Result(self.way, kind, measured.cost, right, asked, moved)

    def flush_by_hand(self) -> None:
        """What the way by hand leaves behind: nothing of it ends by itself."""
        import redis

        redis.Redis.from_url(self.url).flushall()

    def left(self) -> dict[str, int]:
        """What is left of values that are over, after a while: entries, files, keys in Redis."""
        deadline = time.monotonic() + LEFT_SECONDS
        while True:
            found = {"held": sum(self.client.run(held).values())}
            if self.shared is not None:
                files = [p.name for p in self.shared.rglob("*") if p.is_file()]
                found["files"] = len([name for name in files if len(name) >= 32])  # no leases
            if self.server is not None and self.server.process.poll() is None:
                found["redis"] = self.server.keys()
            if not any(found.values()) or time.monotonic() > deadline:
                return found
            time.sleep(0.3)


def numbers(dask_worker: Any) -> dict[str, float]:
    """On a worker: counters that only grow."""
    found = {"asked": dask_worker.transfer_outgoing_bytes_total}
    for field_name in ("put_nbytes", "got_nbytes", "put_count", "got_count", "failed_count"):
        found[field_name] = 0
        for backend in _backends(dask_worker):
            found[field_name] += getattr(backend.traffic, field_name)
    return found


def held(dask_worker: Any) -> int:
    """On a worker: values that its back ends have."""
    plugin = dask_worker.plugins.get("paceline-transfer")
    transfer = plugin.transfer if plugin is not None else None
    return len(transfer.published) if transfer is not None else 0


def _backends(dask_worker: Any) -> list[Any]:
    plugin = dask_worker.plugins.get("paceline-transfer")
    transfer = plugin.transfer if plugin is not None else None
    return list(transfer.health.backends.values()) if transfer is not None else []


@contextlib.contextmanager
def running(way: str, setup: Setup) -> Iterator[Running]:
    """A cluster with a way on; everything ends with the block."""
    from distributed import Client
    from paceline.transfer import Transfer

    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    config = {"PYTHONPATH": paths, "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False"}
    config |= setup.config
    folder = setup.folder / f"{way}-{time.monotonic_ns():x}"
    with contextlib.ExitStack() as stack:
        cluster = Cluster(
            scheduler_command("stock" if way == DASK else setup.scheduler),
            folder,
            nannies=[False] * setup.workers,
            nthreads=1,
            config=config,
            worker_options=["--memory-limit", setup.memory],
        )
        if setup.hosts:
            cluster.host, cluster.hosts = stack.enter_context(hosts(setup.hosts, setup.megabits))
        stack.enter_context(cluster)
        client = stack.enter_context(Client(cluster.address))
        found = Running(way, client, cluster)
        options: dict[str, Any] = {}
        if way in (BY_HAND, "redis"):
            found.server = stack.enter_context(redis_server(folder / "redis"))
            found.url = found.server.url
        if way == "redis":
            options["redis"] = found.url
        if way == "file":
            found.shared = folder / "shared"
            options["file"] = str(found.shared)
        if way not in PLAIN:
            client.register_plugin(Transfer(way, **options))
        # one round of everything that is done for the first time
        warm = client.map(work.make, ["pandas"] * 8, [1000] * 8, range(8), pure=False)
        client.gather(client.map(work.read, warm, pure=False))
        del warm
        time.sleep(SETTLE_SECONDS)
        yield found
