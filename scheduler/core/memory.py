"""How much memory a worker uses, measured in one of several ways.

Must not know: what is done about it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .state import WorkerState


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of a worker, bytes.

    Attributes:
        process: of its process, as its operating system says.
        managed: data that it holds in memory.
        spilled: data that it holds on disk.
        unmanaged_old: the rest, without what came in the last half minute.
    """

    process: int
    managed: int
    spilled: int
    unmanaged_old: int

    @property
    def managed_total(self) -> int:
        """Data in memory and on disk."""
        return self.managed + self.spilled

    @property
    def unmanaged(self) -> int:
        """What is no data."""
        return self.process - self.managed

    @property
    def unmanaged_recent(self) -> int:
        """What is no data and came of late: most goes as it came."""
        return self.unmanaged - self.unmanaged_old

    @property
    def optimistic(self) -> int:
        """All but what came of late."""
        return self.managed + self.unmanaged_old


def memory_use(ws: WorkerState) -> MemoryUse:
    """By its last heartbeat, and the data that it has now."""
    metrics = ws.metrics
    process = int(metrics.get("memory", 0))
    spilled = metrics.get("spilled_bytes") or {}
    managed = min(process, max(0, ws.nbytes - int(spilled.get("memory", 0))))
    return MemoryUse(
        process=process,
        managed=managed,
        spilled=int(spilled.get("disk", 0)),
        unmanaged_old=min(ws.memory_unmanaged_old, process - managed),
    )


def measured(ws: WorkerState, measure: str) -> int:
    """Bytes by one of ``config.MEASURES``, which name the properties of ``MemoryUse``."""
    return int(getattr(memory_use(ws), measure))
