"""Streams without a registration, which the request ``connection_stream`` starts.

They are those of ``distributed.core.Server.handle_stream``. Their messages go to the handlers that
plugins put into ``stream_handlers``, or to the core, whose source is then the ``client`` or
``worker`` that the message names. Nothing is answered. A message without a handler is logged and
skipped, where stock closes the connection.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.protocol import connection as c
from paceline.protocol.catalogue import TABLES, Direction
from paceline.scheduler.server.durable.recovery.recorded_connection import (
    NO_SUCCESSION,
    RecordedConnection,
)

from .peer import EventHandler

if TYPE_CHECKING:
    from paceline.scheduler.server.durable.recovery.replay import RecordedState

    from .peer import Peer

logger = logging.getLogger("distributed.scheduler")

#: Field that names the sender, and the direction of the messages that such a sender may send.
SENDERS: tuple[tuple[str, Direction], ...] = (
    ("client", "client_to_scheduler"),
    ("worker", "worker_to_scheduler"),
)


class UnregisteredStream(EventHandler):
    """Handles a stream without a registration; `extra` is added to each message."""

    def __init__(self, peer: Peer, extra: Mapping[str, Any]) -> None:
        self._peer = peer
        self._extra = dict(extra)
        logger.info("Starting established connection to %s", peer.address)

    def event(self, event: Any) -> None:
        """See ``EventHandler``. The value is one message or a list of messages."""
        value = (
            getattr(event.message, "raw", None) if type(event) is c.RequestReceived else event.value
        )
        for raw in value if isinstance(value, list | tuple) else (value,):
            if not self._handle(raw):
                return

    def capture(self, connection: RecordedConnection, recorded: RecordedState) -> None:
        connection.fault = NO_SUCCESSION

    def closed(self, reason: str) -> None:
        logger.info("Connection to %s has been closed.", self._peer.address)

    def _handle(self, raw: Any) -> bool:
        """Handle one message. Return whether to handle the messages after it."""
        if raw == "OK":
            return False
        op = raw.get("op") if isinstance(raw, dict) else None
        if op == "close-stream":
            logger.info("Received 'close-stream' from %s; closing.", self._peer.address)
            self._peer.comm.close()
            return False
        if not isinstance(op, str) or not op:
            logger.error("odd message %s", raw)  # stock's text
            return True
        raw = {**self._extra, **raw}
        plugins = self._peer.server.plugins
        if plugins.has_stream_handler(op):
            plugins.handle_stream_message(op, raw)
        elif not self._send_to_core(op, raw):
            logger.error(
                "Skipping a message with the unknown op %r from %s", op, self._peer.address
            )
        return True

    def _send_to_core(self, op: str, raw: dict[str, Any]) -> bool:
        """Send the message to the core. Return False if it does not handle this op."""
        server = self._peer.server
        for role, direction in SENDERS:
            sender = raw.get(role)
            entry = TABLES[direction].get(op)
            if sender is None or entry is None or entry.cls not in server.core_types:
                continue
            fields = {name: value for name, value in raw.items() if name != role}
            message = self._peer.connection.codec.as_message(fields, direction)
            if type(message) is entry.cls:
                server.send_stimulus(message, sender)
                return True
        return False
