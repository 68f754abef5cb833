"""A connection that validates what it sends against the catalogue, for tests.

It decodes the bytes that it sends, so that encoders and parts that were encoded before are checked,
too. This costs as much as receiving everything once more. A server uses it only if it is configured
to (``scheduler.server.peers.message_checks``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .catalogue import Direction
from .compression import Buffer
from .connection import Connection, Event, Role
from .framing import Frames
from .observer import ObservedMessage, Observer, Way
from .validation import Violation
from .values import ScalarReader, ValueSerializer

#: Called with a violation in a sent message, and the message.
Report = Callable[[Violation, ObservedMessage], None]


class CheckedConnection(Connection):
    """A ``Connection`` that calls `report` for each violation in a message that this end sends.

    Args:
        report: called with the violation and the message.
        role, offer, serves, read_scalar, serialize_value: see ``Connection``.
    """

    def __init__(
        self,
        role: Role,
        offer: Mapping[str, Any] | None = None,
        *,
        report: Report,
        serves: Direction = "scheduler_rpc",
        read_scalar: ScalarReader | None = None,
        serialize_value: ValueSerializer | None = None,
    ) -> None:
        super().__init__(
            role,
            offer,
            serves=serves,
            read_scalar=read_scalar,
            serialize_value=serialize_value,
        )
        self._report = report
        served: tuple[Direction, ...] = (serves,)
        if role == "connector":
            served = ("worker_rpc", "nanny_rpc")
        self._observer = Observer(served, read_scalar=read_scalar)

    def start(self) -> Frames:
        """See ``Connection.start``."""
        return self._check(super().start())

    def send(self, value: Any) -> Frames:
        """See ``Connection.send``."""
        return self._check(super().send(value))

    def receive_frames(self, frames: Sequence[Buffer]) -> list[Event]:
        """See ``Connection.receive_frames``."""
        self._observer.observe(self._way(received=True), frames)
        return super().receive_frames(frames)

    def _check(self, frames: Frames) -> Frames:
        for seen in self._observer.observe(self._way(received=False), frames):
            for violation in seen.violations:
                self._report(violation, seen)
        return frames

    def _way(self, received: bool) -> Way:
        return "up" if received == (self.role == "listener") else "down"
