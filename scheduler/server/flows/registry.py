"""What flows keep between requests: plugins for workers and nannies, the log, counters.

One object a server. Must not know: how it is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.workers_compat import config
from paceline.workers_compat.own_profile import OwnProfile

from .logs import LOG_FORMAT, LOG_LENGTH, LogKeeper

if TYPE_CHECKING:
    from .memory_sampler import MemorySampler

#: Performance reports that are drawn at the same time: each takes a processor and some hundred megabytes.
DRAWN_AT_ONCE_MAX = 2
#: Results that a gather collects in memory; what is beyond is received into a temporary file.
GATHER_MEMORY_NBYTES = 64 * 2**20


@dataclass
class FlowState:
    """What flows keep between requests.

    Attributes:
        worker_plugins: name -> pickled plugin, for every worker that registers.
        nanny_plugins: the same for nannies.
        starting_nannies: addresses of nannies that were told their plugins and have not said that they
            are up. A nanny plugin that is registered now waits for them.
        nannies_changed: notified when ``starting_nannies`` changes.
        round_robin: how many values were scattered so far; where the next scatter begins.
        replicas: replicate and rebalance exclude each other and retirement; retirements go together.
        random: where any worker will do.
        gather_memory_nbytes: see GATHER_MEMORY_NBYTES.
        spool_directory: where temporary files go (dask's ``temporary-directory``); None is the system's
            place for them.
        streaming: a gather is passing its results on (``streamed_gather.py``); one at a time, since each holds connections
            to several workers while it waits for more.
        memory_samplers: key -> sampler at work.
        drawing: held while a performance report is drawn.
        own_profile: what the event loop does, while somebody asks.
        log: the last lines of the log.
    """

    worker_plugins: dict[str, bytes] = field(default_factory=dict)
    nanny_plugins: dict[str, bytes] = field(default_factory=dict)
    starting_nannies: set[str] = field(default_factory=set)
    nannies_changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    round_robin: int = 0
    replicas: ReplicaLock = field(default_factory=lambda: ReplicaLock())
    random: random.Random = field(default_factory=random.Random)
    gather_memory_nbytes: int = GATHER_MEMORY_NBYTES
    spool_directory: str | None = field(default_factory=lambda: config.get("temporary-directory"))
    streaming: bool = False
    memory_samplers: dict[str, MemorySampler] = field(default_factory=dict)
    drawing: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(DRAWN_AT_ONCE_MAX)
    )
    own_profile: OwnProfile = field(default_factory=OwnProfile)
    log: LogKeeper = field(default_factory=lambda: _log_keeper())

    def close(self) -> None:
        """Let go of what lives outside: the log handler, the sampling thread."""
        self.log.close()
        self.own_profile.close()


def _log_keeper() -> LogKeeper:
    return LogKeeper(
        int(config.get("distributed.admin.log-length") or LOG_LENGTH),
        str(config.get("distributed.admin.log-format") or LOG_FORMAT),
    )


class ReplicaLock:
    """Keeps flows that move replicas apart: one holder alone, or several of one kind together."""

    def __init__(self) -> None:
        self._kind: object = None
        self._holders = 0
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold it alone."""
        async with self.together(object()):
            yield

    @contextlib.asynccontextmanager
    async def together(self, kind: object) -> AsyncIterator[None]:
        """Hold it with others of the same kind."""
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
