"""A proxy that forwards bytes unchanged between peers and decodes copies of them.

Forwarding has priority: data is forwarded before it is decoded, and messages are decoded in slices
between reads (``SLICE_SECONDS``). Reading is paused only if more than ``WAITING_MAX_NBYTES`` of
messages wait for decoding, to limit memory. A peer that reads slowly slows down its sender, as
without the proxy.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from paceline.protocol.catalogue import Direction
from paceline.protocol.checking import Violation
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.observer import ObservedMessage, Observer, Way
from paceline.protocol.sniffing import SniffingFrameReader
from paceline.workers_compat.addressing import join_host_port, split_address, split_host_port
from paceline.workers_compat.scalars import read_scalar

logger = logging.getLogger("paceline.wiretap")

#: Time for which messages are decoded before other callbacks of the event loop may run.
SLICE_SECONDS: Final = 0.002
#: Reading is paused while more than this waits for decoding.
WAITING_MAX_NBYTES: Final = 64 * 2**20
#: Memory of a waiting message in addition to its frames, bytes, so that small messages count, too.
WAITING_OVERHEAD_NBYTES: Final = 500
#: Data that waits to be written to a peer before reading from the other is paused.
WRITE_HIGH_WATER_NBYTES: Final = 2**20
#: Timeout of connecting to the server, seconds.
CONNECT_SECONDS: Final = 30.0
#: Interval of attempts to connect, seconds.
RETRY_SECONDS: Final = 0.2
#: Maximum number of connections that wait to be accepted.
LISTEN_BACKLOG: Final = 2048


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM format, as in ``distributed.comm.tls``.

    Attributes:
        ca_file: trusted certificates.
        cert: certificate of the proxy, for both sides.
        key: its private key; None if it is in ``cert``.
    """

    ca_file: str
    cert: str
    key: str | None = None

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """Return a context like stock's.

        Both ends need certificates, and host names are not checked.

        Raises:
            OSError: a file cannot be read or is invalid.
        """
        context = ssl.create_default_context(purpose=purpose, cafile=self.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = False
        context.load_cert_chain(self.cert, self.key)
        return context


#: Called with the connection, the time (seconds since the epoch) and each message.
MessageCallback = Callable[["TappedConnection", float, ObservedMessage], None]


class TappedConnection:
    """A connection through the proxy.

    Attributes:
        number: number of the connection, from 1.
        address: address of the peer that connected.
        near, far: sockets of the peer and of the server.
        observer: decodes its messages.
    """

    __slots__ = ("_readers", "_unreadable", "address", "far", "near", "number", "observer", "tap")

    def __init__(self, tap: Wiretap, number: int, serves: Sequence[Direction]) -> None:
        self.tap = tap
        self._readers: dict[Way, SniffingFrameReader] = {
            "up": SniffingFrameReader(),
            "down": SniffingFrameReader(),
        }
        self._unreadable: set[Way] = set()
        self.number = number
        self.address = ""
        self.observer = Observer(serves, read_scalar=read_scalar)
        self.near: _End | None = None
        self.far: _End | None = None

    def add_data(self, way: Way, data: bytes) -> None:
        """Queue the messages in bytes that were forwarded."""
        if way in self._unreadable:
            return
        try:
            messages = self._readers[way].feed(data)
        except RemoteProtocolError as error:
            self._unreadable.add(way)
            violation = Violation(
                "unreadable", "", "$", f"{error}; the rest of this direction is not checked"
            )
            self.tap.queue_message(
                self, ObservedMessage(way, "unreadable", "", None, None, 0, 0, [violation]), 0
            )
            return
        for frames in messages:
            self.tap.queue_message(self, (way, frames), sum(map(len, frames)))

    def pause(self, paused: bool) -> None:
        """Pause or resume reading on both sides."""
        for end in (self.near, self.far):
            if end is not None:
                end.pause("decoding", paused)


class _End(asyncio.Protocol):
    """One of the two sockets of a connection.

    Args:
        tapped: the connection.
        way: direction of the messages that arrive on this socket.
    """

    def __init__(self, tapped: TappedConnection, way: Way) -> None:
        self._tapped = tapped
        self._way: Way = way
        self._pause_reasons: set[str] = set()
        self.transport: Any = None
        self.other: _End | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_NBYTES)
        if self._pause_reasons:
            self._apply_pause()

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)
        self._tapped.add_data(self._way, data)

    def eof_received(self) -> bool:
        other = self.other
        if other is None or other.transport is None or not other.transport.can_write_eof():
            return False
        other.transport.write_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()
        self._tapped.tap.lost(self._tapped)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.pause("writing", True)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.pause("writing", False)

    def pause(self, reason: str, paused: bool) -> None:
        """Pause or resume reading. Reading is paused while there is at least one reason."""
        before = bool(self._pause_reasons)
        if paused:
            self._pause_reasons.add(reason)
        else:
            self._pause_reasons.discard(reason)
        if before != bool(self._pause_reasons) and self.transport is not None:
            self._apply_pause()

    def _apply_pause(self) -> None:
        if self.transport.is_closing():
            return
        if self._pause_reasons:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


