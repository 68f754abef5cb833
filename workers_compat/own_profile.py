"""A statistical profile of this process's event loop, with distributed's own sampler, while somebody asks for it.

Stock samples its loop all the time. Here sampling begins when a profile of the scheduler is first asked for (or a
performance report begins), and ends by itself when nobody has asked for a while.

Must not know: who asks.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from distributed import profile

from . import config

#: Sampling ends when nobody asked for so long, seconds.
UNASKED_SECONDS = 600.0
#: How many periods are kept; one is ``distributed.worker.profile.cycle`` long (a second).
PERIODS_MAX = 1000
#: Files whose frames are left out, as in stock.
OMITTED = ("profile.py", "selectors.py")


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
        """Take samples from now on, unless the configuration says that there are no profiles."""
        self._asked = time.monotonic()
        if self._running or self._ended or not config.get("distributed.worker.profile.enabled"):
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

    def close(self) -> None:
        """Take no more samples."""
        self._ended = True


def _kept(history: deque[tuple[float, dict[str, Any]]]) -> Sequence[tuple[float, dict[str, Any]]]:
    """A copy: the sampling thread adds to the original."""
    return list(history)
