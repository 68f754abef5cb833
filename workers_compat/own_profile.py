"""A statistical profile of this process's event loop, with distributed's own sampler, while somebody asks for it.

Stock samples its loop all the time. Here sampling begins when a profile of the scheduler is first asked for (or a
performance report begins, or the page of it is opened), and ends by itself when nobody has asked for a while.

Must not know: who asks.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from distributed import profile

from . import config

#: Sampling ends when nobody asked for so long, seconds.
UNASKED_SECONDS = 600.0
#: How many periods are kept; one is ``distributed.worker.profile.cycle`` long (a second).
PERIODS_MAX = 1000
#: Files whose frames are left out, as in stock.
OMITTED = ("profile.py", "selectors.py")
#: Looking at another thread's frames can stop both for good in CPython 3.11 (dask/distributed#8616, python/cpython#106883).
#: Stock's scheduler takes no samples there, either.
SAFE = sys.version_info[:2] != (3, 11)


class OwnProfile:
    """The profile of the thread that first asks: it must be the event loop's."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, dict[str, Any]]] = deque(maxlen=PERIODS_MAX)
        self._asked = 0.0
        self._running = False
        self._ended = False

    @property
    def running(self) -> bool:
        """Whether samples are being taken."""
        return self._running

    def wake(self) -> None:
        """Take samples from now on, unless the configuration says that there are no profiles, or Python cannot."""
        self._asked = time.monotonic()
        if self._running or self._ended or not SAFE:
            return
        if not config.get("distributed.worker.profile.enabled"):
            return
        self._running = True
        self._history = profile.watch(
            thread_id=threading.get_ident(),
            interval=config.get("distributed.worker.profile.interval"),
            cycle=config.get("distributed.worker.profile.cycle"),
            maxlen=PERIODS_MAX,
            omit=OMITTED,
            stop=self._enough,
        )

    def _enough(self) -> bool:
        """Asked by the sampling thread before each sample."""
        if self._ended or time.monotonic() - self._asked > UNASKED_SECONDS:
            self._running = False
        return not self._running

    def get(self, start: float | None = None, stop: float | None = None) -> dict[str, Any]:
        """The tree of frames between two times, seconds since the epoch; empty when it has just begun."""
        self.wake()
        return dict(profile.get_profile(_kept(self._history), start=start, stop=stop))

    def periods(self, after: float = 0.0, most: int = PERIODS_MAX) -> list[tuple[float, dict[str, Any]]]:
        """(when it began, seconds since the epoch; its tree) of the first ``most`` periods after a time."""
        self.wake()
        with profile.lock:  # the newest is complete when the sampler lets go of it
            kept = _kept(self._history)
        return [period for period in kept if period[0] > after][:most]

    def close(self) -> None:
        """Take no more samples."""
        self._ended = True


class Periods(Sequence[Any]):
    """The periods of a profile, for readers that want a log; who reads asks."""

    def __init__(self, of: OwnProfile) -> None:
        self._of = of

    def __len__(self) -> int:
        return len(self._of.periods())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._of.periods())

    def __getitem__(self, place: Any) -> Any:
        return self._of.periods()[place]


def _kept(history: deque[tuple[float, dict[str, Any]]]) -> Sequence[tuple[float, dict[str, Any]]]:
    """A copy: the sampling thread adds to the original."""
    return list(history)
