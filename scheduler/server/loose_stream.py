"""A connection that became a stream without a registration (``connection_stream``, ``distributed.core.Server.handle_stream``).

Its messages go where those of workers and clients go: to handlers that plugins put into ``stream_handlers``, and to the
core, in the name that the message itself gives as its ``client`` or ``worker``. Nothing is answered. A message that nobody
takes is logged and skipped, where stock closes the connection.

Must not know: sockets; what messages do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.protocol import connection as c
from paceline.protocol.catalogue import TABLES, Direction

from .peers import Silent

if TYPE_CHECKING:
    from .peers import Peer

logger = logging.getLogger("distributed.scheduler")

#: Who may have sent a message -> the direction whose messages it sends.
SENDERS: tuple[tuple[str, Direction], ...] = (
    ("client", "client_to_scheduler"),
    ("worker", "worker_to_scheduler"),
)


class LooseStream(Silent):
    """What such a connection is from then on.

    Args:
        extra: arguments that are added to each message.
    """

    __slots__ = ("_extra", "_peer")

    def __init__(self, peer: Peer, extra: Mapping[str, Any]) -> None:
        self._peer = peer
        self._extra = dict(extra)
        logger.info("Starting established connection to %s", peer.address)

    def event(self, event: Any) -> None:
        """One message, or several in a list."""
        value = getattr(event.message, "raw", None) if type(event) is c.Request else event.value
        for raw in value if isinstance(value, list | tuple) else (value,):
            if not self._take(raw):
                return

    def closed(self, reason: str) -> None:
        logger.info("Connection to %s has been closed.", self._peer.address)

    def _take(self, raw: Any) -> bool:
        """Whether the stream goes on after this message."""
        if raw == "OK":
            return False
        op = raw.get("op") if isinstance(raw, dict) else None
        if op == "close-stream":
            logger.info("Received 'close-stream' from %s; closing.", self._peer.address)
            self._peer.close()
            return False
        if not isinstance(op, str) or not op:
            logger.error("odd message %s", raw)
            return True
        raw = {**self._extra, **raw}
        plugins = self._peer.server.plugins
        if plugins.takes(op):
            plugins.take(op, raw)
        elif not self._told(op, raw):
            logger.error("Unknown op %r from %s: skipped", op, self._peer.address)
        return True

    def _told(self, op: str, raw: dict[str, Any]) -> bool:
        """Whether the core takes it."""
        server = self._peer.server
        for role, direction in SENDERS:
            sender = raw.get(role)
            entry = TABLES[direction].get(op)
            if sender is None or entry is None or entry.cls not in server.core_types:
                continue
            fields = {name: value for name, value in raw.items() if name != role}
            message = self._peer.connection.codec.as_message(fields, direction)
            if type(message) is entry.cls:
                server.tell(message, sender)
                return True
        return False
