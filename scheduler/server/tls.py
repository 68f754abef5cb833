"""``tls://``: connections that show certificates before they say anything.

A socket that was accepted has its TLS handshake first, in a task of its own and with a deadline; one whose certificate does not
do is hung up on with a line in the log that says why, and nobody above the seam hears of it.

Large frames are received straight into their own memory: OpenSSL decrypts into it. What is written goes to OpenSSL in pieces, a few
a wake-up, as much as the socket takes: all at once would hold a second, encrypted copy of it in memory and stall the loop.

Must not know: what frames mean, where certificates come from.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from paceline.workers_compat.security import Tls, certificate_names

from .addresses import join_host_port
from .seam import WRITE_HIGH_WATER_NBYTES, WRITE_LOW_WATER_NBYTES, Buffer, Listening
from .sockets import bind_sockets, bound
from .transport import (
    JOIN_MAX_NBYTES,
    LISTEN_BACKLOG,
    Listener,
    SocketConnection,
    Transport,
)

logger = logging.getLogger("distributed.scheduler")

#: A peer that has not shown its certificate after so many seconds is hung up on.
HANDSHAKE_SECONDS = 30.0
#: How long a peer may take to say goodbye in TLS's own words, seconds.
SHUTDOWN_SECONDS = 2.0
#: Sockets whose handshake is under way; those beyond are hung up on, and will come again.
HANDSHAKES_MAX = 4096
#: Connections accepted in one wake-up: each costs a millisecond or two of arithmetic soon after.
ACCEPTS_MAX = 32
#: How long nothing is accepted after the system refused, seconds.
ACCEPT_AGAIN_SECONDS = 1.0
#: What OpenSSL is given at a time.
PIECE_NBYTES = 256 * 2**10
#: What is encrypted in one wake-up, for one peer: about two milliseconds' worth.
PUMP_NBYTES = 2 * 2**20
#: Hosts whose refusals are counted; the one longest unseen makes room.
REFUSALS_MAX = 256
#: One host's refusals for the same reason get one line in so many seconds.
REFUSAL_SECONDS = 30.0

#: What peers that do not speak TLS make of it, as OpenSSL says it.
NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})


class TlsConnection(SocketConnection):
    """One socket, encrypted."""

    __slots__ = (
        "_blocked",
        "_draining",
        "_pieces",
        "_pieces_nbytes",
        "_pumping",
        "_slow",
        "_tls",
        "refusal",
    )

    scheme = "tls"

    def __init__(self, owner: Transport, outgoing: bool, tls: Tls) -> None:
        super().__init__(owner, outgoing)
        self._tls = tls
        self._pieces: deque[memoryview] = deque()
        self._pieces_nbytes = 0
        self._blocked = False  # the socket has more than it takes
        self._pumping = False  # a later wake-up goes on
        self._slow = False  # the sink was told so
        self._draining = False  # closed once the pieces are written
        self.refusal: str | None = None  # why nobody was told of it

    @property
    def is_open(self) -> bool:
        """It was told upwards."""
        return self._transport is not None

    # what asyncio calls

    def connection_made(self, transport: Any) -> None:
        self.refusal = self._tls.refusal(certificate_names(transport.get_extra_info("peercert")))
        if self.refusal is None:
            super().connection_made(transport)
        else:
            self._closing = True
            transport.abort()

    def pause_writing(self) -> None:
        self._blocked = True
        self._tell()

    def resume_writing(self) -> None:
        self._blocked = False
        self._pump()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget_pieces()
        super().connection_lost(error)

    # what the owner calls

    def flush(self) -> None:
        self._dirty = False
        out = self._out
        if not out or self._transport is None:
            return
        self._out = []
        nbytes = sum(map(len, out))
        if nbytes <= JOIN_MAX_NBYTES and not self._pieces:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            return
        self._pieces += _pieces(out)
        self._pieces_nbytes += nbytes
        if not self._pumping:
            self._pump()

    def close(self) -> None:
        if self._closing:
            return
        self.flush()
        if not self._pieces:
            super().close()
            return
        self._closing = self._draining = True
        self._reason = self._reason or "closed"

    def abort(self, reason: str) -> None:
        self._forget_pieces()
        super().abort(reason)

    @property
    def transport(self) -> Any:
        return self

    def is_reading(self) -> bool:
        """As asyncio's transports say it."""
        return bool(self._transport.is_reading())

    def pause_reading(self) -> None:
        """As asyncio's transports do it."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As asyncio's transports do it."""
        self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        """As asyncio's transports say it, with what OpenSSL was not given yet."""
        return int(self._transport.get_write_buffer_size()) + self._pieces_nbytes

    # large writes

    def _pump(self) -> None:
        """Give OpenSSL what the socket is likely to take, in this wake-up and later ones."""
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
        self._tell()
        if self._draining and not self._pieces:
            self._draining = False
            self._transport.close()

    def _tell(self) -> None:
        """Say upwards whether the peer reads slowly, when that has changed."""
        if self._closing:
            return
        if not self._slow and (self._blocked or self._pieces_nbytes > WRITE_HIGH_WATER_NBYTES):
            self._slow = True
            self._owner.sink.paused(self._number)
        elif self._slow and not self._blocked and self._pieces_nbytes <= WRITE_LOW_WATER_NBYTES:
            self._slow = False
            self._owner.sink.resumed(self._number)

    def _forget_pieces(self) -> None:
        self._pieces.clear()
        self._pieces_nbytes = 0
        self._draining = False


