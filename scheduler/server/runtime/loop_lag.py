"""Measure how late the event loop is, by ticks at a fixed interval."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

logger = logging.getLogger("distributed.scheduler")

#: Interval of ticks, seconds; stock's ``distributed.admin.tick.interval``.
TICK_SECONDS = 0.02
#: A tick that comes later than this is logged; stock's ``distributed.admin.tick.limit``.
TICK_LIMIT_SECONDS = 3.0


class LoopLag:
    """Measures the time between ticks of the event loop.

    Attributes:
        count: number of ticks.
        last: time of the last tick (``time.monotonic``).
        longest_seconds: longest time between two ticks since ``reset``.
        seconds: time between the last two ticks.
        on_tick: called with the lateness of each tick, seconds.
    """

    def __init__(self, interval: float = TICK_SECONDS, limit: float = TICK_LIMIT_SECONDS) -> None:
        self.count = 0
        self.last = time.monotonic()
        self.longest_seconds = 0.0
        self.seconds = interval
        self.on_tick: Callable[[float], None] | None = None
        self._interval = interval
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the ticks."""
        self.last = time.monotonic()
        self._handle = self._loop.call_later(self._interval, self._tick)

    def stop(self) -> None:
        """Stop the ticks."""
        if self._handle is not None:
            self._handle.cancel()

    def reset(self) -> float:
        """Return and reset the longest time between two ticks, or since the last one, seconds."""
        longest = max(self.longest_seconds, time.monotonic() - self.last)
        self.longest_seconds = 0.0
        return longest

    def _tick(self) -> None:
        now = time.monotonic()
        seconds = now - self.last
        self.last = now
        self.count += 1
        self.seconds = seconds
        if self.on_tick is not None:
            self.on_tick(max(0.0, seconds - self._interval))
        self.longest_seconds = max(self.longest_seconds, seconds)
        if seconds > self._limit:
            logger.info(
                "Event loop was unresponsive in Scheduler for %.2fs.  "
                "This is often caused by long-running GIL-holding "
                "functions or moving large chunks of data. "
                "This can cause timeouts and instability.",
                seconds,
            )
        self._handle = self._loop.call_later(self._interval, self._tick)
