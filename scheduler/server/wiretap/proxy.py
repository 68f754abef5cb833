"""Sockets: takes connections, dials the other side for each, forwards bytes unchanged, and looks at copies of them.

Forwarding comes first: what came is written on before it is looked at, and messages are opened in slices between reads
(``SLICE_SECONDS``). Only when more than ``WAITING_MAX_NBYTES`` of messages wait to be opened is reading held up, because memory has a limit.
A peer that reads slowly holds up the one that writes to it, as it would without us.

Must not know: what is said of messages, or to whom.
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
from paceline.protocol.onlooker import Onlooker, Seen, Way
from paceline.protocol.skimming import Skimmer
from paceline.workers_compat.scalars import read_scalar

from ..addresses import address_host_port, join_host_port, split_address

logger = logging.getLogger("paceline.wiretap")

#: So long messages are opened at a stretch, before sockets are looked at again.
SLICE_SECONDS: Final = 0.002
#: When more than this waits to be opened, nothing more is read.
WAITING_MAX_NBYTES: Final = 64 * 2**20
#: What a message that waits costs beside its frames, bytes; many small ones count too.
WAITING_OVERHEAD_NBYTES: Final = 500
#: What may wait to be written to a peer before the other is held up.
WRITE_HIGH_WATER_NBYTES: Final = 2**20
#: Seconds to reach the other side.
DIAL_SECONDS: Final = 30.0
#: Seconds before the next try.
DIAL_AGAIN_SECONDS: Final = 0.2
#: Connections that wait to be accepted.
LISTEN_BACKLOG: Final = 2048


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM format, as in ``distributed.comm.tls``.

    Attributes:
        ca_file: whom we trust.
        cert: who we are, towards both sides.
        key: its private key; None where it is in ``cert``.
    """

    ca_file: str
    cert: str
    key: str | None = None

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """As stock makes it: both ends show certificates, names of hosts do not matter.

        Raises:
            OSError: a file cannot be read, or is none.
        """
        context = ssl.create_default_context(purpose=purpose, cafile=self.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = False
        context.load_cert_chain(self.cert, self.key)
        return context


#: Told of each message: on which connection, when (seconds since the epoch), and what it is.
Observer = Callable[["Tapped", float, Seen], None]


class Tapped:
    """One connection through us.

    Attributes:
        number: counts connections.
        address: of the peer that dialled.
        onlooker: follows it.
    """

    __slots__ = ("_broken", "_skimmers", "_tap", "address", "far", "near", "number", "onlooker")

    def __init__(self, tap: Wiretap, number: int, serves: Sequence[Direction]) -> None:
        self._tap = tap
        self._skimmers: dict[Way, Skimmer] = {"up": Skimmer(), "down": Skimmer()}
        self._broken: set[Way] = set()
        self.number = number
        self.address = ""
        self.onlooker = Onlooker(serves, read_scalar=read_scalar)
        self.near: _End | None = None
        self.far: _End | None = None

    def passed(self, way: Way, data: bytes) -> None:
        """These bytes have been written on."""
        if way in self._broken:
            return
        try:
            messages = self._skimmers[way].feed(data)
        except RemoteProtocolError as error:
            self._broken.add(way)
            violation = Violation("unreadable", "", "$", f"{error}; not followed any further")
            self._tap.wait(self, Seen(way, "unreadable", "", None, None, 0, 0, [violation]), 0)
            return
        for frames in messages:
            self._tap.wait(self, (way, frames), sum(map(len, frames)))

    def hold(self, held: bool) -> None:
        """Read nothing for now; or read on."""
        for end in (self.near, self.far):
            if end is not None:
                end.hold("decoding", held)


class _End(asyncio.Protocol):
    """One of the two sockets of a connection.

    Args:
        tapped: the connection.
        way: that what comes from this socket goes.
    """

    def __init__(self, tapped: Tapped, way: Way) -> None:
        self._tapped = tapped
        self._way: Way = way
        self._holds: set[str] = set()
        self.transport: Any = None
        self.other: _End | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_NBYTES)
        for reason in self._holds:
            self._apply(reason)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)
        self._tapped.passed(self._way, data)

    def eof_received(self) -> bool:
        other = self.other
        if other is None or other.transport is None or not other.transport.can_write_eof():
            return False
        other.transport.write_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()
        self._tapped._tap.lost(self._tapped)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.hold("writing", True)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.hold("writing", False)

    def hold(self, reason: str, held: bool) -> None:
        """Read nothing while there is a reason not to."""
        before = bool(self._holds)
        if held:
            self._holds.add(reason)
        else:
            self._holds.discard(reason)
        if before != bool(self._holds) and self.transport is not None:
            self._apply(reason)

    def _apply(self, reason: str) -> None:
        if self.transport.is_closing():
            return
        if self._holds:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


