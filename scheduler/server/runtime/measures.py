"""Measurements of this process for ``/metrics``: turn durations, graph compile times, loop lag.

To keep the cost low, one turn is timed after each tick of ``LoopLag``, by default 50 a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING

from paceline.scheduler.core.stimuli import stimulus_name
from paceline.scheduler.core.turn_observer import TurnObserver
from paceline.workers_compat.config import config

if TYPE_CHECKING:
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.server.driver import Driver

logger = logging.getLogger("distributed.scheduler")

#: Default of ``distributed.admin.tick.interval``, the time between ticks, seconds.
TICK_SECONDS = 0.02
#: Default of ``distributed.admin.tick.limit``: a longer time between ticks is logged, seconds.
TICK_LIMIT_SECONDS = 3.0
#: Upper bounds of the buckets of turns and of loop lag, seconds.
SHORT_BOUNDS = (0.00001, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
#: Upper bounds of the buckets of graph compilations, seconds.
LONG_BOUNDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
#: Ops that are counted separately. There are about 150, and plugins may add their own.
OPS_MAX = 500
#: Name under which all further ops are counted.
OTHER_OPS = "other"


class LoopLag:
    """Measures the time between ticks of the event loop.

    Attributes:
        longest_seconds: longest time between two ticks since ``reset``.
        seconds: time between the last two ticks.
        on_tick: called with the lateness of each tick, seconds.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last = time.monotonic()
        self.longest_seconds = 0.0
        self._interval_seconds = _configured("interval", TICK_SECONDS)
        self._limit_seconds = _configured("limit", TICK_LIMIT_SECONDS)
        self.seconds = self._interval_seconds
        self.on_tick: Callable[[float], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the ticks."""
        self.last = time.monotonic()
        self._handle = self._loop.call_later(self._interval_seconds, self._tick)

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
            self.on_tick(max(0.0, seconds - self._interval_seconds))
        self.longest_seconds = max(self.longest_seconds, seconds)
        if seconds > self._limit_seconds:
            logger.info(
                "Event loop was unresponsive in Scheduler for %.2fs.  "
                "This is often caused by long-running GIL-holding "
                "functions or moving large chunks of data. "
                "This can cause timeouts and instability.",
                seconds,
            )
        self._handle = self._loop.call_later(self._interval_seconds, self._tick)


def _configured(name: str, default: float) -> float:
    """Return a setting of ticks in seconds. As in stock, plain numbers are milliseconds."""
    return config.seconds(config.get(f"distributed.admin.tick.{name}"), "ms") or default


class Histogram:
    """Counts durations in buckets.

    Attributes:
        counts: number of durations per bucket; the last one has no upper bound.
        total: sum of all durations, seconds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, number of durations up to it) pairs in Prometheus' form."""
        bounds = (*map(repr, self.bounds), "+Inf")
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class Measures(TurnObserver):
    """Measurements of one scheduler.

    Attributes:
        turns: durations of sampled turns.
        ops: name of a stimulus -> its number of sampled turns.
        lags: how late ticks of the event loop were.
        compiles: time from the arrival of a graph until it was compiled or had failed.
    """

    def __init__(self, driver: Driver) -> None:
        self.turns = Histogram(SHORT_BOUNDS)
        self.ops: dict[str, int] = {}
        self.lags = Histogram(SHORT_BOUNDS)
        self.compiles = Histogram(LONG_BOUNDS)
        self._driver = driver
        self._is_observing = False
        self._turn_started = 0.0

    def on_tick(self, late_seconds: float) -> None:
        """Record the lateness of a tick, and time the next turn."""
        self.lags.observe(late_seconds)
        if not self._is_observing:
            self._is_observing = True
            self._driver.add_observer(self)

    def before_turn(self, stimulus: Stimulus, now: float) -> None:
        self._turn_started = time.perf_counter()

    def after_turn(self, stimulus: Stimulus) -> None:
        self.turns.observe(time.perf_counter() - self._turn_started)
        op = stimulus_name(stimulus.message)
        if op not in self.ops and len(self.ops) >= OPS_MAX:
            op = OTHER_OPS
        self.ops[op] = self.ops.get(op, 0) + 1
        self._is_observing = False
        self._driver.remove_observer(self)
