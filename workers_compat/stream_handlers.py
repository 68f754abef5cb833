"""The facade's ``stream_handlers``: op -> function, as stock's ``Scheduler.stream_handlers``.

What plugins put here takes the messages of its op, also those that the core takes otherwise; and what is there can be
called, with the arguments of the message and who sent it (``worker=`` or ``client=``). Graphs and scattered data do not
pass here: they are read elsewhere.

Must not know: connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import msgspec
from paceline.protocol.catalogue import TABLES, Direction

#: Whose messages -> the argument that says who sent one.
ROLES: tuple[tuple[Direction, str], ...] = (
    ("worker_to_scheduler", "worker"),
    ("client_to_scheduler", "client"),
)


class StreamHandlers(MutableMapping[str, Callable[..., Any]]):
    """See above.

    Args:
        server: ``scheduler.server.server.Server``.

    Attributes:
        taken_over: classes of messages that the core takes otherwise, and that a function here takes now.
    """

    def __init__(self, server: Any) -> None:
        self._server = server
        self._own: dict[str, Callable[..., Any]] = {}
        self._all = frozenset(server.core.handlers)
        self.taken_over: frozenset[type] = frozenset()

    def __getitem__(self, op: str) -> Callable[..., Any]:
        own = self._own.get(op)
        if own is not None:
            return own
        cls, role = self._built_in(op)
        if cls is None:
            raise KeyError(op)

        def call(**arguments: Any) -> None:
            sender = arguments.pop(role)
            stimulus_id = arguments.get("stimulus_id")
            self._server.tell(msgspec.convert(arguments, cls), sender, stimulus_id)

        call.__name__ = op
        return call

    def __setitem__(self, op: str, function: Callable[..., Any]) -> None:
        self._own[op] = function
        self._reroute()

    def __delitem__(self, op: str) -> None:
        del self._own[op]
        self._reroute()

    def __iter__(self) -> Iterator[str]:
        built_in = [
            op for direction, _ in ROLES for op in TABLES[direction] if self._built_in(op)[0]
        ]
        return iter(dict.fromkeys((*built_in, *self._own)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def has_own(self, op: str) -> bool:
        """Whether somebody put a function here for this op."""
        return op in self._own

    def _built_in(self, op: str) -> tuple[type | None, str]:
        """The class of an op that the core takes from a stream, and the argument that names the sender."""
        for direction, role in ROLES:
            entry = TABLES[direction].get(op)
            if entry is not None and entry.cls in self._all:
                return entry.cls, role
        return None, ""

    def _reroute(self) -> None:
        """Messages that somebody takes over pass the core by; all others cost what they did."""
        taken = (self._built_in(op)[0] for op in self._own)
        self.taken_over = frozenset(cls for cls in taken if cls is not None)
        self._server.route_streams(self._all - self.taken_over)
