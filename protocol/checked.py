"""A connection that looks at what it sends as an onlooker would, for tests: what the catalogue does not allow is reported.

It reads the bytes that go out, so that ready-made parts and encoders are checked with the rest. It costs as much as reading
everything once more; a server uses it only when it is told to (``scheduler.server.checks``).

Must not know: sockets, where reports go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .catalogue import Direction
from .checking import Violation
from .compression import Buffer
from .connection import Connection, Event, Role
from .framing import Frames
from .onlooker import Onlooker, Seen, Way
from .values import ScalarReader, ValueCloser

#: Told of a violation in a message of ours, and of the message.
Report = Callable[[Violation, Seen], None]


class CheckedConnection(Connection):
    """As ``Connection``; ``report`` is told of each violation in what this end sends.

    Args:
        report: see above. Other arguments as for ``Connection``.
        answers: what the other end serves, where this end dialled.
    """

    __slots__ = ("_onlooker", "_report")

    def __init__(
        self,
        role: Role,
        offer: Mapping[str, Any] | None = None,
        same_host: bool = False,
        *,
        report: Report,
        serves: Direction = "scheduler_rpc",
        answers: Sequence[Direction] = ("worker_rpc", "nanny_rpc"),
        read_scalar: ScalarReader | None = None,
        close_value: ValueCloser | None = None,
    ) -> None:
        super().__init__(
            role, offer, same_host, serves=serves, read_scalar=read_scalar, close_value=close_value
        )
        self._report = report
        self._onlooker = Onlooker(
            (serves,) if role == "listener" else answers, read_scalar=read_scalar
        )

    def start(self) -> Frames:
        """See ``Connection.start``."""
        return self._sent(super().start())

    def send(self, value: Any) -> Frames:
        """See ``Connection.send``."""
        return self._sent(super().send(value))

    def receive_frames(self, frames: Sequence[Buffer]) -> list[Event]:
        """See ``Connection.receive_frames``."""
        self._onlooker.see(self._way(theirs=True), frames)
        return super().receive_frames(frames)

    def _sent(self, frames: Frames) -> Frames:
        for seen in self._onlooker.see(self._way(theirs=False), frames):
            for violation in seen.violations:
                self._report(violation, seen)
        return frames

    def _way(self, theirs: bool) -> Way:
        return "up" if theirs == (self.role == "listener") else "down"
