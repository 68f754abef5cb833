"""Simulated time: a queue of events, and links that deliver in order, with delay, or not at all."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any


class Agenda:
    """Events ordered by time; events of the same time keep the order in which they were scheduled.

    Attributes:
        now: seconds.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        """Call ``what(*args)`` after the given number of seconds."""
        self.at(self.now + seconds, what, *args)

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, what, args))

    def step(self) -> bool:
        """Run the next event; return False if there is none."""
        if not self._events:
            return False
        when, _, what, args = heapq.heappop(self._events)
        self.now = when
        what(*args)
        return True

    def __len__(self) -> int:
        return len(self._events)


class Link:
    """A connection: each direction delivers in order; a cut drops messages in transit.

    Args:
        latency: (lowest, highest) seconds that a message takes.
        to_core, to_peer: called with each message on arrival.
    """

    def __init__(
        self,
        agenda: Agenda,
        rng: Random,
        latency: tuple[float, float],
        to_core: Callable[[Any], None],
        to_peer: Callable[[Any], None],
    ) -> None:
        self.agenda = agenda
        self.rng = rng
        self.latency = latency
        self.alive = True
        self._to_core = to_core
        self._to_peer = to_peer
        self._last_up = self._last_down = 0.0

    def up(self, message: Any) -> None:
        """Send a message from the peer to the core."""
        self._last_up = self._arrival(self._last_up)
        self.agenda.at(self._last_up, self._arrive, self._to_core, message)

    def down(self, message: Any) -> None:
        """Send a message from the core to the peer."""
        self._last_down = self._arrival(self._last_down)
        self.agenda.at(self._last_down, self._arrive, self._to_peer, message)

    def after_down(self, what: Callable[[], None]) -> None:
        """Call ``what`` once all messages that the core has sent have arrived."""
        self.agenda.at(self._last_down, what)

    def cut(self) -> None:
        """Drop all messages in both directions from now on."""
        self.alive = False

    def _arrival(self, last: float) -> float:
        return max(last, self.agenda.now + self.rng.uniform(*self.latency))

    def _arrive(self, receive: Callable[[Any], None], message: Any) -> None:
        if self.alive:
            receive(message)
