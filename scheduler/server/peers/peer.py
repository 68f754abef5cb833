"""Connections of peers: handshake, then requests with replies, or a stream.

Each connection is a ``Peer``, whose current handler receives its events:

- ``HandshakeHandler`` until the handshake of an accepted connection has arrived,
- ``RpcHandler`` for requests, each with one reply,
- ``streams.WorkerStream``, ``streams.ClientStream`` or ``unregistered_stream.UnregisteredStream``
  after the request that turns the connection into a stream (``requests/registration.py`` sets
  these),
- ``ReadOnce`` while a request handler reads the next message itself, as for ``register_nanny``,
- ``outgoing_rpc.OutgoingRpc`` for connections that the scheduler opens.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from paceline.protocol import connection as c
from paceline.protocol import messages as m
from paceline.protocol.catalogue import TABLES
from paceline.protocol.errors import RemoteProtocolError
from paceline.scheduler.server.comm.transport import WRITE_HIGH_WATER_NBYTES
from paceline.scheduler.server.server_api import NO_REPLY, NoReply, RemoteError, ServerApi, op_name
from paceline.workers_compat import errors
from paceline.workers_compat.security.shared_secret import CONNECTOR

from .receive_spool import ReceiveSpool

if TYPE_CHECKING:
    from paceline.scheduler.server.comm.transport import Comm
    from paceline.scheduler.server.durable.recovery.recorded_connection import RecordedConnection
    from paceline.scheduler.server.durable.recovery.replay import RecordedState

logger = logging.getLogger("distributed.scheduler")

#: A connection without a handshake is closed after this time, seconds.
HANDSHAKE_SECONDS = 30.0
#: Requests of one connection that wait for the current one. At this number the connection is not
#: read any further.
WAITING_REQUESTS_MAX = 32
#: Requests that turn their connection into a stream.
REGISTRATIONS: frozenset[type[m.Message] | None] = frozenset((m.RegisterWorker, m.RegisterClient))


class EventHandler:
    """Receives the events of one connection. This base class ignores them."""

    def event(self, event: Any) -> None:
        """Handle an event of the protocol connection."""

    def paused(self) -> None:
        """Handle that more than the high-water mark waits to be written."""

    def resumed(self) -> None:
        """Handle that the peer has read what was written."""

    def closed(self, reason: str) -> None:
        """Handle the end of the connection."""

    def capture(self, connection: RecordedConnection, recorded: RecordedState) -> None:
        """Add to ``connection`` what another process needs to continue it."""


class Peer:
    """A connection of the server. Implements ``CommEvents``.

    Attributes:
        comm: sends and receives frames.
        connection: its protocol state: frames to events, and messages to frames.
        handler: receives its events.
        write_paused: more than the high-water mark waits to be written.
        n_read: number of messages that ``read`` was called for.
        receive_spool: receives large messages. None before the handshake and for outgoing
            connections.
    """

    def __init__(self, server: ServerApi, comm: Comm, connection: c.Connection) -> None:
        self.server = server
        self.comm = comm
        self.address = comm.facts.peer_address
        self.connection = connection
        self.closed = False
        self.write_paused = False
        self.n_read = 0
        self._resumes_soon = False
        self._n_write_pauses = 0
        self._pauses: set[str] = set()
        self._wake = asyncio.Event()
        self.handler: EventHandler = EventHandler()
        self.receive_spool: ReceiveSpool | None = None

    def messages_received(self, messages: list[Any]) -> None:
        """Pass the events of ``messages`` to the handler. Close the connection on an error."""
        if self.receive_spool is not None:
            self.receive_spool.close_complete()
        receive = self.connection.receive_frames
        try:
            for frames in messages:
                for event in receive(frames):
                    self.handler.event(event)
        except RemoteProtocolError as error:
            self.comm.drop(str(error))
        except Exception:
            self.failed("reading from")

    def failed(self, activity: str) -> None:
        """Close the connection because of the current exception, and log it."""
        self.comm.abort("internal error")  # first: logging may fail without memory
        logger.exception("Internal error while %s %s", activity, self.address)

    def become_stream(self, kind: Literal["worker", "client"], name: str) -> None:
        """Make the connection the stream of a worker or client, whose registration is accepted."""
        self.connection.become_stream(kind)
        self.comm.is_stream = True
        self.server.recorder.stream(self.comm.number, kind, name)
        logger.info("Starting established connection to %s", self.address)

    def admit(self) -> None:
        """Accept messages of full size. Large ones are received into files."""
        state, spawn = self.server.request_state, self.server.spawn
        if self.receive_spool is None:
            self.receive_spool = ReceiveSpool(
                lambda: self.comm.incomplete,
                state.gather_memory_nbytes,
                state.spool_directory,
                spawn,
            )
        else:
            self.receive_spool.continue_with(lambda: self.comm.incomplete, spawn)
        self.comm.receive_large_into(self.receive_spool.allocate)
        self.comm.admit()

    def send(self, value: Any) -> None:
        """Write a message, a list of messages, or a raw value."""
        if not self.closed:
            self.comm.write(self.connection.send(value))

    @property
    def can_write(self) -> bool:
        """Return whether more may be written now; if not, call ``resume_soon``."""
        if self.write_paused or self._n_write_pauses:
            return False
        return self.comm.unwritten_nbytes <= WRITE_HIGH_WATER_NBYTES

    def pause_writing(self) -> None:
        """Refuse writes until ``resume_writing``. Streams buffer their messages meanwhile."""
        self._n_write_pauses += 1

    def resume_writing(self) -> None:
        """End one pause, and resume the handler if it was the last one."""
        self._n_write_pauses -= 1
        self.resume_soon()

    def resume_soon(self) -> None:
        """Call ``handler.resumed`` once the socket has accepted what was written."""
        if not self._resumes_soon:
            self._resumes_soon = True
            self.server.loop.call_soon(self._flushed)

    def _flushed(self) -> None:
        # Collected frames were given to the socket. If it did not accept them all, `resumed` is
        # called later.
        self._resumes_soon = False
        if not self.write_paused and not self._n_write_pauses:
            self.resumed()

    def pause_reading(self, reason: str) -> None:
        """Do not read from the peer until reading was resumed for each reason."""
        self._pauses.add(reason)
        self.comm.pause_reading()

    def resume_reading(self, reason: str) -> None:
        """Read from the peer again if no other reason is left."""
        self._pauses.discard(reason)
        if not self._pauses:
            self.comm.resume_reading()

    def apply_pauses(self) -> None:
        """Stop reading if there is a reason, after the comm was connected."""
        if self._pauses:
            self.comm.pause_reading()

    def paused(self) -> None:
        """See ``EventHandler``."""
        self.write_paused = True
        self.handler.paused()

    def resumed(self) -> None:
        """See ``EventHandler``."""
        self.write_paused = False
        self._wake.set()
        try:
            self.handler.resumed()
        except Exception:
            self.failed("writing to")

    def connection_lost(self, reason: str) -> None:
        """Handle the end of the connection, and break the reference cycles of the peer."""
        self.closed = True
        self._wake.set()
        if self.receive_spool is not None:
            self.receive_spool.close()
            self.receive_spool = None
        handler, self.handler = self.handler, EventHandler()
        handler.closed(reason)

    async def drained(self) -> None:
        """Wait until the peer has read what was written, or the connection has ended."""
        while not self.closed and not self.can_write:
            self._wake.clear()
            self.resume_soon()
            await self._wake.wait()

    async def read(self) -> Any:
        """Return the next raw message, for handlers that exchange several messages per request.

        Raises:
            OSError: the connection has ended.
        """
        self.n_read += 1
        previous = self.handler
        read_once = ReadOnce(self.server.loop.create_future(), previous)
        self.handler = read_once
        try:
            return await read_once.future
        finally:
            if self.handler is read_once:
                self.handler = previous


class ReadOnce(EventHandler):
    """Sets ``future`` to the next message. ``Peer.read`` then restores the previous handler."""

    def __init__(self, future: asyncio.Future[Any], previous: EventHandler) -> None:
        self.future = future
        self._previous = previous

    def event(self, event: Any) -> None:
        if not self.future.done():
            self.future.set_result(event.value if type(event) is c.Value else event.message)

    def closed(self, reason: str) -> None:
        if not self.future.done():
            self.future.set_exception(ConnectionError(reason))
        self._previous.closed(reason)

    def capture(self, connection: RecordedConnection, recorded: RecordedState) -> None:
        self._previous.capture(connection, recorded)


class HandshakeHandler(EventHandler):
    """Waits for the handshake of an accepted connection, and checks the shared secret."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._timer = peer.server.loop.call_later(HANDSHAKE_SECONDS, self._timed_out)

    def event(self, event: Any) -> None:
        self._timer.cancel()
        secret = self._peer.server.secret
        if secret is not None:
            refusal = secret.refusal(event.remote, CONNECTOR)
            if refusal is not None:
                self._peer.comm.drop(refusal)
                return
        self._peer.server.recorder.admitted(self._peer.comm.number)
        self._peer.handler = RpcHandler(self._peer)
        self._peer.admit()

    def capture(self, connection: RecordedConnection, recorded: RecordedState) -> None:
        connection.is_admitted = False

    def closed(self, reason: str) -> None:
        self._timer.cancel()
        logger.debug("Connection from %s closed before handshake completed", self._peer.address)

    def _timed_out(self) -> None:
        self._peer.comm.drop(f"no handshake within {HANDSHAKE_SECONDS:.0f} s")


