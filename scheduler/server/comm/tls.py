"""The comm of ``tls://``.

An accepted socket has its TLS handshake first, in a task of its own with a deadline. If the
certificate is not accepted, the connection is closed, the reason is logged, and the server receives
no event.

Large frames are decrypted by OpenSSL directly into their own memory. Written data is passed to
OpenSSL in pieces, a few per wake-up, as the socket accepts it. All at once would keep a second,
encrypted copy in memory and block the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.protocol.compression import Buffer
from paceline.workers_compat.addressing import join_host_port
from paceline.workers_compat.security.tls_config import Tls, certificate_names

from .errors import FatalConnectError
from .tcp import JOIN_MAX_NBYTES, TcpBackend, TcpComm
from .transport import (
    WRITE_HIGH_WATER_NBYTES,
    WRITE_LOW_WATER_NBYTES,
    Comm,
    Listener,
    Transport,
)

logger = logging.getLogger("distributed.scheduler")

#: Time-out of the TLS handshake, seconds.
HANDSHAKE_SECONDS = 30.0
#: Time-out of the closing messages of TLS, seconds.
SHUTDOWN_SECONDS = 2.0
#: Bytes passed to OpenSSL in one call.
PIECE_NBYTES = 256 * 2**10
#: Bytes encrypted in one wake-up for one peer; takes about two milliseconds.
PUMP_NBYTES = 2 * 2**20
#: Hosts whose rejections are counted; the least recent one is removed first.
REFUSALS_MAX = 256
#: Interval in which rejections of one host for the same reason are logged once, seconds.
REFUSAL_SECONDS = 30.0

#: Why a peer without an accepted handshake was rejected.
CLOSED = "the peer closed the connection"
#: OpenSSL's errors for peers that do not use TLS.
NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})


class TlsComm(TcpComm):
    """A connection over an encrypted socket.

    Attributes:
        refusal: why the peer was rejected.
    """

    scheme = "tls"

    def __init__(self, owner: Transport, outgoing: bool, tls: Tls) -> None:
        super().__init__(owner, outgoing)
        self._tls = tls
        self._pieces: deque[memoryview] = deque()
        self._pieces_nbytes = 0
        self._blocked = False  # the socket's write buffer is full
        self._pumping = False  # `_pump` is scheduled
        self._slow = False  # `paused` was sent
        self._draining = False  # to be closed once the pieces are written
        self.refusal: str | None = CLOSED  # until the handshake is done

    # called by asyncio

    def connection_made(self, transport: Any) -> None:
        self.refusal = self._tls.refusal(certificate_names(transport.get_extra_info("peercert")))
        if self.refusal is None:
            super().connection_made(transport)
        else:
            self._closing = True
            transport.abort()

    def pause_writing(self) -> None:
        self._set_eof_timer()
        self._blocked = True
        self._update_slow()

    def resume_writing(self) -> None:
        self._stop_eof_timer()
        self._blocked = False
        self._pump()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget_pieces()
        super().connection_lost(error)

    # called by the server

    def write_out(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Pass data to OpenSSL: small data at once, large data in pieces."""
        if nbytes <= JOIN_MAX_NBYTES and not self._pieces:  # `flush` has joined it
            self._transport.write(buffers[0])
            return
        self._pieces += _pieces(buffers)
        self._pieces_nbytes += nbytes
        if not self._pumping:
            self._pump()

    def close_when_written(self) -> None:
        self._draining = bool(self._pieces)
        if not self._draining:
            super().close_when_written()

    def close_now(self) -> None:
        self._forget_pieces()
        super().close_now()

    @property
    def unwritten_nbytes(self) -> int:
        """See ``Comm``; includes what was not passed to OpenSSL yet."""
        return super().unwritten_nbytes + self._pieces_nbytes

    # large writes

    def _pump(self) -> None:
        """Pass data to OpenSSL as the socket accepts it, in this wake-up and later ones."""
        self._pumping = False
        allowed = PUMP_NBYTES
        while self._pieces and allowed > 0 and not self._blocked:
            piece = self._pieces.popleft()
            self._pieces_nbytes -= len(piece)
            allowed -= len(piece)
            self._transport.write(piece)
        if self._pieces and not self._blocked:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)
        self._update_slow()
        if self._draining and not self._pieces:
            self._draining = False
            self._transport.close()

    def _update_slow(self) -> None:
        """Send ``paused`` or ``resumed`` if that has changed."""
        if self._closing:
            return
        if not self._slow and (self._blocked or self._pieces_nbytes > WRITE_HIGH_WATER_NBYTES):
            self._slow = True
            self.events.paused()
        elif self._slow and not self._blocked and self._pieces_nbytes <= WRITE_LOW_WATER_NBYTES:
            self._slow = False
            self.events.resumed()

    def _forget_pieces(self) -> None:
        self._pieces.clear()
        self._pieces_nbytes = 0
        self._draining = False


