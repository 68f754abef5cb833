"""Continue a connection that a scheduler process before this one has accepted."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any

from paceline.protocol import messages as m
from paceline.protocol.connection import RequestReceived
from paceline.protocol.errors import RemoteProtocolError
from paceline.scheduler.server.peers.client_stream import ClientStream
from paceline.scheduler.server.peers.peer import HandshakeHandler, Peer, RpcHandler
from paceline.scheduler.server.peers.streams import WorkerStream
from paceline.scheduler.server.requests.plugins import nanny_started

if TYPE_CHECKING:
    from paceline.scheduler.server.durable.log.durable_comm import DurableComm
    from paceline.scheduler.server.server_api import ServerApi

    from .recorded_connection import RecordedConnection
    from .replay import RecordedState

logger = logging.getLogger("distributed.scheduler")

#: Ops of workers and nannies that have no effects. Others may have some.
READ_ONLY_OPS = frozenset({"get_logs", "get_story", "identity", "ping", "versions"})


class Adoption:
    """Continues one connection: creates its peer and handler, then handles what was read.

    Args:
        recorded: the state of the scheduler that another process has left.
        known: what is known of the connection.
        comm: the comm, which is not connected yet.
    """

    def __init__(
        self,
        server: ServerApi,
        recorded: RecordedState,
        known: RecordedConnection,
        comm: DurableComm,
    ) -> None:
        self.comm = comm
        self.peer = Peer(server, comm, known.connection)
        self.peer.receive_spool = known.receive_spool
        comm.events = self.peer
        self._server = server
        self._recorded = recorded
        self._known = known
        self._stream: WorkerStream | ClientStream | None = None
        self._fault = known.fault
        if known.kind:
            self._continue_stream(known)
        elif known.connection.phase == "handshake":
            self.peer.handler = HandshakeHandler(self.peer)
        else:
            self.peer.handler = RpcHandler(self.peer)
            if server.secret is not None and not known.is_admitted:
                self._fault = "the scheduler process died before it had checked its handshake"

    def _continue_stream(self, known: RecordedConnection) -> None:
        state, name = self._server.state, known.name
        registered: Any = state.workers if known.kind == "worker" else state.clients
        latest = self._recorded.streams.get((known.kind, name))
        if latest is None or name not in registered:
            self._fault = "its peer was removed"
        elif latest is not known:
            self._fault = "its peer has registered again"
        else:
            stream_class = WorkerStream if known.kind == "worker" else ClientStream
            self._stream = self.peer.handler = stream_class(self.peer, name)

    def begin(self) -> None:
        """Send what was not sent, and handle what was not handled."""
        known = self._known
        if not known.written:
            self.comm.write(known.connection.start())
        if self._fault:
            logger.warning("Closing the connection to %s: %s", self.peer.address, self._fault)
            if self._stream is not None:
                self._stream.end()  # before other turns
            self.comm.abort(self._fault)
        elif known.is_closed:
            self._end_stream(known)
        elif self._stream is not None:
            self._stream.continue_from(list(known.messages), list(known.unwritten), known.n_written)
        elif known.requests:
            self._continue_requests(known)

    def _end_stream(self, known: RecordedConnection) -> None:
        """Handle the last messages of a stream that has ended, and remove its peer."""
        assert self._stream is not None
        self.peer.closed = True  # nothing is written
        self._stream.continue_from(list(known.messages), [], known.n_written)
        self.peer.connection_lost("closed before the scheduler process died")

    async def connect(self, sock: socket.socket) -> None:
        """Connect the comm to its socket, and complete the peer."""
        await self._server.loop.connect_accepted_socket(self.comm.protocol, sock)
        if self.peer.connection.phase != "handshake" and not self.peer.closed:
            self.peer.admit()
        self.peer.apply_pauses()
        if self._stream is not None:
            self.peer.resume_soon()  # the worker may have been backpressured

    def _continue_requests(self, known: RecordedConnection) -> None:
        """Reply to the requests that are not done."""
        handler = self.peer.handler
        assert isinstance(handler, RpcHandler)
        receive = known.connection.receive_frames
        try:
            for number, request in enumerate(known.requests):
                for event in receive(request) if type(request) is list else [request]:
                    if number or not self._continue_request(known, handler, event):
                        self.peer.handler.event(event)  # of a stream after a registration
        except RemoteProtocolError as error:
            self.comm.drop(str(error))

    def _continue_request(self, known: RecordedConnection, handler: RpcHandler, event: Any) -> bool:
        """Continue the oldest request. Return False if it is to be handled from its start."""
        message = event.message if type(event) is RequestReceived else None
        request_id = known.request_id
        if request_id:
            replies = self._server.driver.replies
            handler.wait_for(event, replies.add(request_id), request_id)
            if request_id in self._recorded.replies:
                replies.resolve(request_id, self._recorded.replies[request_id])
        elif known.has_replied and type(message) is m.RegisterNanny:
            started = nanny_started(self._server, message.address, self.peer)
            handler.wait_for(event, self._server.loop.create_task(started))
        elif type(message) is m.Feed:
            return False  # its peer reads any number of replies
        elif known.has_replied or not _is_repeatable(message):
            self.comm.abort(f"the request {message!r:.50} cannot be repeated")
        else:
            return False
        return True


def _is_repeatable(message: Any) -> bool:
    """Return whether a request that was under way can be handled again without further effects.

    If not, its connection is closed, so that the peer receives an error at once.
    """
    if isinstance(message, m.Broadcast | m.Proxy):
        return message.msg.get("op") in READ_ONLY_OPS
    return type(message) is not m.RunFunction
