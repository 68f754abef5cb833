"""The interval between heartbeats, which grows with the number of workers."""

from __future__ import annotations

from typing import Final

#: (up to n workers, seconds between heartbeats); see ``heartbeat_interval``.
HEARTBEAT_STEPS: Final = ((10, 0.5), (49, 1.0), (199, 2.0))
#: Heartbeats per second beyond these steps.
HEARTBEATS_PER_SECOND_MAX: Final = 200


def heartbeat_interval(n_workers: int) -> float:
    """Return the seconds between two heartbeats of a worker."""
    for upto, seconds in HEARTBEAT_STEPS:
        if n_workers <= upto:
            return seconds
    return n_workers / HEARTBEATS_PER_SECOND_MAX + 1
