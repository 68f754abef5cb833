"""``ws://`` and ``wss://``: messages as stock says them over web sockets.

A message is a frame that holds the number of the others (eight bytes, little-endian), then these, each a binary web socket message.
Tornado holds the sockets. Where the port is that of the pages, its server is shared and the path ``/`` is both (as in stock).

Must not know: what frames mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import struct
from collections.abc import Sequence
from typing import Any

from paceline.workers_compat.security import Tls, certificate_names
from tornado import web
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.httpserver import HTTPServer as TornadoServer
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketHandler, websocket_connect

from .addresses import join_host_port
from .http.server import HttpServer
from .links import QueuedLink
from .seam import Buffer, Listening, PeerFacts
from .sockets import bind_sockets, bound, set_socket_options
from .tls import Refusals, no_certificates, why
from .transport import LISTEN_BACKLOG, Listener, Transport

logger = logging.getLogger("distributed.scheduler")

_COUNT = struct.Struct("<Q")
#: How long connecting may take before tornado gives up, seconds.
CONNECT_SECONDS = 20.0
#: The largest frame that is read: stock's peers cut what they send into less.
FRAME_MAX_NBYTES = 2**30


class WebSocketLink(QueuedLink):
    """One connection over a web socket.

    Args:
        socket: tornado's handler (accepted) or connection (dialled): ``write_message`` and ``close``.
        stream: its iostream.
    """

    def __init__(self, owner: Transport, socket: Any, stream: Any, facts: PeerFacts) -> None:
        super().__init__(owner, facts)
        self._socket = socket
        self._stream = stream
        self._frames: list[Any] = []
        self._missing = 0
        self._nbytes_in = 0

    async def send(self, frames: Sequence[Buffer]) -> None:
        try:
            self._socket.write_message(_COUNT.pack(len(frames)), binary=True)
            for frame in frames:
                written = self._socket.write_message(bytes(frame), binary=True)
                if self._stream.writing():
                    await written
        except (WebSocketClosedError, StreamClosedError) as error:
            raise ConnectionError(str(error) or "closed") from error

    def hang_up(self) -> None:
        self._socket.close()

    def cut(self) -> None:
        self._stream.close()

    def received(self, data: Any) -> None:
        """One web socket message."""
        if self._closing:
            return
        if not isinstance(data, bytes):
            self.drop("malformed frame: text where bytes belong")
        elif self._missing:
            self._nbytes_in += len(data)
            if self._nbytes_in > self._owner.limits.max_message_nbytes:
                self.drop(
                    f"malformed frame: a message of more than {self._owner.limits.max_message_nbytes} bytes"
                )
                return
            self._frames.append(data)
            self._missing -= 1
            if not self._missing:
                self._complete()
        else:
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        if len(data) != _COUNT.size:
            self.drop(f"malformed frame: a count of frames of {len(data)} bytes")
            return
        (count,) = _COUNT.unpack(data)
        if count > self._owner.limits.max_frames:
            self.drop(f"malformed frame: {count} frames in a message")
            return
        self._missing, self._frames, self._nbytes_in = count, [], 0
        if not count:
            self._complete()

    def _complete(self) -> None:
        frames, self._frames = self._frames, []
        self.message(frames)


class PeerHandler(WebSocketHandler):
    """An accepted web socket. Browsers' pages of other origins are refused by tornado."""

    def initialize(self, carrier: WebSocketCarrier, transport: Transport) -> None:
        self._carrier = carrier
        self._transport = transport
        self._link: WebSocketLink | None = None

    def open(self, *args: str, **kwargs: str) -> None:
        self.set_nodelay(True)
        assert self.ws_connection is not None
        stream: Any = getattr(self.ws_connection, "stream", None)
        facts = _facts(stream.socket, self._carrier.scheme, outgoing=False)
        refusal = self._carrier.refusal(facts)
        if refusal is not None:
            self.close(1008, "refused")
            return
        self._link = WebSocketLink(self._transport, self, stream, facts)
        _keep_alive(stream, self._transport)
        self._transport.connection_made(self._link)

    async def on_message(self, message: str | bytes) -> None:
        if self._link is not None:
            self._link.received(message)
            await self._link.may_read()

    def on_close(self) -> None:
        if self._link is not None:
            self._link.lost("closed by peer")

    @property
    def max_message_size(self) -> int:
        return FRAME_MAX_NBYTES


