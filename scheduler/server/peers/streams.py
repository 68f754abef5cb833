"""The base class of streams, and the streams of workers (of clients: ``client_stream.py``).

Each message of a batch is one turn of the core.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Final

from paceline.protocol import messages as m
from paceline.protocol.errors import LocalProtocolError
from paceline.scheduler.core import stimuli
from paceline.scheduler.server.server_api import op_name
from paceline.workers_compat.errors import error_payloads

from .peer import EventHandler
from .slow_peers import SlowClientBuffer, SlowWorkerBuffer, UnreadTimer

if TYPE_CHECKING:
    from paceline.scheduler.server.durable.recovery.recorded_connection import RecordedConnection
    from paceline.scheduler.server.durable.recovery.replay import RecordedState

    from .peer import Peer

logger = logging.getLogger("distributed.scheduler")

#: Time for a peer to close its connection after the scheduler requested that, seconds. Closing it
#: earlier could discard messages that the peer has not read.
LINGER_SECONDS = 5.0
#: Messages of a stream that wait for a later wake-up of the event loop. Beyond this number the
#: stream is not read.
INBOX_MAX = 5_000
#: Messages that are encoded and written in one batch. Between batches it is checked whether the
#: peer reads.
BATCH_MESSAGES_MAX: Final = 256


class _Undecoded:
    """The undecoded rest of a long batch, at its position in the inbox."""

    def __init__(self, pieces: Iterator[list[Any]]) -> None:
        self.pieces = pieces


class Stream(EventHandler, ABC):
    """Base class of the streams of workers and clients.

    Attributes:
        name: the worker's address, or the client's name.
        ended: either side has closed the stream. Later messages are ignored, except by
            ``handle_late``.
        ROLE: the keyword argument in which handlers of plugins receive ``name``.
    """

    ROLE: ClassVar[str]

    def __init__(self, peer: Peer, name: str, buffer: SlowWorkerBuffer | SlowClientBuffer) -> None:
        self.peer = peer
        self.name = name
        self.ended = False
        self._driver = peer.server.driver
        self._recorder = peer.server.recorder
        self._n_messages = 0
        self._inbox: deque[Any] = deque()
        self._n_undecoded = 0
        self._connection_lost = False
        self._buffer = buffer

    # called by the driver

    @property
    def number(self) -> int:
        """Number of the comm."""
        return self.peer.comm.number

    def send(self, messages: list[Any]) -> None:
        """Send ``messages`` in order, or buffer them while the peer reads slowly.

        Nothing is read from the peer while messages are buffered. The connection is closed if the
        buffer exceeds its limit, or after an error such as MemoryError.
        """
        try:
            self._send(messages)
        except Exception:
            self.peer.failed("writing to")

    def _send(self, messages: list[Any]) -> None:
        peer = self.peer
        if peer.closed or peer.connection.phase == "closed":
            return
        first, before = 0, self._n_messages
        self._n_messages += len(messages)
        while first < len(messages) and not self._buffer and peer.can_write:
            part = messages if len(messages) <= BATCH_MESSAGES_MAX else messages[first:]
            part = part[:BATCH_MESSAGES_MAX]
            first += len(part)
            self._write(part, before + first)
        if first >= len(messages):
            return
        self._buffer.add(messages[first:], before + first)
        peer.pause_reading("unread messages")
        peer.resume_soon()
        if self._buffer.excess is not None:
            reason = f"{self.ROLE} {self.name} did not read {self._buffer.excess}"
            peer.comm.drop(reason)

    def resumed(self) -> None:
        """Send buffered messages while the peer reads, then read from it again."""
        if not self._buffer:
            return
        while self._buffer and self.peer.can_write:
            messages = self._buffer.take(BATCH_MESSAGES_MAX)
            self._write(messages, self._n_messages if not self._buffer else self._buffer.first)
        if self._buffer:
            self.peer.resume_soon()
        else:
            self.peer.resume_reading("unread messages")

    def send_own(self, messages: list[Any]) -> None:
        """Send ``messages`` that are not the core's."""
        self._recorder.sent(self.peer.comm.number, messages)
        self.send(messages)

    def _write(self, messages: list[Any], n_messages: int) -> None:
        """Write one batch, with which ``n_messages`` of the stream are written.

        Leave out messages that cannot be encoded or are too large for the comm.
        """
        peer = self.peer
        if peer.closed or peer.connection.phase == "closed":
            return
        try:
            frames = peer.connection.send(messages)
            peer.comm.n_messages = n_messages
            peer.comm.write(frames)
        except (LocalProtocolError, ValueError) as error:
            if len(messages) > 1:
                for message in messages:
                    self._write([message], n_messages)
            else:
                self.not_sent(messages[0], error)

    def not_sent(self, message: Any, error: Exception) -> None:
        """Handle that a message was left out because of ``error``."""
        logger.error("Cannot send %r to %s", message, self.name, exc_info=error)

    def close_when_written(self) -> None:
        """End the stream after the core has removed this peer.

        The connection is closed by the peer, or after ``LINGER_SECONDS``.
        """
        if self.ended:
            return
        self.ended = True
        self.unregister()
        self.peer.server.loop.call_later(LINGER_SECONDS, self.peer.comm.close)

    def continue_from(self, messages: list[Any], unwritten: list[Any], n_written: int) -> None:
        """Continue a stream of another process of the scheduler.

        Args:
            messages: messages that were not handled.
            unwritten: messages that were not written; None for those that need not be.
            n_written: number of messages that were written before them.
        """
        self._n_messages = n_written
        for is_dropped, run in groupby(unwritten, lambda message: message is None):
            if is_dropped:
                self._n_messages += len(list(run))
            else:
                self.send(list(run))
        self._handle_all(messages)

    def capture(self, connection: RecordedConnection, recorded: RecordedState) -> None:
        """See ``EventHandler``."""
        connection.kind, connection.name = self.ROLE, self.name
        connection.is_closed = self.peer.closed
        inbox: deque[Any] = deque()
        for message in self._inbox:
            if type(message) is _Undecoded:
                for piece in message.pieces:
                    inbox += piece
            else:
                inbox.append(message)
        self._inbox = inbox
        connection.messages += self._inbox
        connection.n_written = self._buffer.first if self._buffer else self._n_messages
        unwritten: list[Any] = [None] * (self._n_messages - connection.n_written)
        for number, message in self._buffer.numbered():
            unwritten[number - connection.n_written] = message
        connection.unwritten += unwritten

    # received messages

    def event(self, event: Any) -> None:
        messages = event.messages
        if self._inbox or self._driver.messages_left < len(messages):
            self._defer(messages)
        else:
            handled = self._handle(messages)
            if handled < len(messages):
                self._defer(messages[handled:])
        if event.more is not None and not self.ended:
            self._n_undecoded += 1
            self._defer([_Undecoded(event.more)])
            self.peer.pause_reading("inbox")

    def _defer(self, messages: list[Any]) -> None:
        """Handle ``messages`` in a later wake-up."""
        self._inbox += messages
        self._driver.defer(self)
        if len(self._inbox) > INBOX_MAX:
            self.peer.pause_reading("inbox")

    def handle_deferred(self, count: int) -> bool:
        """Handle up to ``count`` deferred messages. Return whether there are more."""
        inbox = self._inbox
        if inbox and type(inbox[0]) is _Undecoded:
            self._decode_piece(inbox.popleft())
        messages: list[Any] = []
        while inbox and len(messages) < count and type(inbox[0]) is not _Undecoded:
            messages.append(inbox.popleft())
        handled = self._handle(messages)
        inbox.extendleft(reversed(messages[handled:]))
        if self.ended:
            self.handle_late(list(inbox))
            inbox.clear()
            self._n_undecoded = 0
        if not self._n_undecoded and len(inbox) <= INBOX_MAX // 2:
            self.peer.resume_reading("inbox")
        if not inbox and self._connection_lost:
            self._end_lost()
        return bool(inbox)

    def _decode_piece(self, rest: _Undecoded) -> None:
        """Put the next piece of a long batch into the inbox, in front of its rest."""
        piece = next(rest.pieces, None)
        if piece is None:
            self._n_undecoded -= 1
        else:
            self._inbox.appendleft(rest)
            self._inbox.extendleft(reversed(piece))

    def _handle(self, messages: list[Any]) -> int:
        """Handle ``messages`` as far as this wake-up allows, and return the number handled.

        This is at least one, if there are any.
        """
        server = self.peer.server
        if not self.ended and server.core_types.issuperset(map(type, messages)):
            return self.feed_core(messages)
        for number, message in enumerate(messages):
            if self.ended:
                self.handle_late(messages[number:])
                break
            if number and self._driver.messages_left <= 0:
                return number
            if type(message) in server.core_types:
                self.feed_core([message])
            else:
                self.handle_other(message)
        return len(messages)

    def _handle_all(self, messages: list[Any]) -> None:
        """Handle all ``messages`` now."""
        while messages:
            messages = messages[self._handle(messages) :]

    @abstractmethod
    def handle_late(self, messages: list[Any]) -> None:
        """Handle messages that arrive after the end of the stream."""

    def feed_core(self, messages: list[Any]) -> int:
        """Feed messages that the core handles. See ``Driver.feed_batch``."""
        return self._driver.feed_batch(self.name, messages, self.peer.comm.number)

    def handle_other(self, message: Any) -> None:
        """Handle a message that the core does not handle."""
        kind = type(message)
        self._recorder.other(self.peer.comm.number, kind.__name__)
        plugins = self.peer.server.plugins
        if kind is m.CloseStream:
            logger.info("Received 'close-stream' from %s; closing.", self.peer.address)
            self.end()
        elif kind is m.UnknownMessage and plugins.has_stream_handler(message.op):
            plugins.handle_stream_message(message.op, message.raw, **{self.ROLE: self.name})
        elif plugins.replaces_core_handler(kind):
            plugins.handle_replaced(message, **{self.ROLE: self.name})
        elif kind is m.UnknownMessage:
            logger.error("Skipping a message with the unknown op %r from %s", message.op, self.name)
        elif kind is m.InvalidMessage:
            text = "Skipping an invalid message from %s: op %r, %s: %s"
            logger.error(text, self.name, message.op, message.path, message.error)
        else:
            text = "Skipping a message from %s: the op %r is not one of its stream"
            logger.error(text, self.name, op_name(message))

    # the end

    def end(self) -> None:
        """End the stream because the peer has sent ``close-stream``."""
        if not self.ended:
            self._end()
            self.peer.comm.close()

    def _end(self) -> None:
        self.ended = True
        self.unregister()
        self.removed()

    def closed(self, reason: str) -> None:
        """See ``EventHandler``. Messages that were received before are handled first."""
        if self._inbox:
            self._connection_lost = True
        else:
            self._end_lost()

    def _end_lost(self) -> None:
        if not self.ended:
            logger.info("Connection to %s has been closed.", self.peer.address)
            self._end()

    @abstractmethod
    def unregister(self) -> None:
        """Remove the stream from the driver's tables."""

    @abstractmethod
    def removed(self) -> None:
        """Report to the core that the peer is gone."""