def _pieces(buffers: Sequence[Buffer]) -> Iterator[memoryview]:
    """The same bytes, uncopied, in pieces of a size."""
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        for start in range(0, len(view), PIECE_NBYTES):
            yield view[start : start + PIECE_NBYTES]


class TlsCarrier:
    """Listens and dials ``tls://``.

    Args:
        tls: certificates, and who is let in.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._refusals = Refusals()
        self._handshakes: set[asyncio.Task[None]] = set()

    async def listen(self, transport: Transport, host: str, port: int) -> Listening:
        """See ``Transport.listen``."""
        if self._tls.listen is None:
            raise ValueError(no_certificates(f"tls://{join_host_port(host, port)}"))
        sockets = bind_sockets(host, port)
        accepting = [
            Accepting(sock, lambda sock: self._accepted(transport, sock)) for sock in sockets
        ]
        return Listener(accepting, "tls", *bound(sockets))

    async def dial(self, transport: Transport, host: str, port: int) -> int:
        """See ``Transport.dial``."""
        address = f"tls://{join_host_port(host, port)}"
        if self._tls.dial is None:
            raise OSError(no_certificates(address))
        connection = TlsConnection(transport, True, self._tls)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                host,
                port,
                ssl=self._tls.dial,
                server_hostname=self._tls.server_hostname or host,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except ssl.SSLError as error:
            raise ConnectionError(f"cannot connect to {address}: {why(error)}") from error
        if not connection.is_open:
            raise ConnectionError(
                f"cannot connect to {address}: {connection.refusal or 'it hung up'}"
            )
        return connection.number

    def _accepted(self, transport: Transport, sock: socket.socket) -> None:
        if len(self._handshakes) >= HANDSHAKES_MAX:
            sock.close()
            return
        task = asyncio.get_running_loop().create_task(
            self._greet(transport, sock), name="tls handshake"
        )
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _greet(self, transport: Transport, sock: socket.socket) -> None:
        try:
            host, port = sock.getpeername()[:2]
        except OSError:  # gone already
            sock.close()
            return
        address = f"tls://{join_host_port(host, port)}"
        connection = TlsConnection(transport, False, self._tls)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._tls.listen,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:
            self._refusals.note(address, why(error))
        else:
            if not connection.is_open:
                self._refusals.note(address, connection.refusal or "it hung up")


class Accepting:
    """A listening socket, and what is done with those who come.

    Args:
        sock: bound, not listening yet.
        take: given each accepted socket.
    """

    def __init__(self, sock: socket.socket, take: Callable[[socket.socket], None]) -> None:
        self._sock = sock
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._closed = False
        sock.listen(LISTEN_BACKLOG)
        self._loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more files, for now
                logger.error("Cannot accept connections for %s s: %s", ACCEPT_AGAIN_SECONDS, error)
                self._loop.remove_reader(self._sock)
                self._loop.call_later(ACCEPT_AGAIN_SECONDS, self._again)
                return
            sock.setblocking(False)
            self._take(sock)

    def _again(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._sock, self._readable)

    def close(self) -> None:
        """Accept nothing more."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._sock)
            self._sock.close()


class Refusals:
    """Says in the log who was refused and why: each host's first time, then now and again with a count."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def note(self, address: str, reason: str) -> None:
        """The peer with this address was refused."""
        now = asyncio.get_running_loop().time()
        host = address.rpartition(":")[0]
        said_at, count = self._seen.pop((host, reason), (now - REFUSAL_SECONDS, 0))
        if now - said_at < REFUSAL_SECONDS:
            self._seen[(host, reason)] = (said_at, count + 1)
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
    """What to tell somebody who asks for TLS and gave no certificates."""
    return (
        f"{address} needs certificates: give --tls-ca-file, --tls-cert and --tls-key, a Security object, "
        "or distributed.comm.tls.ca-file, .scheduler.cert and .scheduler.key in the configuration"
    )


def why(error: OSError) -> str:
    """What went wrong in a handshake, for people; OpenSSL's own words at the end."""
    name = getattr(error, "reason", None) or ""
    text = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message or text}"
    if name == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return f"it showed no certificate: {text}"
    if name in NOT_TLS:
        return f"it does not speak TLS (does it use tcp://?): {text}"
    if "ALERT" in name:
        return f"it does not accept what we showed: {text}"
    return text