class WebSocketCarrier:
    """Listens and dials.

    Args:
        scheme: ``ws`` or ``wss``.
        tls: certificates, for ``wss``.
    """

    def __init__(self, scheme: str, tls: Tls) -> None:
        self.scheme = scheme
        self._tls = tls
        self._refusals = Refusals()
        self._readers: set[asyncio.Task[None]] = set()

    async def listen(self, transport: Transport, host: str, port: int) -> Listening:
        """See ``Transport.listen``."""
        if self.scheme == "wss" and self._tls.listen is None:
            raise ValueError(no_certificates(f"wss://{join_host_port(host, port)}"))
        server = TornadoServer(
            web.Application([("/.*", PeerHandler, self.arguments(transport))]),
            ssl_options=self._tls.listen if self.scheme == "wss" else None,
            max_buffer_size=FRAME_MAX_NBYTES,
        )
        sockets = bind_sockets(host, port)
        for sock in sockets:
            sock.listen(LISTEN_BACKLOG)
        server.add_sockets(sockets)
        return Listener([_Stopping(server)], self.scheme, *bound(sockets))

    def arguments(self, transport: Transport) -> dict[str, Any]:
        """What ``PeerHandler`` is made with."""
        return {"carrier": self, "transport": transport}

    def share(self, transport: Transport, http: HttpServer) -> Listening:
        """Peers come to ``/`` on the port of the pages.

        Raises:
            ValueError: the pages are encrypted and the scheme is not, or the other way round.
        """
        if http.tls or self.scheme != "ws":
            raise ValueError(
                f"{self.scheme}:// cannot share the port of the pages: give it another with --port"
            )
        http.application.serve_peers("/", PeerHandler, self.arguments(transport))
        return Listener([], self.scheme, http.address, http.port)

    def refusal(self, facts: PeerFacts) -> str | None:
        """Why a peer is refused, noted in the log; None where it is not."""
        refusal = self._tls.refusal(facts.names) if self.scheme == "wss" else None
        if refusal is not None:
            self._refusals.note(facts.peer_address, refusal)
        return refusal

    async def dial(self, transport: Transport, host: str, port: int) -> int:
        """See ``Transport.dial``."""
        address = f"{self.scheme}://{join_host_port(host, port)}"
        if self.scheme == "wss" and self._tls.dial is None:
            raise OSError(no_certificates(address))
        request = HTTPRequest(
            address,
            ssl_options=self._tls.dial if self.scheme == "wss" else None,
            connect_timeout=CONNECT_SECONDS,
        )
        try:
            socket = await websocket_connect(request, max_message_size=FRAME_MAX_NBYTES)
        except ssl.SSLError as error:
            raise ConnectionError(f"cannot connect to {address}: {why(error)}") from error
        except (HTTPClientError, StreamClosedError) as error:
            real = getattr(error, "real_error", None) or error
            raise ConnectionError(f"cannot connect to {address}: {real}") from error
        stream: Any = getattr(socket.protocol, "stream", None)
        facts = _facts(stream.socket, self.scheme, outgoing=True)
        refusal = self.refusal(facts)
        if refusal is not None:
            socket.close()
            raise ConnectionError(f"cannot connect to {address}: {refusal}")
        link = WebSocketLink(transport, socket, stream, facts)
        _keep_alive(stream, transport)
        transport.connection_made(link)
        reader = asyncio.get_running_loop().create_task(_read(link, socket), name="web socket")
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        return link.number


async def _read(link: WebSocketLink, socket: Any) -> None:
    """Take what comes on a connection that we dialled."""
    while True:
        await link.may_read()
        data = await socket.read_message()
        if data is None:
            link.lost("closed by peer")
            return
        link.received(data)


class _Stopping:
    """A tornado server, closed as asyncio's are."""

    def __init__(self, server: TornadoServer) -> None:
        self._server = server

    def close(self) -> None:
        """Accept nothing more."""
        self._server.stop()


def _facts(sock: Any, scheme: str, outgoing: bool) -> PeerFacts:
    peer, local = sock.getpeername(), sock.getsockname()
    certificate = sock.getpeercert() if scheme == "wss" else None
    return PeerFacts(
        peer_address=f"{scheme}://{join_host_port(str(peer[0]), int(peer[1]))}",
        local_address=f"{scheme}://{join_host_port(str(local[0]), int(local[1]))}",
        same_host=peer[0] == local[0],
        outgoing=outgoing,
        names=certificate_names(certificate),
    )


def _keep_alive(stream: Any, transport: Transport) -> None:
    with contextlib.suppress(OSError):  # a platform without one of them
        set_socket_options(stream.socket, transport.options)
