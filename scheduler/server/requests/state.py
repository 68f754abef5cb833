"""State that request handlers keep between requests."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from paceline.scheduler.core.state.model import WorkerState
from paceline.scheduler.server.runtime.recent_log import RecentLog
from paceline.workers_compat.config import config
from paceline.workers_compat.loop_profile import LoopProfile

#: Performance reports drawn at the same time; each takes one CPU and some hundred megabytes.
CONCURRENT_REPORTS_MAX = 2
#: Results that a gather holds in memory; larger ones are received into a temporary file.
GATHER_MEMORY_NBYTES = 64 * 2**20


class ReplicaLock:
    """Separates requests that move replicas: one exclusive holder, or several of one kind."""

    def __init__(self) -> None:
        self._kind: object = None
        self._holders = 0
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the lock alone."""
        async with self.shared(object()):
            yield

    @contextlib.asynccontextmanager
    async def shared(self, kind: object) -> AsyncIterator[None]:
        """Hold the lock together with other holders of the same ``kind``."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._holders or self._kind == kind)
            self._kind = kind
            self._holders += 1
        try:
            yield
        finally:
            async with self._changed:
                self._holders -= 1
                self._changed.notify_all()


@dataclass(slots=True)
class MemorySampler:
    """Samples of the cluster's memory, (seconds since the epoch, bytes), taken by ``task``."""

    samples: list[tuple[float, int]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class RetiringWorker:
    """A worker that is being retired by `n_requests` requests, and its status after the last."""

    next_status: str
    n_requests: int = 0


@dataclass
class RequestState:
    """State that request handlers keep between requests.

    Attributes:
        worker_plugins: name -> pickled plugin, sent to every worker that registers.
        nanny_plugins: the same for nannies.
        starting_nannies: addresses of nannies that received their plugins and have not reported
            that their worker is up. The registration of a nanny plugin waits for them.
        nannies_changed: notified when ``starting_nannies`` changes.
        round_robin: number of values scattered so far, which determines the worker of the next one.
        replicas: held exclusively by replicate and rebalance, and shared by retirements.
        retiring: the workers that are being retired.
        restarts: stimulus id of a restart that another process has begun -> number of workers
            before it.
        random: chooses between workers that are equally good.
        gather_memory_nbytes: bytes of a gather, or of a received message, that are kept in memory;
            if there are more, they go into temporary files.
        spool_directory: directory of temporary files (dask's ``temporary-directory``); None for the
            system's default.
        memory_samplers: key -> sampler that has started and was not stopped.
        drawing: limits the performance reports that are drawn at the same time.
        loop_profile: the profile of the event loop; sampled while it is in use.
        log: the last lines of the log.
    """

    worker_plugins: dict[str, bytes] = field(default_factory=dict)
    nanny_plugins: dict[str, bytes] = field(default_factory=dict)
    starting_nannies: set[str] = field(default_factory=set)
    nannies_changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    round_robin: int = 0
    replicas: ReplicaLock = field(default_factory=ReplicaLock)
    retiring: dict[WorkerState, RetiringWorker] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    random: random.Random = field(default_factory=random.Random)
    gather_memory_nbytes: int = GATHER_MEMORY_NBYTES
    spool_directory: str | None = field(default_factory=lambda: config.get("temporary-directory"))
    memory_samplers: dict[str, MemorySampler] = field(default_factory=dict)
    drawing: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(CONCURRENT_REPORTS_MAX)
    )
    loop_profile: LoopProfile = field(default_factory=LoopProfile)
    log: RecentLog = field(default_factory=RecentLog)

    def close(self) -> None:
        """Remove the log handler and stop the sampling thread."""
        self.log.close()
        self.loop_profile.close()