class RpcHandler(EventHandler):
    """Handles requests, one at a time and in order.

    While the peer does not read its replies, its connection is not read and its requests wait.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._waiting: deque[c.RequestReceived] = deque()
        self._unread = False
        self._event: Any = None
        self._request_id = 0
        self._task: asyncio.Future[Any] | None = None

    def event(self, event: Any) -> None:
        if type(event) is not c.RequestReceived:
            self._peer.comm.drop(f"expected a request, got {type(event.value).__name__}")
            return
        if self._task is not None or self._unread:
            self._waiting.append(event)
            if len(self._waiting) >= WAITING_REQUESTS_MAX:
                self._peer.pause_reading("requests")
            return
        self._run(event)

    def resumed(self) -> None:
        self._unread = False
        self._run_waiting()

    def capture(self, connection: RecordedConnection, recorded: RecordedState) -> None:
        task = self._task
        if task is not None:
            connection.requests.append(self._event)
            connection.request_id = self._request_id
            if self._request_id and task.done() and not task.cancelled() and not task.exception():
                recorded.replies[self._request_id] = task.result()
        connection.requests += self._waiting

    def closed(self, reason: str) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def _run_waiting(self) -> None:
        peer = self._peer
        while self._waiting and self._task is None and not self._unread and peer.handler is self:
            self._run(self._waiting.popleft())
        if not self._unread and len(self._waiting) < WAITING_REQUESTS_MAX:
            peer.resume_reading("requests")

    def _run(self, event: c.RequestReceived) -> None:
        peer = self._peer
        message = event.message
        kind = type(message)
        if kind is m.CloseRequest:
            if event.reply:
                peer.send("OK")
            peer.comm.close()
            return
        peer.server.rpc_counts[kind] += 1
        handler = peer.server.handlers.get(kind)
        recorder = peer.server.recorder
        previous = recorder.handling(peer.comm.number)
        try:
            if isinstance(message, m.InvalidMessage) and message.cls in REGISTRATIONS:
                result = self._refuse_registration(message)
            elif handler is None:
                result = self._handle_unregistered(message)
            else:
                result = handler(peer.server, message, peer)
        except Exception as error:
            result = self._error_reply(message, error)
        recorder.handling(previous)
        if asyncio.isfuture(result):
            self.wait_for(event, result, peer.server.driver.last_request_id)
        elif asyncio.iscoroutine(result):  # or a StockCoroutine of the facade
            self.wait_for(event, peer.server.loop.create_task(result))
        else:
            self._reply(event, result)

    def _handle_unregistered(self, message: Any) -> Any:
        """Return the reply to a request without a handler: of the core or a plugin.

        Raises:
            TypeError: the request is invalid.
            ValueError: paceline does not serve this op.
        """
        server = self._peer.server
        if isinstance(message, m.InvalidMessage):
            raise TypeError(f"{message.op}: {message.path}: {message.error}")
        if type(message) in server.core_types:
            return server.request(message, getattr(message, "client", None) or "")
        op = op_name(message)
        handlers = server.plugins.facade.handlers
        if isinstance(message, m.UnknownMessage) and handlers.is_added(op):
            return handlers.handle(op, message.raw, self._peer)
        if isinstance(message, m.UnknownMessage) and op not in TABLES["scheduler_rpc"]:
            logger.warning("No handler %s found in Scheduler", op)
            return None
        raise ValueError(f"paceline does not serve the op {op!r} yet")

    def _refuse_registration(self, message: m.InvalidMessage) -> NoReply:
        """Send the error to a worker or client whose registration is invalid.

        Both wait for an answer, although their requests do not ask for a reply.
        """
        peer = self._peer
        reason = f"{message.op}: {message.path}: {message.error}"
        logger.error("Refusing a registration from %s: %s", peer.address, reason)
        if message.cls is m.RegisterWorker:
            peer.send({"status": "error", "message": reason, "time": peer.server.now()})
            peer.comm.close()
        else:
            peer.comm.drop(reason)
        return NO_REPLY

    def wait_for(
        self, event: c.RequestReceived, task: asyncio.Future[Any], request_id: int = 0
    ) -> None:
        """Reply to a request with the result of `task`.

        ``request_id`` is that of the core if `task` is its reply.
        """
        self._event, self._request_id = event, request_id
        self._task = task
        task.add_done_callback(lambda done: self._done(event, done))

    def _done(self, event: c.RequestReceived, task: asyncio.Future[Any]) -> None:
        self._task = self._event = None
        if task.cancelled():  # a client cannot handle CancelledError; stock closes, too
            self._peer.comm.abort("the request was cancelled")
            return
        error = task.exception()
        result = task.result() if error is None else self._error_reply(event.message, error)
        self._reply(event, result)
        self._run_waiting()

    def _reply(self, event: c.RequestReceived, result: Any) -> None:
        peer = self._peer
        if event.reply and type(result) is not NoReply:
            try:
                peer.send(result)
            except Exception as error:
                peer.send(self._error_reply(event.message, error))
        peer.server.recorder.done(peer.comm.number, 1 + peer.n_read)
        peer.n_read = 0
        peer.comm.has_replied = False
        if event.close:
            peer.comm.close()
        elif peer.handler is self and not peer.can_write:
            self._unread = True
            self._peer.pause_reading("requests")
            peer.resume_soon()

    def _error_reply(self, message: Any, error: BaseException) -> Any:
        """Log ``error`` and return the reply for it.

        Return ``NO_REPLY`` after the connection ended, and for an error that ends the scheduler: it
        would end the event loop of the client too, and so block it.
        """
        if self._peer.closed or isinstance(error, SystemExit | KeyboardInterrupt):
            return NO_REPLY
        logger.error("Exception while handling op %s", op_name(message), exc_info=error)
        if isinstance(error, RemoteError):
            return error.reply  # of the worker, with an exception that the client can deserialize
        return errors.error_message(error, status="uncaught-error")
