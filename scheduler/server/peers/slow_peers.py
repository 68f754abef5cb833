"""Buffers of messages for workers and clients that read slowly, and a time limit for reading.

For a worker all messages are kept, in order. They are encoded when they are sent, so that until
then they share the specifications of tasks with the state.

For a client the last report per key is kept, and all other messages in order, so that a client that
stopped reading does not cost memory for every message sent to it. The oldest events are dropped
beyond a number and a size.

A process that is stopped, or that holds the GIL for long, keeps its TCP connection because its
kernel answers. Such a worker has ``paceline.scheduler.unread-timeout`` to read anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
from paceline.protocol import messages as m
from paceline.protocol.payload import Payload
from paceline.workers_compat.config import config

logger = logging.getLogger("distributed.scheduler")

#: Messages that are kept for a slow worker; its connection is closed beyond that.
WORKER_MESSAGES_MAX = 1_000_000
#: Default of ``paceline.scheduler.unread-timeout``, seconds.
UNREAD_SECONDS = 300.0
#: Events that are kept for a slow client; the oldest are dropped first.
EVENTS_MAX = 10_000
#: Size of the events that are kept for a slow client.
EVENTS_MAX_NBYTES = 64 * 2**20
#: Size of all messages that are kept for a slow client; its connection is closed beyond that.
KEPT_MAX_NBYTES = 2**30
#: Estimated size of a value in a message, without its content.
VALUE_NBYTES = 64
#: Estimated size of a key report without its payloads. Its key is shared with the state.
REPORT_NBYTES = 256

#: Messages that report the state of one key. Only the last one is kept.
KEY_REPORTS: frozenset[type] = frozenset(
    {m.KeyInMemory, m.LostData, m.TaskErredReport, m.TaskRetried}
)


class _Kept(NamedTuple):
    """A buffered message, its estimated size without payloads, the payloads in it, its number."""

    message: Any
    nbytes: int
    payloads: list[Payload]
    number: int = 0


class SlowWorkerBuffer(deque[Any]):
    """Messages for a worker that reads slowly.

    Attributes:
        first: number of the oldest message; messages of a stream are numbered from 0.
    """

    first = 0

    def add(self, messages: list[Any], number: int = 0) -> None:
        """Append ``messages``, the first of which has this number."""
        if not self:
            self.first = number
        self.extend(messages)

    def numbered(self) -> Iterable[tuple[int, Any]]:
        """Return the messages with their numbers."""
        return enumerate(self, self.first)

    @property
    def excess(self) -> str | None:
        """The limit that is exceeded, as text, or None."""
        return f"{WORKER_MESSAGES_MAX} messages" if len(self) > WORKER_MESSAGES_MAX else None

    def take(self, count: int) -> list[Any]:
        """Remove and return up to ``count`` messages, oldest first."""
        taken = [self.popleft() for _ in range(min(count, len(self)))]
        self.first += len(taken)
        return taken


class SlowClientBuffer:
    """Messages for a client that reads slowly.

    Attributes:
        nbytes: estimated size of the messages. A payload that several messages share counts once.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._kept: OrderedDict[Any, _Kept] = OrderedDict()
        self._payload_uses: dict[int, int] = {}
        self._count = 0
        self._events: deque[int] = deque()
        self._events_nbytes = 0
        self._dropped = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def numbered(self) -> Iterable[tuple[int, Any]]:
        """Return the messages with their numbers."""
        return [(kept.number, kept.message) for kept in self._kept.values()]

    @property
    def excess(self) -> str | None:
        """The limit that is exceeded, as text, or None."""
        return f"{KEPT_MAX_NBYTES} bytes of messages" if self.nbytes > KEPT_MAX_NBYTES else None

    @property
    def first(self) -> int:
        """The number of the oldest message; messages of a stream are numbered from 0."""
        return next(iter(self._kept.values())).number

    def add(self, messages: list[Any], number: int = 0) -> None:
        """Append ``messages``, the first of which has this number."""
        for position, message in enumerate(messages, number):
            is_report = type(message) in KEY_REPORTS
            kept = _report(message) if is_report else _Kept(message, *_measure(message))
            kept = kept._replace(number=position)
            if is_report:
                slot: Any = ("key", message.key)
                if slot in self._kept:
                    self._remove(slot)
            else:
                self._count += 1
                slot = self._count
            self._kept[slot] = kept
            self._account(kept)
            if type(message) is m.Event:
                self._events.append(slot)
                self._events_nbytes += _whole_nbytes(kept)
                while len(self._events) > EVENTS_MAX or self._events_nbytes > EVENTS_MAX_NBYTES:
                    self._remove(self._events[0])
                    self._dropped += 1

    def take(self, count: int) -> list[Any]:
        """Remove and return up to ``count`` messages, oldest first."""
        messages = []
        for _ in range(min(count, len(self._kept))):
            messages.append(self._remove(next(iter(self._kept))))
        if self._dropped:
            logger.warning(
                "Client %s reads slowly; dropped %d events for it", self._client, self._dropped
            )
            self._dropped = 0
        return messages

    def _account(self, kept: _Kept) -> None:
        self.nbytes += kept.nbytes
        uses = self._payload_uses
        for payload in kept.payloads:
            n = uses.get(id(payload), 0)
            uses[id(payload)] = n + 1
            if not n:
                self.nbytes += payload.nbytes

    def _remove(self, slot: Any) -> Any:
        """Remove a message, which is the oldest one if it is an event, and return it."""
        kept = self._kept.pop(slot)
        if type(kept.message) is m.Event:
            self._events.popleft()
            self._events_nbytes -= _whole_nbytes(kept)
        self.nbytes -= kept.nbytes
        uses = self._payload_uses
        for payload in kept.payloads:
            uses[id(payload)] -= 1
            if not uses[id(payload)]:
                del uses[id(payload)]
                self.nbytes -= payload.nbytes
        return kept.message


def _whole_nbytes(kept: _Kept) -> int:
    return kept.nbytes + sum(payload.nbytes for payload in kept.payloads)


def _report(message: Any) -> _Kept:
    values = [getattr(message, name, None) for name in ("exception", "traceback", "type")]
    return _Kept(message, REPORT_NBYTES, [x for x in values if isinstance(x, Payload)])


def _measure(message: Any) -> tuple[int, list[Payload]]:
    """Return the estimated size of ``message`` without its payloads, and these."""
    nbytes = 0
    payloads: list[Payload] = []
    left: list[Any] = [msgspec.structs.astuple(message)]
    while left:
        value = left.pop()
        nbytes += VALUE_NBYTES
        if isinstance(value, str | bytes | bytearray):
            nbytes += len(value)
        elif isinstance(value, dict):
            left += value.keys()
            left += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            left += value
        elif isinstance(value, Payload):
            payloads.append(value)
    return nbytes, payloads


class UnreadTimer:
    """A timer that runs while a peer has bytes to read.

    Args:
        unread: returns the number of bytes that wait for the peer.
        expired: called with the timeout in seconds if this number did not fall during the timeout.
    """

    def __init__(self, unread: Callable[[], int], expired: Callable[[float], object]) -> None:
        configured = config.seconds(config.get("paceline.scheduler.unread-timeout"))
        self._seconds = UNREAD_SECONDS if configured is None else configured
        self._unread = unread
        self._expired = expired
        self._nbytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer, or restart it because the peer has read something."""
        self.stop()
        self._nbytes = self._unread()
        if self._seconds:  # 0 turns the limit off
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._check)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        if self._unread() < self._nbytes:
            self.start()
        else:
            self._timer = None
            self._expired(self._seconds)