class Wiretap:
    """Listens, forwards, and calls an observer with each message. An async context manager.

    Args:
        listen, forward: addresses, ``tcp://host:port`` or ``tls://host:port``; port 0 listens on a
            free one.
        observer: called with each message.
        tls: required if one of the addresses is ``tls``.
        serves: tables of requests that the server handles.

    Attributes:
        address: listening address, with the actual port.
        n_connections: number of connections so far.
    """

    def __init__(
        self,
        listen: str,
        forward: str,
        observer: MessageCallback,
        *,
        tls: TlsFiles | None = None,
        serves: Sequence[Direction] = ("scheduler_rpc",),
    ) -> None:
        self._listen, self._forward = listen, forward
        self._tls = tls
        self._observer = observer
        self._serves = tuple(serves)
        self._waiting: deque[tuple[TappedConnection, float, Any, int]] = deque()
        self._waiting_nbytes = 0
        self._paused = False
        self._scheduled = False
        self._tapped: set[TappedConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None
        self.address = ""
        self.n_connections = 0

    async def __aenter__(self) -> Wiretap:
        """Start listening.

        Raises:
            OSError: the address cannot be bound, or a TLS file cannot be read.
            ValueError: an address is invalid.
        """
        self._loop = asyncio.get_running_loop()
        scheme, _ = split_address(self._listen)
        host, port = split_host_port(self._listen)
        self._far = split_host_port(self._forward)
        self._far_context = self._context(self._forward, ssl.Purpose.SERVER_AUTH)
        self._server = await self._loop.create_server(
            self._accept,
            host or None,
            port,
            ssl=self._context(self._listen, ssl.Purpose.CLIENT_AUTH),
            backlog=LISTEN_BACKLOG,
        )
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"{scheme}://{join_host_port(host or '0.0.0.0', port)}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close all connections, and decode the remaining messages."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connecting):
            task.cancel()
        for tapped in list(self._tapped):
            for end in (tapped.near, tapped.far):
                if end is not None and end.transport is not None:
                    end.transport.abort()
        await asyncio.sleep(0)
        while self._waiting:
            self._decode()

    def _context(self, address: str, purpose: ssl.Purpose) -> ssl.SSLContext | None:
        scheme, _ = split_address(address)
        if scheme == "tcp":
            return None
        if scheme != "tls":
            raise ValueError(f"cannot tap {scheme}://: tcp and tls only")
        if self._tls is None:
            raise ValueError(f"{address} needs --tls-ca-file and --tls-cert")
        return self._tls.context(purpose)

    def _accept(self) -> asyncio.Protocol:
        self.n_connections += 1
        tapped = TappedConnection(self, self.n_connections, self._serves)
        near = _Accepted(tapped, "up")
        near.pause("connecting", True)
        tapped.near = near
        self._tapped.add(tapped)
        return near

    def accepted(self, tapped: TappedConnection) -> None:
        """Connect to the server for a peer that has connected."""
        task = self._loop.create_task(self._connect(tapped))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, tapped: TappedConnection) -> None:
        near = tapped.near
        assert near is not None
        far = tapped.far = _End(tapped, "down")
        far.other = near
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._reach(far, near)
        except OSError as error:  # including TimeoutError
            level = logging.DEBUG if near.transport.is_closing() else logging.WARNING
            logger.log(
                level, "Cannot connect to %s: %s", self._forward, error or type(error).__name__
            )
            near.transport.abort()
            return
        near.other = far
        if near.transport.is_closing():
            far.transport.close()
        near.pause("connecting", False)

    async def _reach(self, far: _End, near: _End) -> None:
        """Connect ``far`` to the server; while it refuses, retry as long as the peer is connected.

        Raises:
            OSError: the server cannot be reached.
        """
        while True:
            try:
                await self._loop.create_connection(lambda: far, *self._far, ssl=self._far_context)
                return
            except ConnectionRefusedError:
                if near.transport.is_closing():
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def lost(self, tapped: TappedConnection) -> None:
        """Forget a connection, one of whose sockets is closed."""
        self._tapped.discard(tapped)

    # decoding

    def queue_message(self, tapped: TappedConnection, message: Any, nbytes: int) -> None:
        """Queue a message for decoding.

        Args:
            tapped: its connection.
            message: (direction, frames), or an ``ObservedMessage``, which needs no decoding.
            nbytes: size of the frames.
        """
        nbytes += WAITING_OVERHEAD_NBYTES
        self._waiting.append((tapped, time.time(), message, nbytes))
        self._waiting_nbytes += nbytes
        if self._waiting_nbytes > WAITING_MAX_NBYTES and not self._paused:
            self._pause_reading(True)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._decode_slice)

    def _decode_slice(self) -> None:
        self._scheduled = False
        self._decode(self._loop.time() + SLICE_SECONDS)
        if self._waiting:
            self._scheduled = True
            # after the callbacks of sockets that are ready
            self._loop.call_later(0, self._decode_slice)
        if self._paused and self._waiting_nbytes < WAITING_MAX_NBYTES // 2:
            self._pause_reading(False)

    def _decode(self, until: float = float("inf")) -> None:
        while self._waiting and self._loop.time() < until:
            tapped, when, message, nbytes = self._waiting.popleft()
            self._waiting_nbytes -= nbytes
            try:
                is_decoded = isinstance(message, ObservedMessage)
                for each in [message] if is_decoded else tapped.observer.observe(*message):
                    self._observer(tapped, when, each)
            except Exception:
                logger.exception("A message could not be shown because of an internal error")

    def _pause_reading(self, paused: bool) -> None:
        self._paused = paused
        for tapped in self._tapped:
            tapped.pause(paused)


class _Accepted(_End):
    """The socket of the peer that connected."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        self._tapped.address = join_host_port(*name[:2]) if name else ""
        self._tapped.tap.accepted(self._tapped)
