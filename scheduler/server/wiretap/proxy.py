"""A proxy that forwards bytes unchanged between peers and decodes copies of them.

Forwarding has priority: data is forwarded before it is decoded, and messages are decoded in slices
between reads (``SLICE_SECONDS``). Reading is paused only if more than ``WAITING_MAX_NBYTES`` of
messages wait for decoding, to limit memory. A peer that reads slowly slows down its sender, as
without the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from paceline.protocol.catalogue import Direction
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.observer import ObservedMessage, Observer, Way
from paceline.protocol.sniffing import SniffingFrameReader
from paceline.protocol.validation import Violation
from paceline.workers_compat.addressing import join_host_port, split_address, split_host_port
from paceline.workers_compat.security.tls_config import Tls
from paceline.workers_compat.security.unpickling import read_scalar

logger = logging.getLogger("paceline.wiretap")

#: Time for which messages are decoded before other callbacks of the event loop may run.
SLICE_SECONDS: Final = 0.002
#: Reading is paused while more than this waits for decoding.
WAITING_MAX_NBYTES: Final = 64 * 2**20
#: Memory of a waiting message in addition to its frames, bytes, so that small messages count, too.
WAITING_OVERHEAD_NBYTES: Final = 500
#: Size of one read, bytes.
READ_NBYTES: Final = 256 * 2**10
#: Data that waits to be written to a peer before reading from the other is paused.
WRITE_HIGH_WATER_NBYTES: Final = 2**20
#: Timeout of connecting to the server, seconds.
CONNECT_SECONDS: Final = 30.0
#: Interval of attempts to connect, seconds.
RETRY_SECONDS: Final = 0.2
#: Maximum number of connections that wait to be accepted.
LISTEN_BACKLOG: Final = 2048


#: Called with the connection, the time (seconds since the epoch) and each message.
MessageCallback = Callable[["TappedConnection", float, ObservedMessage], None]


class TappedConnection:
    """A connection of a peer through the proxy, numbered from 1."""

    def __init__(
        self, tap: Wiretap, number: int, address: str, serves: Sequence[Direction]
    ) -> None:
        self._tap = tap
        self._readers: dict[Way, SniffingFrameReader] = {
            "up": SniffingFrameReader(),
            "down": SniffingFrameReader(),
        }
        self.number = number
        self.address = address
        self.observer = Observer(serves, read_scalar=read_scalar)

    def add_data(self, way: Way, data: bytes) -> None:
        """Queue the messages in bytes that were forwarded."""
        if way not in self._readers:
            return
        try:
            messages = self._readers[way].feed(data)
        except RemoteProtocolError as error:
            del self._readers[way]
            violation = Violation(
                "unreadable", "", "$", f"{error}; the rest of this direction is not checked"
            )
            self._tap.queue_message(
                self, ObservedMessage(way, "unreadable", "", None, None, 0, 0, [violation]), 0
            )
            return
        for frames in messages:
            self._tap.queue_message(self, (way, frames), sum(map(len, frames)))


class Wiretap:
    """Listens, forwards, and calls an observer with each message. An async context manager.

    Args:
        listen, forward: addresses, ``tcp://host:port`` or ``tls://host:port``; port 0 listens on a
            free one.
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
        tls: Tls | None = None,
        serves: Sequence[Direction] = ("scheduler_rpc",),
    ) -> None:
        self._listen, self._forward = listen, forward
        self._tls = tls or Tls()
        self._observer = observer
        self._serves = tuple(serves)
        self._waiting: deque[tuple[TappedConnection, float, Any, int]] = deque()
        self._waiting_nbytes = 0
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        self.n_connections = 0

    async def __aenter__(self) -> Wiretap:
        """Start listening.

        Raises:
            OSError: the address cannot be bound.
            ValueError: an address is invalid, or needs TLS.
        """
        self._loop = asyncio.get_running_loop()
        scheme, _ = split_address(self._listen)
        host, port = split_host_port(self._listen)
        self._far = split_host_port(self._forward)
        self._far_context = _context(self._forward, self._tls.connect)
        self._server = await asyncio.start_server(
            self._accept,
            host or None,
            port,
            limit=READ_NBYTES,
            ssl=_context(self._listen, self._tls.listen),
            backlog=LISTEN_BACKLOG,
        )
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"{scheme}://{join_host_port(host or '0.0.0.0', port)}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close all connections, and decode the remaining messages."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._waiting:
            self._decode()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection in both directions until both have ended."""
        self.n_connections += 1
        name = writer.get_extra_info("peername")
        tapped = TappedConnection(
            self, self.n_connections, join_host_port(*name[:2]) if name else "", self._serves
        )
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                far_reader, far_writer = await self._connect(writer)
            try:
                await asyncio.gather(
                    self._copy(tapped, "up", reader, far_writer),
                    self._copy(tapped, "down", far_reader, writer),
                )
            finally:
                far_writer.close()
        except OSError as error:  # including TimeoutError
            level = logging.DEBUG if writer.is_closing() else logging.WARNING
            logger.log(
                level, "Cannot connect to %s: %s", self._forward, error or type(error).__name__
            )
        finally:
            writer.close()

    async def _connect(
        self, near: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the server; while it refuses, retry as long as the peer is connected."""
        while True:
            try:
                return await asyncio.open_connection(
                    *self._far, limit=READ_NBYTES, ssl=self._far_context
                )
            except ConnectionRefusedError:
                if near.is_closing():
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def _copy(
        self,
        tapped: TappedConnection,
        way: Way,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Forward one direction until it ends."""
        writer.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_NBYTES)
        with contextlib.suppress(OSError):  # one of the peers has closed the connection
            while data := await reader.read(READ_NBYTES):
                writer.write(data)
                tapped.add_data(way, data)
                await writer.drain()
                await self._may_read.wait()
            if writer.can_write_eof():
                writer.write_eof()
                return
        writer.close()

    # decoding

    def queue_message(self, tapped: TappedConnection, message: Any, nbytes: int) -> None:
        """Queue (direction, frames) for decoding, or an ``ObservedMessage``, which needs none."""
        nbytes += WAITING_OVERHEAD_NBYTES
        self._waiting.append((tapped, time.time(), message, nbytes))
        self._waiting_nbytes += nbytes
        if self._waiting_nbytes > WAITING_MAX_NBYTES:
            self._may_read.clear()
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
        if self._waiting_nbytes < WAITING_MAX_NBYTES // 2:
            self._may_read.set()

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


def _context(address: str, context: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Return `context` if `address` is encrypted. Raise ValueError if that is not possible."""
    scheme, _ = split_address(address)
    if scheme not in ("tcp", "tls"):
        raise ValueError(f"cannot tap {scheme}://: tcp and tls only")
    if scheme == "tls" and context is None:
        raise ValueError(f"{address} needs --tls-ca-file and --tls-cert")
    return context if scheme == "tls" else None
