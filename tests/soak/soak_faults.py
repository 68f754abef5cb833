"""Faults for the workers of a soak, drawn from a seed: kill, stop, partition, cut, pause, retire and add."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.soak.soak_net import Net, Relay
from tests.support.real_cluster import Cluster, Process

#: Minimum and maximum number of worker processes.
WORKERS_MIN, WORKERS_MAX = 4, 8
#: Kinds of faults; a kind that is listed twice is twice as likely.
KINDS = ("kill", "stop", "partition", "partition", "cut", "pause", "retire", "add", "add", "add", "add")  # fmt: skip
#: Minimum and maximum seconds between faults.
PAUSE_SECONDS = (2.0, 9.0)
#: Lengths of stops and partitions: shorter and longer than the worker's time to live.
STOPPED_SECONDS = (1.0, 4.0, 12.0)


@dataclass(frozen=True)
class Fault:
    """A fault of a worker.

    Attributes:
        at: seconds since the epoch; ``until``: when its effect is over at the latest.
        kind: kill, stop, partition, cut, pause, retire or add.
        worker: its name.
    """

    at: float
    until: float
    kind: str
    worker: str


class RelayedCluster(Cluster):
    """A cluster in which each worker reaches the scheduler through its own relay.

    Attributes:
        net: makes the relays; to be set before the cluster is entered.
        relays: name of a worker -> its relay.
    """

    net: Net
    relays: dict[str, Relay]

    def add_worker(
        self, *, nanny: bool = False, name: str | None = None, address: str = ""
    ) -> Process:
        relay = self.net.relay(address or self.address)
        worker = super().add_worker(nanny=nanny, name=name, address=relay.address)
        self.relays[worker.name] = relay
        return worker


class Faults(threading.Thread):
    """Inject faults until stopped, and record them in ``log``."""

    def __init__(self, cluster: RelayedCluster, client: Any, draw: Random) -> None:
        super().__init__(daemon=True, name="faults")
        self._cluster = cluster
        self._client = client
        self._draw = draw
        self._stopping = threading.Event()
        self.workers: list[Process] = [p for p in cluster.processes if p.name.startswith("worker")]
        self.log: list[Fault] = []
        self.errors: list[str] = []

    def run(self) -> None:
        while not self._stopping.wait(self._draw.uniform(*PAUSE_SECONDS)):
            kind = self._draw.choice(KINDS)
            self.workers = [p for p in self.workers if p.running]
            if kind == "add" or len(self.workers) <= WORKERS_MIN:
                self._add()
                continue
            worker = self._draw.choice(self.workers)
            try:
                getattr(self, f"befall_{kind}")(worker)
            except Exception as error:  # the worker may be closing at this moment
                self.errors.append(f"{kind} {worker.name}: {type(error).__name__}: {error}")

    def stop(self) -> None:
        """Stop all faults and resume every worker."""
        self._stopping.set()
        self.join(60)
        for worker in self.workers:
            with contextlib.suppress(OSError):
                os.killpg(worker.pid, signal.SIGCONT)

    def between(self, start: float, stop: float) -> list[Fault]:
        """Return the faults that had an effect in this interval."""
        return [fault for fault in self.log if fault.at <= stop and fault.until >= start]

    def _note(self, kind: str, worker: Process, seconds: float = 30.0) -> None:
        now = time.time()
        self.log.append(Fault(now, now + seconds, kind, worker.name))

    def _add(self) -> None:
        if len(self.workers) < WORKERS_MAX:
            worker = self._cluster.add_worker(nanny=self._draw.random() < 0.4)
            self.workers.append(worker)
            self._note("add", worker, 0.0)

    def befall_kill(self, worker: Process) -> None:
        self._note("kill", worker)
        worker.kill()

    def befall_stop(self, worker: Process) -> None:
        seconds = self._draw.choice(STOPPED_SECONDS)
        self._note("stop", worker, seconds + 30.0)
        os.killpg(worker.pid, signal.SIGSTOP)
        self._stopping.wait(seconds)
        os.killpg(worker.pid, signal.SIGCONT)

    def befall_partition(self, worker: Process) -> None:
        """Partition worker and scheduler for a while; both continue to run."""
        seconds = self._draw.choice(STOPPED_SECONDS)
        self._note("partition", worker, seconds + 30.0)
        relay = self._cluster.relays[worker.name]
        self._cluster.net.do(relay, "hold")
        self._stopping.wait(seconds)
        self._cluster.net.do(relay, "heal")

    def befall_cut(self, worker: Process) -> None:
        """Break the connections between worker and scheduler once."""
        self._note("cut", worker)
        self._cluster.net.do(self._cluster.relays[worker.name], "cut")

    def befall_pause(self, worker: Process) -> None:
        self._note("pause", worker, 0.0)
        address = self._address(worker)
        if address is not None:
            self._client.run(_set_status, "paused", workers=[address], on_error="ignore")
            self._stopping.wait(self._draw.uniform(1, 5))
            self._client.run(_set_status, "running", workers=[address], on_error="ignore")

    def befall_retire(self, worker: Process) -> None:
        self._note("retire", worker)
        address = self._address(worker)
        if address is not None:
            self._client.retire_workers([address])

    def _address(self, worker: Process) -> str | None:
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return next((a for a, w in workers.items() if w["name"] == worker.name), None)


def _set_status(name: str, dask_worker: Any = None) -> None:
    """Run on the worker. Serialized by value, because the worker cannot import this module."""
    from distributed.core import Status

    dask_worker.status = Status[name]


_set_status.__module__ = "__main__"
