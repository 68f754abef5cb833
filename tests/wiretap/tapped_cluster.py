"""A cluster of stock workers and nannies in this process, with a tap before the scheduler and each of them."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import dask
from distributed import Client, Nanny, Worker
from paceline.protocol.catalogue import Direction
from paceline.protocol.observer import ObservedMessage
from paceline.scheduler.server.wiretap.proxy import TappedConnection, Wiretap

#: Maximum length of the list of violations.
VIOLATIONS_MAX = 200

SETTINGS = {
    "distributed.scheduler.work-stealing-interval": "20ms",
    "distributed.scheduler.active-memory-manager.interval": "100ms",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.worker.profile.interval": "10ms",
}


@dataclass
class Record:
    """Messages that passed the taps.

    Attributes:
        ops: (direction, kind, op) -> count.
        violations: deviations from the catalogue, with the message.
    """

    ops: Counter[tuple[str | None, str, str]] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def __call__(self, tapped: TappedConnection, when: float, seen: ObservedMessage) -> None:
        self.ops[seen.direction, seen.kind, seen.op] += 1
        for violation in seen.violations:
            if len(self.violations) < VIOLATIONS_MAX:
                self.violations.append(
                    f"{seen.way} {seen.kind} {violation}   in {repr(seen.value)[:600]}"
                )

    def has(self, direction: str, op: str) -> bool:
        """Return whether the op was sent, as a message or inside another."""
        kinds = ("request", "inner", "stream")
        return any(self.ops[direction, kind, op] for kind in kinds)


def _tapping(cls: type[Any], table: Direction) -> type[Any]:
    """Return a subclass of the server whose instances use the address of a tap as their contact address."""

    class TappedServer(cls):  # type: ignore[misc]
        def __init__(self, *args: Any, record: Record, **kwargs: Any) -> None:
            self.record, self.tap = record, None
            super().__init__(*args, **kwargs)

        async def listen(self, *args: Any, **kwargs: Any) -> None:
            await super().listen(*args, **kwargs)
            real = self.listener.contact_address
            self.tap = Wiretap("tcp://127.0.0.1:0", real, self.record, serves=(table,))
            await self.tap.__aenter__()
            self._address = self.tap.address

        async def close(self, *args: Any, **kwargs: Any) -> Any:
            result = await super().close(*args, **kwargs)
            tap, self.tap = self.tap, None
            if tap is not None:
                await tap.__aexit__()
            return result

    TappedServer.__name__ = cls.__name__
    return TappedServer


TappedWorker = _tapping(Worker, "worker_rpc")
TappedNanny = _tapping(Nanny, "nanny_rpc")


@dataclass
class TappedCluster:
    """Arguments of a program.

    Attributes:
        scheduler: the scheduler object.
        address: of the tap before it.
        client: connected through the tap.
        workers, nannies: those that run.
        record: messages that passed the taps.
    """

    scheduler: Any
    address: str
    client: Any
    record: Record
    folder: str
    workers: list[Any] = field(default_factory=list)
    nannies: list[Any] = field(default_factory=list)

    async def add_worker(self, name: str, **options: Any) -> Any:
        """Start one more worker behind a tap."""
        worker = await TappedWorker(
            self.address, record=self.record, name=name, host="127.0.0.1", protocol="tcp", nthreads=2,
            local_directory=self.folder, heartbeat_interval="200ms", dashboard=False, **options,
        )  # fmt: skip
        self.workers.append(worker)
        return worker

    async def add_nanny(self, name: str, **options: Any) -> Any:
        """Start one more nanny behind a tap; its worker is a process."""
        nanny = await TappedNanny(
            self.address, record=self.record, name=name, host="127.0.0.1", protocol="tcp", nthreads=1,
            local_directory=self.folder, dashboard=False, **options,
        )  # fmt: skip
        self.nannies.append(nanny)
        return nanny

    def connect(self, **options: Any) -> Any:
        """Connect one more client."""
        return Client(self.address, asynchronous=True, **options)


@contextlib.asynccontextmanager
async def tapped_cluster(make_scheduler: Any, record: Record) -> AsyncIterator[TappedCluster]:
    """Start a scheduler, two workers with one resource each, and a client.

    Args:
        make_scheduler: the class; stock's or paceline's.
    """
    with tempfile.TemporaryDirectory() as folder, dask.config.set(SETTINGS):
        async with contextlib.AsyncExitStack() as stack:
            scheduler = await stack.enter_async_context(
                make_scheduler(protocol="tcp", host="127.0.0.1", port=0, dashboard_address=":0")
            )
            tap = await stack.enter_async_context(
                Wiretap("tcp://127.0.0.1:0", scheduler.address, record)
            )
            cluster = TappedCluster(scheduler, tap.address, None, record, folder)
            try:
                for name in ("alice", "bob"):
                    await cluster.add_worker(name, resources={"GPU": 1})
                async with cluster.connect() as cluster.client:
                    yield cluster
            finally:
                for server in (*cluster.nannies, *cluster.workers):
                    await server.close()
