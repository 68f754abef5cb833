"""Listen and connect with ``ws://`` and ``wss://``, compatible with stock.

Tornado owns the sockets. If the port is that of the HTTP pages, its server is shared, and the path
``/`` serves both (as in stock).
"""

from __future__ import annotations

import logging
import ssl
from typing import Any

from paceline.scheduler.server.http.server import HttpServer
from paceline.workers_compat.addressing import join_host_port
from paceline.workers_compat.security.http_connections import ConnectionServer, HttpLimits
from paceline.workers_compat.security.tls_config import Tls
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.iostream import StreamClosedError
from tornado.web import Application
from tornado.websocket import WebSocketHandler, websocket_connect

from .accepting import HANDSHAKES_MAX, SocketAcceptor, SocketListener
from .errors import FatalConnectError
from .sockets import PeerFacts, bind_sockets, bound, set_socket_options, socket_facts
from .tls import HANDSHAKE_SECONDS, Refusals, no_certificates, why
from .transport import Comm, Listener, Transport
from .websocket_comm import FRAME_MAX_NBYTES, WebSocketComm

logger = logging.getLogger("distributed.scheduler")

#: Time-out of connecting, seconds.
CONNECT_SECONDS = 20.0
#: The largest body of an HTTP request on the port of web sockets. Requests that open a web socket
#: have no body.
BODY_MAX_NBYTES = 2**16


class PeerHandler(WebSocketHandler):
    """An accepted web socket. Tornado rejects browsers' pages of other origins."""

    def initialize(self, backend: WebSocketBackend, transport: Transport) -> None:
        self._backend = backend
        self._transport = transport
        self._comm: WebSocketComm | None = None

    def open(self, *args: str, **kwargs: str) -> None:
        self.set_nodelay(True)
        assert self.ws_connection is not None
        stream: Any = getattr(self.ws_connection, "stream", None)
        facts = _facts(stream.socket, self._backend.scheme, outgoing=False)
        refusal = self._backend.refusal(facts)
        if refusal is not None:
            self.close(1008, "refused")
            return
        stream.exempt()  # the limits of HTTP do not apply after the upgrade
        self._comm = WebSocketComm(self._transport, self, stream, facts)
        set_socket_options(stream.socket)
        self._transport.connection_made(self._comm)

    async def on_message(self, message: str | bytes) -> None:
        if self._comm is not None:
            self._comm.received(message)
            await self._comm.may_read()

    def on_close(self) -> None:
        if self._comm is not None:
            self._comm.lost("closed by peer")

    @property
    def max_message_size(self) -> int:
        return handshake_frame_nbytes(self._transport)


def handshake_frame_nbytes(transport: Transport) -> int:
    """Return the size of the largest frame that is read before ``WebSocketComm.admit``."""
    limits = transport.handshake_limits
    return limits.max_message_nbytes if limits is not None else FRAME_MAX_NBYTES


class WebSocketBackend:
    """Listens and connects with ``ws`` or ``wss``."""

    def __init__(self, scheme: str, tls: Tls) -> None:
        self.scheme = scheme
        self._tls = tls
        self._refusals = Refusals()

    async def listen(self, transport: Transport, host: str, port: int) -> Listener:
        if self.scheme == "wss" and self._tls.listen is None:
            raise ValueError(no_certificates(f"wss://{join_host_port(host, port)}"))
        server = ConnectionServer(
            Application([("/.*", PeerHandler, self.arguments(transport))]),
            HttpLimits(
                connections=HANDSHAKES_MAX,
                idle_seconds=HANDSHAKE_SECONDS,
                body_nbytes=BODY_MAX_NBYTES,
            ),
            self._tls.listen if self.scheme == "wss" else None,
            buffer_nbytes=FRAME_MAX_NBYTES,
        )
        sockets = bind_sockets(host, port)
        listening = [SocketAcceptor(sock, server.serve) for sock in sockets]
        return SocketListener(listening, self.scheme, *bound(sockets))

    def arguments(self, transport: Transport) -> dict[str, Any]:
        """Return the arguments of ``PeerHandler``."""
        return {"backend": self, "transport": transport}

    def share(self, transport: Transport, http: HttpServer) -> Listener:
        """Accept peers at ``/`` on the port of the HTTP pages.

        Raises:
            ValueError: the pages are encrypted and the scheme is not, or the other way round.
        """
        if http.tls or self.scheme != "ws":
            raise ValueError(
                f"{self.scheme}:// cannot share the port of the pages: give it another with --port"
            )
        http.application.serve_peers(PeerHandler, self.arguments(transport))
        return SocketListener([], self.scheme, http.address, http.port)

    def refusal(self, facts: PeerFacts) -> str | None:
        """Return why a peer is rejected, and log it; None if it is accepted."""
        refusal = self._tls.refusal(facts.names) if self.scheme == "wss" else None
        if refusal is not None:
            self._refusals.note(facts.peer_address, refusal)
        return refusal

    async def connect(self, transport: Transport, host: str, port: int) -> Comm:
        address = f"{self.scheme}://{join_host_port(host, port)}"
        if self.scheme == "wss" and self._tls.connect is None:
            raise FatalConnectError(no_certificates(address))
        request = HTTPRequest(
            address,
            ssl_options=self._tls.connect if self.scheme == "wss" else None,
            connect_timeout=CONNECT_SECONDS,
        )
        try:
            socket = await websocket_connect(
                request, max_message_size=handshake_frame_nbytes(transport)
            )
        except ssl.SSLError as error:
            raise FatalConnectError(f"cannot connect to {address}: {why(error)}") from error
        except (HTTPClientError, StreamClosedError) as error:
            real = getattr(error, "real_error", None) or error
            raise ConnectionError(f"cannot connect to {address}: {real}") from error
        stream: Any = getattr(socket.protocol, "stream", None)
        facts = _facts(stream.socket, self.scheme, outgoing=True)
        refusal = self.refusal(facts)
        if refusal is not None:
            socket.close()
            raise FatalConnectError(f"cannot connect to {address}: {refusal}")
        comm = WebSocketComm(transport, socket, stream, facts)
        set_socket_options(stream.socket)
        transport.connection_made(comm)
        comm.run_task(_read(comm, socket))
        return comm


async def _read(comm: WebSocketComm, socket: Any) -> None:
    """Process messages of an outgoing connection."""
    while True:
        await comm.may_read()
        data = await socket.read_message()
        if data is None:
            comm.lost("closed by peer")
            return
        comm.received(data)


def _facts(sock: Any, scheme: str, outgoing: bool) -> PeerFacts:
    certificate = sock.getpeercert() if scheme == "wss" else None
    return socket_facts(sock.getpeername(), sock.getsockname(), certificate, scheme, outgoing)
