"""Workers that reported when they end, such as the end of their lifetime or of their batch job."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from paceline.scheduler.core.state.model import WorkerState

#: Changes of an end by less are ignored, seconds. Reports vary with the latency of heartbeats.
CHANGE_SECONDS_MIN = 1.0


@dataclass(slots=True, eq=False)
class WorkerEnds:
    """Workers with ``WorkerState.ends_at``.

    Attributes:
        workers: these workers, in order of their first reports.
        soonest: the earliest of their ends in seconds since the epoch; infinite without any.
    """

    workers: dict[WorkerState, None] = field(default_factory=dict)
    soonest: float = inf

    def learn(self, ws: WorkerState, ends_at: float) -> None:
        """Record that `ws` ends at `ends_at`, in seconds since the epoch; 0 if it has no end."""
        if ends_at and ws.ends_at and abs(ends_at - ws.ends_at) < CHANGE_SECONDS_MIN:
            return
        ws.ends_at = ends_at
        if ends_at:
            self.workers[ws] = None
            self._refresh()
        else:
            self.forget(ws)

    def forget(self, ws: WorkerState) -> None:
        """Remove `ws`, which left or has no end."""
        if ws in self.workers:
            del self.workers[ws]
            self._refresh()

    def _refresh(self) -> None:
        self.soonest = min([ws.ends_at for ws in self.workers], default=inf)