class WorkerStream(Stream):
    """The stream of a worker."""

    ROLE = "worker"

    def __init__(self, peer: Peer, name: str) -> None:
        super().__init__(peer, name, SlowWorkerBuffer())
        self._is_backpressured = False
        self._unread_timer = UnreadTimer(lambda: peer.comm.unwritten_nbytes, self._unread_timeout)
        self._driver.worker_streams[name] = self

    def handle_late(self, messages: list[Any]) -> None:
        """Feed the events of a removed worker, which logs why it closes."""
        for message in messages:
            if type(message) is m.LogEvent:
                self._driver.feed(message, self.name)

    def not_sent(self, message: Any, error: Exception) -> None:
        """See ``Stream``. A task that cannot be sent fails."""
        super().not_sent(message, error)
        if type(message) is m.ComputeTask:
            exception, _, text = error_payloads(error)
            failed = m.TaskErred(
                key=message.key,
                stimulus_id=message.stimulus_id,
                run_id=message.run_id,
                exception=exception,
                exception_text=text,
            )
            self.peer.server.loop.call_soon(self._driver.feed, failed, self.name)

    def continue_from(self, messages: list[Any], unwritten: list[Any], n_written: int) -> None:
        """See ``Stream``. The connection may have become writable since the process died."""
        self._is_backpressured = self.peer.server.state.workers[self.name].backpressured
        super().continue_from(messages, unwritten, n_written)

    def paused(self) -> None:
        self._unread_timer.start()
        self._set_backpressured(True)

    def resumed(self) -> None:
        self._unread_timer.stop()
        super().resumed()
        if not self._buffer and not self.peer.write_paused:
            self._set_backpressured(False)

    def _set_backpressured(self, backpressured: bool) -> None:
        if backpressured != self._is_backpressured and not self.ended:
            self._is_backpressured = backpressured
            self._driver.feed(stimuli.WorkerBackpressured(self.name, backpressured))

    def _unread_timeout(self, seconds: float) -> None:
        reason = f"worker {self.name} has read nothing for {seconds:g} s"
        self.peer.comm.drop(reason)

    def unregister(self) -> None:
        self._unread_timer.stop()
        if self._driver.worker_streams.get(self.name) is self:
            del self._driver.worker_streams[self.name]
            self.peer.server.remove_connections(self.name)

    def removed(self) -> None:
        now = self._driver.clock()
        self._driver.feed(
            stimuli.WorkerRemoved(self.name), stimulus_id=f"handle-worker-cleanup-{now}"
        )
