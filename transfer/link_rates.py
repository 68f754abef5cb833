"""Transfer rates of connections between workers, from which ``direct`` decides on compression."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

#: On a slower link, compression with lz4 on one core can pay off.
SLOW_NBYTES_PER_SECOND = 200e6
#: Smallest value in bytes that is measured; for smaller ones, latency dominates.
MEASURED_NBYTES_MIN = 4 << 20


@dataclass
class _Moved:
    """Data received from one peer, either compressed or not.

    Attributes:
        nbytes, seconds: bytes before compression, and seconds in which anything was received.
        n_receiving, since: number of values being received, and the time at which the first began.
    """

    nbytes: int = 0
    seconds: float = 0.0
    n_receiving: int = 0
    since: float = 0.0


class LinkRates:
    """Measured transfer rates of one worker's peers. Thread-safe.

    Several values can arrive from one peer at once, so the rate is bytes received per second in
    which anything was received, not per value.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._moved: dict[tuple[Hashable, bool], _Moved] = {}  # at most two per peer

    @contextlib.contextmanager
    def moving(self, peer: Hashable, compress: bool, size_nbytes: int) -> Iterator[None]:
        """Measure the transfer of a value of ``size_nbytes`` from ``peer``."""
        if size_nbytes < MEASURED_NBYTES_MIN:
            yield
            return
        with self._lock:
            moved = self._moved.setdefault((peer, compress), _Moved())
            if not moved.n_receiving:
                moved.since = self._clock()
            moved.n_receiving += 1
        received = 0
        try:
            yield
            received = size_nbytes
        finally:
            with self._lock:
                moved.n_receiving -= 1
                moved.nbytes += received
                if not moved.n_receiving:
                    moved.seconds += self._clock() - moved.since

    def rate(self, peer: Hashable, compress: bool) -> float | None:
        """Return bytes per second before compression, or None if nothing was measured."""
        with self._lock:
            moved = self._moved.get((peer, compress))
            if moved is None or not moved.nbytes:
                return None
            seconds = moved.seconds + (self._clock() - moved.since if moved.n_receiving else 0.0)
            return moved.nbytes / max(1e-6, seconds)

    def should_compress(self, peer: Hashable) -> bool:
        """Return whether compressed transfers from ``peer`` are faster, as far as measured."""
        plain = self.rate(peer, False)
        if plain is None or plain >= SLOW_NBYTES_PER_SECOND:
            return False
        compressed = self.rate(peer, True)
        return compressed is None or compressed >= plain

    def forget(self) -> None:
        """Drop the measurements, because links change."""
        with self._lock:
            self._moved = {
                place: moved for place, moved in self._moved.items() if moved.n_receiving
            }
