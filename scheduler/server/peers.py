"""One connection above the seam: its handshake, and the requests that come on it.

After the handshake a connection asks (one request, one reply), until ``register-worker`` or ``register-client``
turns it into a stream (``streams.py``), or ``register_nanny`` into a watch. What it is at the moment is its *mode*: an
object that takes the connection's events.

Must not know: sockets, what requests do.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from paceline.protocol import connection as c
from paceline.protocol import messages as m
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import frame_nbytes, pack_prelude
from paceline.protocol.in_place import InPlaceCodec
from paceline.workers_compat import errors
from paceline.workers_compat.shared_secret import CONNECTOR

from .rpc.base import NO_REPLY, NoReply, RemoteError

if TYPE_CHECKING:
    from .inbound import Inbound
    from .outlet import Outlet
    from .seam import PeerFacts
    from .server import Server

logger = logging.getLogger("distributed.scheduler")

#: A peer that has not said who it is after so many seconds is dropped.
HANDSHAKE_SECONDS = 30.0
#: Requests of one connection that wait behind the one being handled; then it is read no further.
WAITING_REQUESTS_MAX = 32


class Mode(Protocol):
    """What a connection is at the moment."""

    def event(self, event: Any) -> None:
        """Something came."""

    def paused(self) -> None:
        """The peer reads slowly."""

    def resumed(self) -> None:
        """It has caught up."""

    def closed(self, reason: str) -> None:
        """The connection is gone."""


class Peer:
    """One connection.

    Attributes:
        number: at the seam.
        address: of the other end of the socket.
        facts: what was known when it opened.
        connection: its protocol.
        mode: what it is at the moment.
        inbound: where its large messages go; None for connections of our own.
        closed: it is gone.
    """

    __slots__ = ("address", "closed", "connection", "facts", "inbound", "mode", "number", "server")

    def __init__(self, server: Server, number: int, facts: PeerFacts, connection: c.Connection) -> None:
        self.server = server
        self.number = number
        self.address = facts.peer_address
        self.facts = facts
        self.connection = connection
        self.closed = False
        self.mode: Mode = Silent()
        self.inbound: Inbound | None = None

    def frames_in(self, messages: list[Any]) -> None:
        """Messages came."""
        receive = self.connection.receive_frames
        try:
            for frames in messages:
                for event in receive(frames):
                    self.mode.event(event)
        except RemoteProtocolError as error:
            self.server.transport.drop(self.number, str(error))

    def send(self, value: Any) -> None:
        """Write a message, a list of messages, or a value as it is."""
        if not self.closed:
            self.server.write(self.number, self.connection.send(value))

    reply = send

    @property
    def can_reply_in_parts(self) -> bool:
        """A reply may begin before all of it has come: placeholders that say nothing of their frames, on a plain socket."""
        in_place = isinstance(self.connection.codec, InPlaceCodec)
        return not self.closed and not in_place and self.server.transport.has_outlet(self.number)

    def reply_in_parts(self, value: Any, lengths: Mapping[int, int]) -> Outlet | None:
        """Begin a reply: the lengths of all frames, and frame 0. The others are to be written to the outlet, in order.

        Args:
            value: the reply, with payloads whose header and frames are stand-ins.
            lengths: ``id`` of a stand-in -> the length of what it stands for, bytes.

        Returns:
            None where the connection is gone, or cannot do so.
        """
        outlet = self.server.transport.open_outlet(self.number) if self.can_reply_in_parts else None
        if outlet is None:
            return None
        frames = self.connection.send(value)
        sizes = [lengths.get(id(frame), frame_nbytes(frame)) for frame in frames]
        outlet.write(b"".join((pack_prelude(sizes), frames[0])))
        return outlet

    def close(self) -> None:
        """Close once everything is written."""
        self.server.transport.close(self.number)

    def abort(self, reason: str) -> None:
        """Close now."""
        self.server.transport.abort(self.number, reason)

    async def read(self) -> Any:
        """The next message as it stands, for conversations that go on after a request.

        Raises:
            OSError: the connection is gone.
        """
        before = self.mode
        listening = Listening(self.server.loop.create_future(), before)
        self.mode = listening
        try:
            return await listening.future
        finally:
            if self.mode is listening:
                self.mode = before


class Silent:
    """A mode that ignores what comes."""

    __slots__ = ()

    def event(self, event: Any) -> None:
        pass

    def paused(self) -> None:
        pass

    def resumed(self) -> None:
        pass

    def closed(self, reason: str) -> None:
        pass


class Listening(Silent):
    """Somebody reads the next message itself; then the mode before goes on."""

    __slots__ = ("_before", "future")

    def __init__(self, future: asyncio.Future[Any], before: Mode) -> None:
        self.future = future
        self._before = before

    def event(self, event: Any) -> None:
        if not self.future.done():
            self.future.set_result(event.value if type(event) is c.Value else event.message)

    def closed(self, reason: str) -> None:
        if not self.future.done():
            self.future.set_exception(ConnectionError(reason))
        self._before.closed(reason)


class Handshaking(Silent):
    """An accepted connection that has not said who it is."""

    __slots__ = ("_peer", "_timer")

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._timer = peer.server.loop.call_later(HANDSHAKE_SECONDS, self._too_late)

    def event(self, event: Any) -> None:
        self._timer.cancel()
        secret = self._peer.server.secret
        if secret is not None:
            refusal = secret.refusal(event.remote, CONNECTOR)
            if refusal is not None:
                self._peer.server.transport.drop(self._peer.number, refusal)
                return
        self._peer.mode = Requests(self._peer)

    def closed(self, reason: str) -> None:
        self._timer.cancel()
        logger.debug("Connection from %s closed before handshake completed", self._peer.address)

    def _too_late(self) -> None:
        self._peer.server.transport.drop(
            self._peer.number, f"no handshake within {HANDSHAKE_SECONDS:.0f} s"
        )


class Requests(Silent):
    """A connection that asks: one request at a time, in order."""

    __slots__ = ("_busy", "_gone", "_held", "_peer", "_task", "_waiting")

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._waiting: deque[c.Request] = deque()
        self._busy = False
        self._held = False
        self._task: asyncio.Future[Any] | None = None

    def event(self, event: Any) -> None:
        if type(event) is not c.Request:
            self._peer.server.transport.drop(
                self._peer.number, f"expected a request, got {type(event.value).__name__}"
            )
            return
        if self._busy:
            self._waiting.append(event)
            if len(self._waiting) >= WAITING_REQUESTS_MAX and not self._held:
                self._held = True
                self._peer.server.transport.pause_reading(self._peer.number)
            return
        self._run(event)

    def closed(self, reason: str) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def _run(self, event: c.Request) -> None:
        peer = self._peer
        message = event.message
        kind = type(message)
        if kind is m.CloseRequest:
            if event.reply:
                peer.send("OK")
            peer.close()
            return
        peer.server.asked[kind] += 1
        handler = peer.server.handlers.get(kind)
        try:
            if handler is None:
                result = peer.server.unserved(message)
            else:
                result = handler(peer.server, message, peer)
        except Exception as error:
            result = self._failed(message, error)
        if asyncio.isfuture(result):
            self._wait(event, result)
        elif inspect.iscoroutine(result):
            self._wait(event, peer.server.loop.create_task(result))
        else:
            self._answer(event, result)

    def _wait(self, event: c.Request, task: asyncio.Future[Any]) -> None:
        self._busy = True
        self._task = task
        task.add_done_callback(lambda done: self._done(event, done))

    def _done(self, event: c.Request, task: asyncio.Future[Any]) -> None:
        self._busy = False
        self._task = None
        if task.cancelled():
            if self._peer.closed:
                return
            result: Any = self._failed(event.message, asyncio.CancelledError("cancelled"))
        else:
            error = task.exception()
            result = task.result() if error is None else self._failed(event.message, error)
        self._answer(event, result)
        while self._waiting and not self._busy and self._peer.mode is self:
            self._run(self._waiting.popleft())
        if self._held and len(self._waiting) < WAITING_REQUESTS_MAX:
            self._held = False
            self._peer.server.transport.resume_reading(self._peer.number)

    def _answer(self, event: c.Request, result: Any) -> None:
        peer = self._peer
        if event.reply and type(result) is not NoReply:
            try:
                peer.send(result)
            except Exception as error:
                peer.send(self._failed(event.message, error))
        if event.close:
            peer.close()

    def _failed(self, message: Any, error: BaseException) -> Any:
        """What the asker gets instead; and a line in the log."""
        if self._peer.closed:
            return NO_REPLY
        logger.error(
            "Exception while handling op %s", self._peer.server.op_name(message), exc_info=error
        )
        if isinstance(error, RemoteError):  # what the worker said, whose exception the asker can open
            return error.reply
        return errors.error_message(error, status="uncaught-error")
