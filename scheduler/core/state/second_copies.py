"""Second copies of results that would be expensive to compute again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Results that may get a second copy; of more, the oldest is dropped.
CANDIDATES_MAX = 20_000
#: Time after which the observed losses of workers count half, in seconds.
HALF_LIFE_SECONDS = 3600.0
#: Worker-seconds that are assumed to have passed without a loss before the first is observed.
PRIOR_WORKER_SECONDS = 3600.0


@dataclass(slots=True, eq=False)
class Candidate:
    """A result that may get a second copy.

    Attributes:
        seconds: time to compute it again, with intermediate results that are released by then.
        since: time at which it was computed or noticed, in seconds since the epoch.
        requested_at: time at which a worker was last asked to fetch a copy; 0 before.
    """

    seconds: float
    since: float
    requested_at: float = 0.0


@dataclass(slots=True, eq=False)
class SecondCopies:
    """Results that took long to compute, and how likely it is that workers are lost.

    Attributes:
        is_active: whether any worker may be lost soon. If not, no results are noted.
        losses: number of unexpected losses of workers, decayed.
        worker_seconds: seconds that workers were there, decayed as `losses`.
        observed_at: time of the last update of `worker_seconds`; 0 before the first.
        candidates: task -> Candidate; those that were checked longest ago come first.
        unscanned: workers whose results were not noted because they are older than `is_active`.
        kept: tasks that shall have two replicas.
        requested: number of copies ever requested.
    """

    is_active: bool = False
    losses: float = 0.0
    worker_seconds: float = PRIOR_WORKER_SECONDS
    observed_at: float = 0.0
    candidates: dict[Any, Candidate] = field(default_factory=dict)
    unscanned: dict[Any, None] = field(default_factory=dict)
    kept: dict[Any, None] = field(default_factory=dict)
    requested: int = 0

    @property
    def losses_per_second(self) -> float:
        """Observed losses per worker and second."""
        return self.losses / self.worker_seconds

    def observe(self, n_workers: int, now: float) -> None:
        """Add the time since the last call, in which there were `n_workers`."""
        seconds = max(0.0, now - self.observed_at) if self.observed_at else 0.0
        self.observed_at = now
        keep = 0.5 ** (seconds / HALF_LIFE_SECONDS)
        self.losses *= keep
        without_prior = (self.worker_seconds - PRIOR_WORKER_SECONDS) * keep
        self.worker_seconds = PRIOR_WORKER_SECONDS + without_prior + n_workers * seconds

    def note(self, ts: Any, seconds: float, now: float) -> None:
        """Make the result of the task `ts`, which takes `seconds` to compute, a candidate."""
        candidates = self.candidates
        candidates.pop(ts, None)
        candidates[ts] = Candidate(seconds, now)
        if len(candidates) > CANDIDATES_MAX:
            self.drop(next(iter(candidates)))

    def drop(self, ts: Any) -> None:
        """Remove `ts` from the candidates, and let its second replica be dropped."""
        self.candidates.pop(ts, None)
        self.kept.pop(ts, None)

    def clear(self) -> None:
        """Remove all results."""
        self.candidates.clear()
        self.unscanned.clear()
        self.kept.clear()
