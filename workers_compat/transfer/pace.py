"""How fast lines to other workers are, plain and compressed, and which of both is faster.

Several values may come over a line at once: what counts is what the line brought while anything came, not how long each value took.

Must not know: sockets, what is packed how.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

SLOW_NBYTES_PER_SECOND = 200e6
"""lz4 on one core packs faster than such a line sends."""
TELLS_NBYTES = 4 << 20
"""Values from this size on tell how fast a line is; of smaller ones most of the time is the way there and back."""


@dataclass
class _Moved:
    """What came over one line one way.

    Attributes:
        nbytes: so far, before compression.
        seconds: in which anything came.
        coming: values at the moment.
        since: when the first of these began, by the clock.
    """

    nbytes: int = 0
    seconds: float = 0.0
    coming: int = 0
    since: float = 0.0


class Paces:
    """Of one worker's lines; called from threads.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._moved: dict[tuple[Hashable, bool], _Moved] = {}  # as many as peers, twice

    @contextlib.contextmanager
    def moving(self, peer: Hashable, packs: bool, size_nbytes: int) -> Iterator[None]:
        """A value comes from a peer while this lasts."""
        if size_nbytes < TELLS_NBYTES:
            yield
            return
        with self._lock:
            moved = self._moved.setdefault((peer, packs), _Moved())
            if not moved.coming:
                moved.since = self._clock()
            moved.coming += 1
        came = 0
        try:
            yield
            came = size_nbytes
        finally:
            with self._lock:
                moved.coming -= 1
                moved.nbytes += came
                if not moved.coming:
                    moved.seconds += self._clock() - moved.since

    def speed(self, peer: Hashable, packs: bool) -> float | None:
        """Bytes a second, before compression; None where nothing came that way."""
        with self._lock:
            moved = self._moved.get((peer, packs))
            if moved is None or not moved.nbytes:
                return None
            seconds = moved.seconds + (self._clock() - moved.since if moved.coming else 0.0)
            return moved.nbytes / max(1e-6, seconds)

    def packing_pays(self, peer: Hashable) -> bool:
        """Whether values come sooner compressed, as far as both ways were tried; plain is tried first."""
        plain = self.speed(peer, False)
        if plain is None or plain >= SLOW_NBYTES_PER_SECOND:
            return False
        packed = self.speed(peer, True)
        return packed is None or packed >= plain

    def forget(self) -> None:
        """Lines change: measure anew."""
        with self._lock:
            self._moved = {place: moved for place, moved in self._moved.items() if moved.coming}
