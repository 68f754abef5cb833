"""A statistical profile of this process's event loop, taken with distributed's sampler.

Stock samples its loop all the time. Here sampling starts when a profile of the scheduler is first
requested (or a performance report starts, or its page is opened), and stops when none was requested
for a while.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from distributed import profile
from paceline.workers_compat.config import config

#: Sampling stops if no profile was requested for this time, seconds.
UNUSED_SECONDS = 600.0
#: Periods that are kept. One lasts ``distributed.worker.profile.cycle`` (a second).
PERIODS_MAX = 1000
#: Files whose frames are left out, as in stock.
OMITTED = ("profile.py", "selectors.py")
#: Reading the frames of another thread can deadlock both in CPython 3.11 (dask/distributed#8616,
#: python/cpython#106883). Stock's scheduler takes no samples there either.
SAFE = sys.version_info[:2] != (3, 11)


def merged_profile(profiles: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return one tree of frames with the summed counts of `profiles`."""
    return dict(profile.merge(*profiles))


class LoopProfile:
    """The profile of the thread that first requests it, which must be the event loop's."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, dict[str, Any]]] = deque(maxlen=PERIODS_MAX)
        self._last_request = 0.0
        self.running = False
        self._ended = False

    def start(self) -> None:
        """Start sampling, unless profiles are disabled or the Python version is unsafe."""
        self._last_request = time.monotonic()
        if self.running or self._ended or not SAFE:
            return
        if not config.get("distributed.worker.profile.enabled"):
            return
        self.running = True
        self._history = profile.watch(
            thread_id=threading.get_ident(),
            interval=config.get("distributed.worker.profile.interval"),
            cycle=config.get("distributed.worker.profile.cycle"),
            maxlen=PERIODS_MAX,
            omit=OMITTED,
            stop=self._should_stop,
        )

    def _should_stop(self) -> bool:
        """Return whether to stop. Called by the sampling thread before each sample."""
        if self._ended or time.monotonic() - self._last_request > UNUSED_SECONDS:
            self.running = False
        return not self.running

    def get(self, start: float | None = None, stop: float | None = None) -> dict[str, Any]:
        """Return the tree of frames between two times in seconds since the epoch."""
        self.start()
        # a copy, because the sampling thread adds to the original
        return dict(profile.get_profile(list(self._history), start=start, stop=stop))

    def periods(
        self, after: float = 0.0, most: int = PERIODS_MAX
    ) -> list[tuple[float, dict[str, Any]]]:
        """Return (start in seconds since the epoch, tree) of the first `most` periods."""
        self.start()
        with profile.lock:  # the newest period is complete when the sampler releases the lock
            kept = list(self._history)
        return [period for period in kept if period[0] > after][:most]

    def close(self) -> None:
        """Stop sampling for good."""
        self._ended = True


class Periods(Sequence[Any]):
    """The periods of a profile as a sequence. Reading it counts as a request."""

    def __init__(self, of: LoopProfile) -> None:
        self._of = of

    def __len__(self) -> int:
        return len(self._of.periods())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._of.periods())

    def __getitem__(self, place: Any) -> Any:
        return self._of.periods()[place]
