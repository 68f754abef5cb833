"""The scheduler's clock: seconds since the epoch that neither jump nor run backwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: A jump of the wall clock is followed by at most this many seconds per second, so that timeouts
#: stay about right.
FOLLOW_RATE: Final = 0.2


class SteadyClock:
    """Wall time for the core's timestamps and timeouts.

    When the wall clock is set, this clock approaches the new time at ``FOLLOW_RATE`` instead of
    jumping. Otherwise a jump beyond ``worker-ttl`` would look like a silence of all workers.

    Args:
        wall, monotonic: the clocks of the system.
        since: the time to start with; 0 for that of ``wall``.
    """

    __slots__ = ("_monotonic", "_monotonic_seconds", "_now", "_wall")

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        since: float = 0.0,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._now = since or wall()
        self._monotonic_seconds = monotonic()

    def __call__(self) -> float:
        """Return the time in seconds since the epoch."""
        seconds = self._monotonic()
        elapsed = seconds - self._monotonic_seconds
        self._monotonic_seconds = seconds
        limit = FOLLOW_RATE * elapsed
        error = self._wall() - self._now - elapsed
        self._now += elapsed + max(-limit, min(limit, error))
        return self._now
