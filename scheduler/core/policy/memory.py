"""Memory use of a worker, by several measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.scheduler.core.state.model import WorkerState


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of a worker, bytes.

    Attributes:
        process: resident memory of its process.
        managed: task results in memory.
        spilled: task results on disk.
        unmanaged_old: other memory that was in use for longer than ``recent-to-old-time``.
    """

    process: int
    managed: int
    spilled: int
    unmanaged_old: int

    @property
    def managed_total(self) -> int:
        """Task results in memory and on disk."""
        return self.managed + self.spilled

    @property
    def unmanaged(self) -> int:
        """Memory of the process that holds no task results."""
        return self.process - self.managed

    @property
    def unmanaged_recent(self) -> int:
        """Unmanaged memory that was allocated recently and is likely to be freed soon."""
        return self.unmanaged - self.unmanaged_old

    @property
    def optimistic(self) -> int:
        """Memory without the recent unmanaged part."""
        return self.managed + self.unmanaged_old


def spilled_nbytes(metrics: Mapping[str, Any]) -> int:
    """Return the bytes of memory that the results spilled by a worker would take."""
    return int((metrics.get("spilled_bytes") or {}).get("memory", 0))


def held_nbytes(ws: WorkerState) -> int:
    """Return the bytes of the results that `ws` holds, without those it spilled."""
    return max(0, ws.nbytes - ws.spilled_nbytes)


def memory_use(ws: WorkerState) -> MemoryUse:
    """Return the memory use of ``ws``, from its last heartbeat and the results it holds now."""
    process = int(ws.metrics.get("memory", 0))
    managed = min(process, held_nbytes(ws))
    return MemoryUse(
        process=process,
        managed=managed,
        spilled=int((ws.metrics.get("spilled_bytes") or {}).get("disk", 0)),
        unmanaged_old=min(ws.memory_unmanaged_old, process - managed),
    )


def measured(ws: WorkerState, measure: str) -> int:
    """Return the bytes of ``ws`` by one of ``config.MEASURES``, the properties of ``MemoryUse``."""
    return int(getattr(memory_use(ws), measure))
