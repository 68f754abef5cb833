"""What is measured about this process for ``/metrics``: durations of turns, messages by op, graph compile times, loop lag.

Nothing is done per task: one turn is timed after each tick of ``ticks.py``, so that some 50 a second stand for all.

Must not know: how it is shown; what stimuli mean.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.scheduler.core import stimuli
from paceline.scheduler.core.stimuli import stimulus_name

if TYPE_CHECKING:
    from paceline.workers_compat.graph_table import CompileRequest

    from .children import Compilers, OnReply
    from .driver import Driver

#: Upper bounds of the buckets of turns and of lags, seconds.
SHORT_BOUNDS = (0.00001, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
#: Of graph compilations, seconds.
LONG_BOUNDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
#: Ops that are counted apart; there are some 150 in all, and plugins may add their own.
OPS_MAX = 500
OTHER_OPS = "other"


class Histogram:
    """How often a duration fell below each bound.

    Attributes:
        bounds: upper bounds, seconds, ascending.
        counts: per bound, and one more for what was longer.
        total: sum of all, seconds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, how many were at or below it), as Prometheus has them."""
        out = []
        count = 0
        for bound, n in zip((*map(repr, self.bounds), "+Inf"), self.counts, strict=True):
            count += n
            out.append((bound, float(count)))
        return out


class Measures:
    """What was measured.

    Attributes:
        turns: durations of sampled turns.
        ops: stimulus -> how often it was among the sampled.
        lags: how late ticks were.
        compiles: from a graph's arrival to the compiler's last word on it.
    """

    def __init__(self) -> None:
        self.turns = Histogram(SHORT_BOUNDS)
        self.ops: dict[str, int] = {}
        self.lags = Histogram(SHORT_BOUNDS)
        self.compiles = Histogram(LONG_BOUNDS)
        self._driver: Driver | None = None
        self._armed = False

    def watch(self, driver: Driver) -> None:
        """Sample this driver's turns."""
        self._driver = driver

    def on_tick(self, late_seconds: float) -> None:
        """A tick of the loop came: time the next turn."""
        self.lags.observe(late_seconds)
        if self._driver is not None and not self._armed:
            self._armed = True
            self._driver.around_turns(self._timed)

    def _timed(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        driver = self._driver
        assert driver is not None

        def handle_and_time(stimulus: Any, now: float, outbox: Any) -> None:
            if self._armed:
                self._armed = False
                driver.around_turns(lambda _: handle)
            started = time.perf_counter()
            try:
                handle(stimulus, now, outbox)
            finally:
                self.turns.observe(time.perf_counter() - started)
                self._count(stimulus_name(stimulus.message))

        return handle_and_time

    def _count(self, op: str) -> None:
        if op not in self.ops and len(self.ops) >= OPS_MAX:
            op = OTHER_OPS
        self.ops[op] = self.ops.get(op, 0) + 1


class MeasuredCompilers:
    """Compilers of graphs, with a watch in hand."""

    def __init__(self, compilers: Compilers, measures: Measures) -> None:
        self._compilers = compilers
        self._measures = measures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compilers, name)

    def start(self) -> None:
        """See ``Compilers``."""
        self._compilers.start()

    def compile(self, request: CompileRequest, on_reply: OnReply) -> None:
        """See ``Compilers``."""
        started = time.perf_counter()

        def replied(reply: Any) -> None:
            if type(reply) is not stimuli.GraphChunk:
                self._measures.compiles.observe(time.perf_counter() - started)
            on_reply(reply)

        self._compilers.compile(request, replied)

    def cancel(self, graph_id: int) -> None:
        """See ``Compilers``."""
        self._compilers.cancel(graph_id)

    def upload_file(self, name: str, data: bytes) -> None:
        """See ``Compilers``."""
        self._compilers.upload_file(name, data)

    async def stop(self) -> None:
        """See ``Compilers``."""
        await self._compilers.stop()