class Wiretap:
    """Listens, forwards, and tells an observer what passed. Use as an async context manager.

    Args:
        listen, forward: addresses, ``tcp://host:port`` or ``tls://host:port``; port 0 listens on a free one.
        observer: told of each message.
        tls: needed where one of the addresses is ``tls``.
        serves: what the other side is.

    Attributes:
        address: where it listens, with the real port.
        n_connections: that there have been.
    """

    def __init__(
        self,
        listen: str,
        forward: str,
        observer: Observer,
        *,
        tls: TlsFiles | None = None,
        serves: Sequence[Direction] = ("scheduler_rpc",),
    ) -> None:
        self._listen, self._forward = listen, forward
        self._tls = tls
        self._observer = observer
        self._serves = tuple(serves)
        self._waiting: deque[tuple[Tapped, float, Any, int]] = deque()
        self._waiting_nbytes = 0
        self._held = False
        self._scheduled = False
        self._tapped: set[Tapped] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None
        self.address = ""
        self.n_connections = 0

    async def __aenter__(self) -> Wiretap:
        """Start to listen.

        Raises:
            OSError: the address cannot be had, or a file of TLS cannot be read.
            ValueError: an address is none.
        """
        self._loop = asyncio.get_running_loop()
        scheme, _ = split_address(self._listen)
        host, port = address_host_port(self._listen)
        self._far = address_host_port(self._forward)
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
        """Close everything, and look at what has passed."""
        if self._server is not None:
            self._server.close()
        for task in list(self._dialling):
            task.cancel()
        for tapped in list(self._tapped):
            for end in (tapped.near, tapped.far):
                if end is not None and end.transport is not None:
                    end.transport.abort()
        await asyncio.sleep(0)
        while self._waiting:
            self._look()

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
        tapped = Tapped(self, self.n_connections, self._serves)
        near = _Accepted(tapped, "up")
        near.hold("dialling", True)
        tapped.near = near
        self._tapped.add(tapped)
        return near

    def accepted(self, tapped: Tapped) -> None:
        """A peer has dialled; dial on."""
        task = self._loop.create_task(self._dial(tapped))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _dial(self, tapped: Tapped) -> None:
        near = tapped.near
        assert near is not None
        far = tapped.far = _End(tapped, "down")
        far.other = near
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await self._loop.create_connection(lambda: far, *self._far, ssl=self._far_context)
        except OSError as error:  # TimeoutError is one
            level = logging.DEBUG if near.transport.is_closing() else logging.WARNING
            logger.log(level, "Cannot reach %s: %s", self._forward, error or type(error).__name__)
            near.transport.abort()
            return
        near.other = far
        if near.transport.is_closing():
            far.transport.close()
        near.hold("dialling", False)

    async def _reach(self, far: _End, near: _End) -> None:
        """Connect. A scheduler that is not there yet is tried again while the peer waits, as the peer would do.

        Raises:
            OSError: it refuses us, and the peer has gone.
        """
        while True:
            try:
                await self._loop.create_connection(lambda: far, *self._far, ssl=self._far_context)
                return
            except ConnectionRefusedError:
                if near.transport.is_closing():
                    raise
                await asyncio.sleep(DIAL_AGAIN_SECONDS)

    def lost(self, tapped: Tapped) -> None:
        """One of its sockets is gone."""
        self._tapped.discard(tapped)

    # looking

    def wait(self, tapped: Tapped, what: Any, nbytes: int) -> None:
        """A message that passed is to be looked at."""
        nbytes += WAITING_OVERHEAD_NBYTES
        self._waiting.append((tapped, time.time(), what, nbytes))
        self._waiting_nbytes += nbytes
        if self._waiting_nbytes > WAITING_MAX_NBYTES and not self._held:
            self._hold(True)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._slice)

    def _slice(self) -> None:
        self._scheduled = False
        self._look(self._loop.time() + SLICE_SECONDS)
        if self._waiting:
            self._scheduled = True
            # later than what has come to the sockets meanwhile
            self._loop.call_later(0, self._slice)
        if self._held and self._waiting_nbytes < WAITING_MAX_NBYTES // 2:
            self._hold(False)

    def _look(self, until: float = float("inf")) -> None:
        while self._waiting and self._loop.time() < until:
            tapped, when, what, nbytes = self._waiting.popleft()
            self._waiting_nbytes -= nbytes
            try:
                for seen in [what] if isinstance(what, Seen) else tapped.onlooker.see(*what):
                    self._observer(tapped, when, seen)
            except Exception:
                logger.exception("A message was not looked at, by a mistake of ours")

    def _hold(self, held: bool) -> None:
        self._held = held
        for tapped in self._tapped:
            tapped.hold(held)


class _Accepted(_End):
    """The socket of the peer that dialled."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        self._tapped.address = join_host_port(*name[:2]) if name else ""
        self._tapped._tap.accepted(self._tapped)