def _pieces(buffers: Sequence[Buffer]) -> Iterator[memoryview]:
    """Yield views of the same bytes, of limited size."""
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        for start in range(0, len(view), PIECE_NBYTES):
            yield view[start : start + PIECE_NBYTES]


class TlsBackend(TcpBackend):
    """Listens and connects with ``tls://``."""

    scheme = "tls"

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._refusals = Refusals()

    async def listen(self, transport: Transport, host: str, port: int) -> Listener:
        if self._tls.listen is None:
            raise ValueError(no_certificates(f"tls://{join_host_port(host, port)}"))
        return await super().listen(transport, host, port)

    def new_comm(self, transport: Transport) -> TlsComm:
        return TlsComm(transport, False, self._tls)

    async def connect(self, transport: Transport, host: str, port: int) -> Comm:
        address = f"tls://{join_host_port(host, port)}"
        if self._tls.connect is None:
            raise FatalConnectError(no_certificates(address))
        comm = TlsComm(transport, True, self._tls)
        try:
            await asyncio.get_running_loop().create_connection(
                comm.protocol,
                host,
                port,
                ssl=self._tls.connect,
                server_hostname=self._tls.server_hostname or host,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except ssl.SSLError as error:
            raise FatalConnectError(f"cannot connect to {address}: {why(error)}") from error
        if comm.refusal == CLOSED:
            raise ConnectionError(f"cannot connect to {address}: {CLOSED}")
        if comm.refusal is not None:
            raise FatalConnectError(f"cannot connect to {address}: {comm.refusal}")
        return comm

    async def accept(self, transport: Transport, sock: socket.socket) -> None:
        """Open a comm on an accepted socket, or log why its peer is rejected."""
        try:
            host, port = sock.getpeername()[:2]
        except OSError:  # already closed
            sock.close()
            return
        comm = self.new_comm(transport)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                comm.protocol,
                sock,
                ssl=self._tls.listen,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:
            refusal: str | None = why(error)
        else:
            refusal = comm.refusal
        if refusal is not None:
            self._refusals.note(f"tls://{join_host_port(host, port)}", refusal)


class Refusals:
    """Logs rejected peers: each host's first rejection at once, later ones with a count."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def note(self, address: str, reason: str) -> None:
        """Record that the peer at `address` was rejected."""
        now = asyncio.get_running_loop().time()
        host = address.rpartition(":")[0]
        logged_at, count = self._seen.pop((host, reason), (now - REFUSAL_SECONDS, 0))
        if now - logged_at < REFUSAL_SECONDS:
            self._seen[(host, reason)] = (logged_at, count + 1)
            return
        self._seen[(host, reason)] = (now, 0)
        while len(self._seen) > REFUSALS_MAX:
            del self._seen[next(iter(self._seen))]
        logger.warning(
            "TLS handshake failed with remote %r: %s%s",
            address,
            reason,
            f" ({count} times more from this host before)" if count else "",
        )


def no_certificates(address: str) -> str:
    """Return the error text for TLS without certificates."""
    return (
        f"{address} needs certificates: give --tls-ca-file, --tls-cert and --tls-key, "
        "a Security object, or distributed.comm.tls.ca-file, .scheduler.cert and .scheduler.key "
        "in the configuration"
    )


def why(error: OSError) -> str:
    """Return why a handshake failed, with OpenSSL's own text at the end."""
    name = getattr(error, "reason", None) or ""
    text = str(error) or type(error).__name__
    if isinstance(error, ConnectionResetError) and not error.args:  # of the event loop
        return CLOSED
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message or text}"
    if name == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return f"it sent no certificate: {text}"
    if name in NOT_TLS:
        return f"it does not speak TLS (does it use tcp://?): {text}"
    if "ALERT" in name:
        return f"it rejected our certificate or TLS version: {text}"
    return text
