"""The transfer methods to compare. Each runs on a cluster of its own."""

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
#: The stock scheduler and transfer.
DASK = "dask"
#: The stock transfer with the chosen scheduler.
STOCK = "stock"
#: Tasks store and load results in Redis themselves.
REDIS_IN_TASKS = "redis-in-tasks"
#: Methods without the transfer plugin.
BASELINES = (DASK, STOCK, REDIS_IN_TASKS)
METHODS = (*BASELINES, "auto", "shm", "file", "redis", "direct")
SETTLE_SECONDS = 1.0
#: Stored copies of released values must be deleted within this time.
DELETE_SECONDS = 15.0


@dataclass
class Setup:
    """Settings of all runs.

    Attributes:
        folder: folder for logs and shared files.
        workers: number of worker processes, with one thread each.
        scheduler: "paceline" or "stock".
        memory: memory limit of a worker, as in `dask worker --memory-limit`.
        hosts: number of network namespaces that the workers are distributed over; 0 for none.
        megabits: bandwidth of each namespace per second; 0 for unlimited.
        config: additional environment variables.
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
    """Result of one run.

    Attributes:
        method, kind: what ran.
        cost: its cost.
        checksum: a number that must be equal for all methods.
        transferred_mb: data that workers requested from each other, by Dask's sizes.
        traffic: counters of the backends of all workers.
    """

    method: str
    kind: str
    cost: meter.RunCost
    checksum: int
    transferred_mb: float = 0.0
    traffic: dict[str, float] = field(default_factory=dict)


@dataclass
class RunningCluster:
    """A cluster that uses one method."""

    method: str
    client: Any
    cluster: Cluster
    url: str = ""
    server: Any = None
    shared: Path | None = None

    @property
    def pids(self) -> list[int]:
        """The processes of the workers, and of the Redis server if there is one."""
        found = [process.pid for process in self.cluster.processes[1:] if process.running]
        if self.cluster.hosts:  # the worker is a descendant of what was started
            found = [psutil.Process(pid).children(recursive=True)[-1].pid for pid in found]
        return [*found, self.server.process.pid] if self.server is not None else found

    def compute(self, sizes: list[int], kind: str, prefix: str) -> Result:
        """Compute the graph with results of `sizes` once."""
        url = self.url if self.method == REDIS_IN_TASKS else ""
        tasks, last = graph.build_graph(sizes, kind, prefix, url)
        before = self.client.run(counters)
        with meter.measured(self.pids) as cost:
            future = self.client.get(tasks, last, sync=False)
            checksum = work.checksum(future.result())
            del future
        after = self.client.run(counters)
        traffic = {
            name: sum(after[w][name] - before.get(w, {}).get(name, 0) for w in after)
            for name in next(iter(after.values()))
        }
        if url:  # the tasks do not delete what they stored
            import redis

            redis.Redis.from_url(url).flushall()
        transferred_mb = traffic.pop("transferred") / 1e6
        return Result(self.method, kind, cost(), checksum, transferred_mb, traffic)

    def leftovers(self) -> dict[str, int]:
        """Return the numbers of published values, files and Redis keys after the release."""
        deadline = time.monotonic() + DELETE_SECONDS
        while True:
            found = {"published": sum(self.client.run(published).values())}
            if self.shared is not None:
                files = [p.name for p in self.shared.rglob("*") if p.is_file()]
                found["files"] = len([name for name in files if len(name) >= 32])  # without leases
            if self.server is not None and self.server.process.poll() is None:
                found["redis"] = self.server.keys()
            if not any(found.values()) or time.monotonic() > deadline:
                return found
            time.sleep(0.3)


def counters(dask_worker: Any) -> dict[str, float]:
    """Return the counters of the worker's transfers."""
    transfer = _transfer(dask_worker)
    backends = transfer.health.backends.values() if transfer is not None else ()
    names = ("put_nbytes", "got_nbytes", "put_count", "got_count", "failed_count")
    found = {name: sum(getattr(each.traffic, name) for each in backends) for name in names}
    return {"transferred": dask_worker.transfer_outgoing_bytes_total, **found}


def published(dask_worker: Any) -> int:
    """Return the number of values that the worker has stored in its backends."""
    transfer = _transfer(dask_worker)
    return len(transfer.published) if transfer is not None else 0


def _transfer(dask_worker: Any) -> Any:
    """Return the worker's transfer, or None."""
    return getattr(dask_worker.plugins.get("paceline-transfer"), "transfer", None)


@contextlib.contextmanager
def running(method: str, setup: Setup) -> Iterator[RunningCluster]:
    """Run a cluster that uses `method`."""
    from distributed import Client
    from paceline.transfer import Transfer

    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    config = {"PYTHONPATH": paths, "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False"}
    config |= setup.config
    folder = setup.folder / f"{method}-{time.monotonic_ns():x}"
    with contextlib.ExitStack() as stack:
        cluster = Cluster(
            scheduler_command("stock" if method == DASK else setup.scheduler),
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
        found = RunningCluster(method, client, cluster)
        options: dict[str, Any] = {}
        if method in (REDIS_IN_TASKS, "redis"):
            found.server = stack.enter_context(redis_server(folder / "redis"))
            found.url = found.server.url
        if method == "redis":
            options["redis"] = found.url
        if method == "file":
            found.shared = folder / "shared"
            options["file"] = str(found.shared)
        if method not in BASELINES:
            client.register_plugin(Transfer(method, **options))
        # a warm-up: workers import modules and connect
        warm = client.map(work.make, ["pandas"] * 8, [1000] * 8, range(8), pure=False)
        client.gather(client.map(work.read, warm, pure=False))
        del warm
        time.sleep(SETTLE_SECONDS)
        yield found
