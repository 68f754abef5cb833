"""What waits for a client that reads slowly: the latest word per key, and the rest in order.

A client that stopped reading must not cost memory for every report ever made to it. Reports on the state of one
key replace each other; what else is sent is kept in order, events up to a limit.

Must not know: connections.
"""

from __future__ import annotations

import logging
from typing import Any

from paceline.protocol import messages as m

logger = logging.getLogger("distributed.scheduler")

#: Events kept for a slow client; the oldest go first.
EVENTS_MAX = 10_000

#: Messages that say what state one key is in: only the last one counts.
KEY_REPORTS: frozenset[type] = frozenset(
    {m.KeyInMemory, m.LostData, m.TaskErredReport, m.TaskRetried}
)


class ClientBacklog:
    """Messages for a client that is paused.

    Args:
        client: its name, for the log.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._messages: dict[Any, Any] = {}
        self._count = 0
        self._events = 0
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, messages: list[Any]) -> None:
        """Keep these, after those that are there."""
        kept = self._messages
        for message in messages:
            kind = type(message)
            if kind in KEY_REPORTS:
                slot = ("key", message.key)
                kept.pop(slot, None)
                kept[slot] = message
                continue
            self._count += 1
            kept[self._count] = message
            if kind is m.Event:
                self._events += 1
                if self._events > EVENTS_MAX:
                    self._drop_event()

    def take(self) -> list[Any]:
        """All of it; nothing is left."""
        messages = list(self._messages.values())
        self._messages = {}
        self._events = 0
        if self._dropped:
            logger.warning(
                "Client %s reads slowly: %d events for it were dropped", self._client, self._dropped
            )
            self._dropped = 0
        return messages

    def _drop_event(self) -> None:
        for slot, message in self._messages.items():
            if type(message) is m.Event:
                del self._messages[slot]
                self._events -= 1
                self._dropped += 1
                return
