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
        comm: the comm, which is not connected yet.
    """

    def __init__(
        self,
        server: ServerApi,
        recorded: RecordedState,
        connection: RecordedConnection,
        comm: DurableComm,
    ) -> None:
        self.comm = comm
        self.peer = Peer(server, comm, connection.connection)
        self.peer.receive_spool = connection.receive_spool
        comm.events = self.peer
        self._server = server
        self._recorded = recorded
        self._connection = connection
        self._stream: WorkerStream | ClientStream | None = None
        self._fault = connection.fault
        if connection.kind:
            self._continue_stream(connection)
        elif connection.connection.phase == "handshake":
            self.peer.handler = HandshakeHandler(self.peer)
        else:
            self.peer.handler = RpcHandler(self.peer)
            if server.secret is not None and not connection.is_admitted:
                self._fault = "the scheduler process died before it had checked its handshake"

    def _continue_stream(self, connection: RecordedConnection) -> None:
        known: Any = {"worker": self._server.state.workers, "client": self._server.state.clients}
        name = connection.name
        latest = self._recorded.streams.get((connection.kind, name))
        if latest is None or name not in known[connection.kind]:
            self._fault = "its peer was removed"
        elif latest is not connection:
            self._fault = "its peer has registered again"
        else:
            stream_class = WorkerStream if connection.kind == "worker" else ClientStream
            self._stream = self.peer.handler = stream_class(self.peer, name)

    def begin(self) -> None:
        """Send what was not sent, and handle what was not handled."""
        connection = self._connection
        if not connection.written:
            self.comm.write(connection.connection.start())
        if self._fault:
            logger.warning("Closing the connection to %s: %s", self.peer.address, self._fault)
            if self._stream is not None:
                self._stream.end()  # before other turns
            self.comm.abort(self._fault)
        elif connection.is_closed:
            self._end_stream(connection)
        elif self._stream is not None:
            self._stream.continue_from(
                list(connection.messages), list(connection.unwritten), connection.n_written
            )
        elif connection.requests:
            self._continue_requests(connection)

    def _end_stream(self, connection: RecordedConnection) -> None:
        """Handle the last messages of a stream that has ended, and remove its peer."""
        assert self._stream is not None
        self.peer.closed = True  # nothing is written
        self._stream.continue_from(list(connection.messages), [], connection.n_written)
        self.peer.connection_lost("closed before the scheduler process died")

    async def connect(self, sock: socket.socket) -> None:
        """Connect the comm to its socket, and complete the peer."""
        await self._server.loop.connect_accepted_socket(self.comm.protocol, sock)
        if self.peer.connection.phase != "handshake" and not self.peer.closed:
            self.peer.admit()
        self.peer.apply_pauses()

    def _continue_requests(self, connection: RecordedConnection) -> None:
        """Reply to the requests that are not done."""
        handler = self.peer.handler
        assert isinstance(handler, RpcHandler)
        receive = connection.connection.receive_frames
        try:
            for number, request in enumerate(connection.requests):
                for event in receive(request) if type(request) is list else [request]:
                    if number or not self._continue_request(connection, handler, event):
                        self.peer.handler.event(event)  # of a stream after a registration
        except RemoteProtocolError as error:
            self.comm.drop(str(error))

    def _continue_request(
        self, connection: RecordedConnection, handler: RpcHandler, event: Any
    ) -> bool:
        """Continue the oldest request. Return False if it is to be handled from its start."""
        message = event.message if type(event) is RequestReceived else None
        request_id = connection.request_id
        if request_id:
            replies = self._server.driver.replies
            handler.wait_for(event, replies.add(request_id), request_id)
            if request_id in self._recorded.replies:
                replies.resolve(request_id, self._recorded.replies[request_id])
        elif connection.has_replied and type(message) is m.RegisterNanny:
            started = nanny_started(self._server, message.address, self.peer)
            handler.wait_for(event, self._server.loop.create_task(started))
        elif type(message) is m.Feed:
            return False  # its peer reads any number of replies
        elif connection.has_replied or not _is_repeatable(message):
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
