"""The connections of a server: listeners, connectors, and the comm of ``tcp``.

The server refers to a connection by its number and receives its events (``CommEvents``). Each
connection is one buffered protocol around a ``FrameReader``, which receives large frames directly
into their own memory. Everything written within one turn of the event loop is sent in one write
per peer.

``tcp`` is implemented here. Other schemes have a ``CommBackend`` each (``backends.py``), whose
comms behave as ``TcpComm``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import (
    SCRATCH_NBYTES,
    Allocator,
    FrameReader,
    Frames,
    Limits,
    pack_frames,
)

from .accepting import SocketAcceptor, SocketListener
from .addresses import join_host_port
from .interface import (
    WRITE_HIGH_WATER_NBYTES,
    WRITE_LOW_WATER_NBYTES,
    Buffer,
    Comm,
    CommEvents,
    FatalConnectError,
    Listener,
    PeerFacts,
)
from .sockets import SocketOptions, bind_sockets, bound, set_socket_options, socket_facts

logger = logging.getLogger("distributed.scheduler")

#: Writes up to this size are joined into one buffer; pieces of larger ones are written separately.
JOIN_MAX_NBYTES = 128 * 2**10
#: Schemes without encryption.
PLAIN_SCHEMES = frozenset({"tcp", "ws"})


class EncryptionRequiredError(FatalConnectError, RuntimeError):
    """An address is not encrypted, but ``distributed.comm.require-encryption`` is set.

    Stock raises RuntimeError.
    """


class TcpComm(asyncio.BufferedProtocol):
    """One socket."""

    scheme = "tcp"

    __slots__ = (
        "_closing",
        "_dirty",
        "_facts",
        "_number",
        "_out",
        "_out_nbytes",
        "_owner",
        "_reader",
        "_reason",
        "_transport",
        "get_buffer",
    )

    def __init__(self, owner: Transport, outgoing: bool) -> None:
        self._owner = owner
        self._reader = FrameReader(owner.limits, owner.scratch, owner.handshake_limits)
        get_buffer = self._reader.get_buffer
        self.get_buffer: Callable[[int], memoryview] = get_buffer  # type: ignore[assignment]
        self._number = owner.next_number()
        self._facts = PeerFacts("", "", False, outgoing)
        self._transport: Any = None
        self._out: list[Buffer] = []
        self._out_nbytes = 0
        self._dirty = False
        self._closing = False
        self._reason = ""

    @property
    def number(self) -> int:
        """See ``Comm``."""
        return self._number

    # called by asyncio

    def connection_made(self, transport: Any) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._transport = transport
        self._owner.setup_socket(transport)
        self._facts = socket_facts(
            transport.get_extra_info("peername") or ("", 0),
            transport.get_extra_info("sockname") or ("", 0),
            transport.get_extra_info("peercert"),
            self.scheme,
            self._facts.outgoing,
        )
        self._owner.connection_made(self)

    def buffer_updated(self, nbytes: int) -> None:
        """See ``asyncio.BufferedProtocol``."""
        if self._closing:
            return
        try:
            messages = self._reader.buffer_updated(nbytes)
        except RemoteProtocolError as error:
            self.drop(f"malformed frame: {error}")
            return
        if messages:
            self._owner.events.frames_in(self._number, messages)

    def pause_writing(self) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._owner.events.paused(self._number)

    def resume_writing(self) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._owner.events.resumed(self._number)

    def eof_received(self) -> bool:
        """See ``asyncio.BufferedProtocol``."""
        self._reason = self._reason or "closed by peer"
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._closing = True
        self._out.clear()
        self._out_nbytes = 0
        reason = self._reason or (f"{type(error).__name__}: {error}" if error else "closed")
        self._owner.connection_lost(self, reason)

    # called by Transport

    def write(self, frames: Sequence[Buffer]) -> bool:
        """Collect one message. Return whether nothing was collected before."""
        if self._closing:
            return False
        pieces = pack_frames(frames)
        self._out += pieces
        self._out_nbytes += sum(map(len, pieces))
        if self._dirty:
            return False
        self._dirty = True
        return True

    def flush(self) -> None:
        """Write what was collected to the socket."""
        self._dirty = False
        out = self._out
        if not out or self._transport is None:
            return
        nbytes = self._out_nbytes
        self._out = []
        self._out_nbytes = 0
        if len(out) == 1:
            self._transport.write(out[0])
        elif nbytes <= JOIN_MAX_NBYTES:
            self._transport.write(b"".join(out))
        else:
            self._owner.write_pieces(self._transport, out)

    def drop(self, reason: str) -> None:
        """Close the connection at once and log `reason`."""
        logger.warning("Dropping connection to %s: %s", self._facts.peer_address, reason)
        self.abort(reason)

    def abort(self, reason: str) -> None:
        """See ``Comm``."""
        self._reason = self._reason or reason
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """See ``Comm``."""
        if self._closing:
            return
        self.flush()
        self._closing = True
        self._reason = self._reason or "closed"
        if self._transport is not None:
            self._transport.close()

    def admit(self) -> None:
        """See ``Comm``."""
        try:
            messages = self._reader.admit()
        except RemoteProtocolError as error:
            self.drop(f"malformed frame: {error}")
            return
        if messages:
            self._owner.events.frames_in(self._number, messages)

    def receive_large_into(self, allocate: Allocator | None) -> None:
        """See ``Comm``."""
        self._reader.allocate = allocate

    @property
    def coming(self) -> tuple[tuple[int, ...], Frames] | None:
        """See ``FrameReader.coming``."""
        return self._reader.coming

    @property
    def unwritten_nbytes(self) -> int:
        """See ``Comm``."""
        if self._transport is None:
            return self._out_nbytes
        return self._out_nbytes + int(self.transport.get_write_buffer_size())

    @property
    def facts(self) -> PeerFacts:
        """See ``Comm``."""
        return self._facts

    @property
    def transport(self) -> Any:
        """See ``Comm``."""
        return self._transport


class CommBackend(Protocol):
    """Implements a scheme other than ``tcp``.

    If the scheme has no ports, the host is the whole location.
    """

    async def listen(self, transport: Transport, host: str, port: int) -> Listener:
        """See ``Transport.listen``."""

    async def connect(self, transport: Transport, host: str, port: int) -> int:
        """See ``Transport.connect``."""


class Transport:
    """All connections of a server.

    Args:
        events: receives the events of all connections.
        limits: what a message's prelude may claim.
        handshake_limits: the same until ``admit`` is called; None for `limits`.
        options: socket options.
        backends: returns the backend of a scheme other than ``tcp``; raises ValueError if there is
            none.
        require_encryption: whether to refuse ``tcp`` and ``ws``.
    """

    def __init__(
        self,
        events: CommEvents,
        limits: Limits | None = None,
        handshake_limits: Limits | None = None,
        options: SocketOptions | None = None,
        backends: Callable[[str], CommBackend] | None = None,
        require_encryption: bool = False,
    ) -> None:
        self.events = events
        self.limits = limits or Limits()
        self.handshake_limits = handshake_limits
        self.options = options or SocketOptions()
        # shared by all connections, because a read is handled before the next one
        self.scratch = memoryview(bytearray(SCRATCH_NBYTES))
        self._loop = asyncio.get_running_loop()
        self._vectored = _writes_vectors(self._loop)
        self._backends = backends
        self._require_encryption = require_encryption
        self._connections: dict[int, Comm] = {}
        self._dirty: list[Comm] = []
        self._last_number = 0
        # bounded by the number that one wake-up accepts: they open in the next one
        self._opening: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._connections)

    # called by the server

    def write(self, number: int, frames: Sequence[Buffer]) -> None:
        """Write the frames of one message, which must not change, unless the comm is closed."""
        connection = self._connections.get(number)
        if connection is not None and connection.write(frames):
            if not self._dirty:
                self._loop.call_soon(self.flush)
            self._dirty.append(connection)

    def flush(self) -> None:
        """Write everything that was collected, in one write per peer."""
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    def pause_reading(self, number: int) -> None:
        """Stop reading from the peer, so that the kernel applies backpressure."""
        connection = self._connections.get(number)
        if connection is not None and connection.transport.is_reading():
            connection.transport.pause_reading()

    def resume_reading(self, number: int) -> None:
        """Resume reading."""
        connection = self._connections.get(number)
        if connection is not None and not connection.transport.is_reading():
            connection.transport.resume_reading()

    def unwritten_nbytes(self, number: int) -> int:
        """Return the unwritten bytes, including those collected since the last flush."""
        connection = self._connections.get(number)
        return connection.unwritten_nbytes if connection is not None else 0

    def admit(self, number: int) -> None:
        """Accept messages of full size on a connection whose handshake was accepted.

        Messages received together with the handshake reach `events` before this returns.
        """
        connection = self._connections.get(number)
        if connection is not None:
            connection.admit()

    def receive_large_into(self, number: int, allocate: Allocator | None) -> None:
        """Receive large frames into memory that ``allocate(nbytes)`` returns, unless it is None."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.receive_large_into(allocate)

    def coming(self, number: int) -> tuple[tuple[int, ...], Frames] | None:
        """Return the incomplete message's frame lengths and its frames so far; None if unknown."""
        return getattr(self._connections.get(number), "coming", None)

    def close(self, number: int) -> None:
        """Close the connection once everything is written."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.close()

    def abort(self, number: int, reason: str = "closed") -> None:
        """Close the connection at once."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.abort(reason)

    def drop(self, number: int, reason: str) -> None:
        """Close the connection at once because of what the peer did, and log `reason`."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.drop(reason)

    async def listen(self, scheme: str, host: str, port: int) -> Listener:
        """Accept connections.

        Args:
            scheme: of the address.
            host: an address or name of this machine; "" is every interface, IPv4 and IPv6.
            port: 0 for a free one.

        Raises:
            OSError: the address cannot be bound.
            ValueError: the scheme is unknown.
        """
        self._check(scheme, f"{scheme}://{join_host_port(host, port)}")
        if scheme != "tcp":
            return await self._backend(scheme).listen(self, host, port)
        sockets = bind_sockets(host, port)
        if not sockets:
            raise OSError(f"no address to listen on for host {host!r}")
        listening = [SocketAcceptor(sock, self._accepted) for sock in sockets]
        return SocketListener(listening, scheme, *bound(sockets))

    def _accepted(self, sock: socket.socket) -> None:
        task = self._loop.create_task(self._open(sock), name="accept")
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: TcpComm(self, outgoing=False), sock)
        except OSError:  # closed by the peer
            sock.close()

    async def connect(self, host: str, port: int, scheme: str = "tcp") -> int:
        """Connect, and return the connection's number after its ``opened`` event.

        Raises:
            OSError: connecting failed, or encryption is required.
            ValueError: the scheme is unknown.
        """
        self._check(scheme, f"{scheme}://{join_host_port(host, port)}")
        if scheme != "tcp":
            return await self._backend(scheme).connect(self, host, port)
        _, connection = await self._loop.create_connection(
            lambda: TcpComm(self, outgoing=True), host, port
        )
        return connection.number

    def _check(self, scheme: str, address: str) -> None:
        if self._require_encryption and scheme in PLAIN_SCHEMES:
            raise EncryptionRequiredError(
                "encryption required by Dask configuration, "
                f"refusing communication from/to {address!r}"
            )

    def _backend(self, scheme: str) -> CommBackend:
        if self._backends is None:
            raise ValueError(f"nothing here speaks {scheme}://")
        return self._backends(scheme)

    async def close_all(self, timeout: float) -> None:
        """Close all connections once written; abort them after `timeout` seconds."""
        for connection in list(self._connections.values()):
            connection.close()
        deadline = self._loop.time() + timeout
        while self._connections and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections.values()):
            connection.abort("shutting down")
        await asyncio.sleep(0)

    # called by comms

    def next_number(self) -> int:
        """Return a number that no connection of this server has had."""
        self._last_number += 1
        return self._last_number

    def setup_socket(self, transport: Any) -> None:
        """Set the options of a new socket."""
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_NBYTES, low=WRITE_LOW_WATER_NBYTES)
        sock = transport.get_extra_info("socket")
        if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return
        try:
            set_socket_options(sock, self.options)
        except OSError as error:  # a platform without one of them
            logger.debug("socket options: %s", error)

    def connection_made(self, connection: Comm) -> None:
        """Register a connection that was opened."""
        self._connections[connection.number] = connection
        self.events.opened(connection.number, connection.facts)

    def connection_lost(self, connection: Comm, reason: str) -> None:
        """Remove a connection that was closed."""
        if self._connections.pop(connection.number, None) is not None:
            self.events.closed(connection.number, reason)

    def write_pieces(self, transport: Any, pieces: list[Buffer]) -> None:
        """Write large data without joining it."""
        if self._vectored:
            transport.writelines(pieces)
        else:  # writelines of this loop would join them
            for piece in pieces:
                transport.write(piece)


def _writes_vectors(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether ``writelines`` of this loop passes the pieces to the kernel unjoined."""
    return type(loop).__module__.startswith("uvloop") or sys.version_info >= (3, 12)
