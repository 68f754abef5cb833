"""Connections and frames: what lies below the seam.

Above the seam a connection is a number. What crosses it: ``opened``, ``frames_in``, ``paused``, ``resumed``,
``closed`` upwards; ``write``, ``pause_reading``, ``resume_reading``, ``close``, ``abort`` downwards, and ``dial`` for
connections of our own. Frames carry sequence numbers per connection and direction, so that the sockets can one
day be held by a process of their own.

Each connection is one buffered protocol around a ``FrameReader``: large frames are received straight into their
own memory. What is written within one turn of the event loop goes out as one write per peer.

``tcp`` is spoken here. Other schemes have a *carrier* each (``carriers.py``), whose connections do what
``SocketConnection`` does; above the seam nobody can tell them apart.

Must not know: what frames mean (codecs, handshakes, phases), the core, the clock.
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
from paceline.workers_compat.security import certificate_names

from .addresses import WILDCARDS, contact_host, join_host_port
from .outlet import Outlet
from .seam import (
    WRITE_HIGH_WATER_NBYTES,
    WRITE_LOW_WATER_NBYTES,
    Buffer,
    Carrier,
    Link,
    Listening,
    PeerFacts,
    SeamSink,
)
from .sockets import SocketOptions, bind_sockets, bound, set_socket_options

logger = logging.getLogger("distributed.scheduler")

#: Writes up to this size are joined into one buffer; above, the pieces go to the kernel as they are.
JOIN_MAX_NBYTES = 128 * 2**10
#: Connections that wait to be accepted: a large cluster may connect all at once.
LISTEN_BACKLOG = 2048
#: Schemes that encryption, where it is required, rules out.
PLAIN_SCHEMES = frozenset({"tcp", "ws"})


class EncryptionRequired(OSError, RuntimeError):
    """``distributed.comm.require-encryption`` is on, and the address is not encrypted. Stock raises RuntimeError."""


class SocketConnection(asyncio.BufferedProtocol):
    """One socket."""

    scheme = "tcp"

    __slots__ = (
        "_closing",
        "_dirty",
        "_facts",
        "_number",
        "_out",
        "_outlet",
        "_owner",
        "_reader",
        "_reason",
        "_received",
        "_sent",
        "_transport",
        "get_buffer",
    )

    def __init__(self, owner: Transport, outgoing: bool) -> None:
        self._owner = owner
        self._reader = FrameReader(owner.limits, owner.scratch)
        self.get_buffer: Callable[[int], memoryview] = self._reader.get_buffer  # type: ignore[assignment]
        self._number = owner.next_number()
        self._facts = PeerFacts("", "", False, outgoing)
        self._transport: Any = None
        self._out: list[Buffer] = []
        self._outlet: Outlet | None = None
        self._dirty = False
        self._closing = False
        self._reason = ""
        self._received = 0
        self._sent = 0

    @property
    def number(self) -> int:
        return self._number

    # what asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._owner.setup_socket(transport)
        self._facts = socket_facts(transport, self._facts.outgoing, self.scheme)
        self._owner.connection_made(self)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            messages = self._reader.buffer_updated(nbytes)
        except RemoteProtocolError as error:
            self.drop(f"malformed frame: {error}")
            return
        if messages and not self._closing:
            sequence = self._received
            self._received += len(messages)
            self._owner.sink.frames_in(self._number, sequence, messages)

    def pause_writing(self) -> None:
        if self._outlet is None:
            self._owner.sink.paused(self._number)

    def resume_writing(self) -> None:
        if self._outlet is None:
            self._owner.sink.resumed(self._number)
        else:
            self._outlet.drained()

    def eof_received(self) -> bool:
        self._reason = self._reason or "closed by peer"
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._out.clear()
        reason = self._reason or (f"{type(error).__name__}: {error}" if error else "closed")
        self._owner.connection_lost(self, reason)

    # what the owner calls

    def write(self, frames: Sequence[Buffer]) -> bool:
        """Collect. Returns whether it had nothing to write before."""
        if self._closing:
            return False
        self._out += pack_frames(frames)
        self._sent += 1
        if self._dirty:
            return False
        self._dirty = True
        return True

    def flush(self) -> None:
        """Hand what was collected to the socket."""
        self._dirty = False
        out = self._out
        if not out or self._transport is None:
            return
        self._out = []
        if len(out) == 1:
            self._transport.write(out[0])
        elif sum(map(len, out)) <= JOIN_MAX_NBYTES:
            self._transport.write(b"".join(out))
        else:
            self._owner.write_pieces(self._transport, out)

    def drop(self, reason: str) -> None:
        """End it at once, with a line in the log."""
        logger.warning("Dropping connection to %s: %s", self._facts.peer_address, reason)
        self.abort(reason)

    def abort(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._closing:
            return
        self.flush()
        self._closing = True
        self._reason = self._reason or "closed"
        if self._transport is not None:
            self._transport.close()

    def receive_large_into(self, allocate: Allocator | None) -> None:
        self._reader.allocate = allocate

    @property
    def coming(self) -> tuple[tuple[int, ...], Frames] | None:
        """See ``FrameReader.coming``."""
        return self._reader.coming

    def open_outlet(self) -> Outlet | None:
        """Write bytes as they come, past the collecting of messages; None where that cannot be."""
        if type(self) is not SocketConnection or self._closing or self._transport is None:
            return None
        self._outlet = Outlet(self._transport, self._outlet_closed)
        return self._outlet

    def _outlet_closed(self) -> None:
        self._outlet = None

    @property
    def facts(self) -> PeerFacts:
        return self._facts

    @property
    def transport(self) -> Any:
        return self._transport


class Closable(Protocol):
    """A listening socket, as asyncio's servers are."""

    def close(self) -> None:
        """Accept nothing more."""


class Listener:
    """Sockets that accept connections.

    Attributes:
        scheme, host, port: what it listens on; the port is the real one.
    """

    def __init__(self, servers: Sequence[Closable], scheme: str, host: str, port: int) -> None:
        self._servers = servers
        self.scheme = scheme
        self.host = host
        self.port = port

    @property
    def listen_address(self) -> str:
        """The address it is bound to; may be a wildcard."""
        return f"{self.scheme}://{join_host_port(self.host, self.port)}"

    @property
    def contact_address(self) -> str:
        """An address that others can reach it by."""
        return f"{self.scheme}://{join_host_port(contact_host(self.host), self.port)}"

    def close(self) -> None:
        """Accept nothing more; connections stay."""
        for server in self._servers:
            server.close()


class Transport:
    """All sockets of a server: accepts, dials, writes.

    Args:
        sink: what lies above the seam.
        limits: what a message's prelude may claim.
        options: socket options.
        carriers: gives what speaks a scheme other than ``tcp``; raises ValueError where nothing does.
        require_encryption: ``tcp`` is neither listened on nor dialled.
    """

    def __init__(
        self,
        sink: SeamSink,
        limits: Limits | None = None,
        options: SocketOptions | None = None,
        carriers: Callable[[str], Carrier] | None = None,
        require_encryption: bool = False,
    ) -> None:
        self.sink = sink
        self.limits = limits or Limits()
        self.options = options or SocketOptions()
        # one for all: a read is handled before the next one begins
        self.scratch = memoryview(bytearray(SCRATCH_NBYTES))
        self._loop = asyncio.get_running_loop()
        self._vectored = _writes_vectors(self._loop)
        self._carriers = carriers
        self._require_encryption = require_encryption
        self._connections: dict[int, Link] = {}
        self._dirty: list[Link] = []
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._connections)

    # downwards

    def write(self, number: int, frames: Sequence[Buffer]) -> None:
        """Write one message's frames; they must not change afterwards. A closed connection takes nothing."""
        connection = self._connections.get(number)
        if connection is not None and connection.write(frames):
            if not self._dirty:
                self._loop.call_soon(self.flush)
            self._dirty.append(connection)

    def flush(self) -> None:
        """One write per peer of all that was collected."""
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    def pause_reading(self, number: int) -> None:
        """Take nothing more from the peer for now; the kernel holds it back."""
        connection = self._connections.get(number)
        if connection is not None and connection.transport.is_reading():
            connection.transport.pause_reading()

    def resume_reading(self, number: int) -> None:
        """Read on."""
        connection = self._connections.get(number)
        if connection is not None and not connection.transport.is_reading():
            connection.transport.resume_reading()

    def unwritten_nbytes(self, number: int) -> int:
        """Bytes that wait to be written to the peer."""
        connection = self._connections.get(number)
        return int(connection.transport.get_write_buffer_size()) if connection is not None else 0

    def receive_large_into(self, number: int, allocate: Allocator | None) -> None:
        """Receive large frames into memory that ``allocate(nbytes)`` gives; None for our own."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.receive_large_into(allocate)

    def coming(self, number: int) -> tuple[tuple[int, ...], Frames] | None:
        """Lengths, and the frames so far, of the message that is coming. None where a carrier does not say."""
        return getattr(self._connections.get(number), "coming", None)

    def has_outlet(self, number: int) -> bool:
        """Whether there is a way to write a message's bytes as they come: plain sockets have it."""
        return type(self._connections.get(number)) is SocketConnection

    def open_outlet(self, number: int) -> Outlet | None:
        """A way to write a message's bytes as they come (``outlet.py``); None where the carrier has none."""
        connection = self._connections.get(number)
        if not isinstance(connection, SocketConnection):
            return None
        connection.flush()
        return connection.open_outlet()

    def close(self, number: int) -> None:
        """Close once everything is written."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.close()

    def abort(self, number: int, reason: str = "closed") -> None:
        """Close now."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.abort(reason)

    def drop(self, number: int, reason: str) -> None:
        """Close now, because of what the peer did: one line in the log."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.drop(reason)

    async def listen(self, scheme: str, host: str, port: int) -> Listening:
        """Accept connections.

        Args:
            host: an address or name of this machine; ``""`` is every interface, IPv4 and IPv6.
            port: 0 takes a free one.

        Raises:
            OSError: the address cannot be had.
            ValueError: nothing here speaks the scheme.
        """
        self._check(scheme, f"{scheme}://{join_host_port(host, port)}")
        if scheme != "tcp":
            return await self._carrier(scheme).listen(self, host, port)
        sockets = bind_sockets(host, port)
        servers: list[asyncio.AbstractServer] = [
            await self._loop.create_server(
                lambda: SocketConnection(self, outgoing=False),
                sock=listening,
                backlog=LISTEN_BACKLOG,
            )
            for listening in sockets
        ]
        if not servers:
            raise OSError(f"no address to listen on for host {host!r}")
        return Listener(servers, scheme, *bound(sockets))

    async def dial(self, host: str, port: int, scheme: str = "tcp") -> int:
        """Connect; ``opened`` has been told when this returns the connection's number.

        Raises:
            OSError: nobody is there, or encryption is required.
            ValueError: nothing here speaks the scheme.
        """
        self._check(scheme, f"{scheme}://{join_host_port(host, port)}")
        if scheme != "tcp":
            return await self._carrier(scheme).dial(self, host, port)
        _, connection = await self._loop.create_connection(
            lambda: SocketConnection(self, outgoing=True), host, port
        )
        return connection.number

    def _check(self, scheme: str, address: str) -> None:
        if self._require_encryption and scheme in PLAIN_SCHEMES:
            raise EncryptionRequired(
                "encryption required by Dask configuration, "
                f"refusing communication from/to {address!r}"
            )

    def _carrier(self, scheme: str) -> Carrier:
        if self._carriers is None:
            raise ValueError(f"nothing here speaks {scheme}://")
        return self._carriers(scheme)

    async def close_all(self, timeout: float) -> None:
        """Close every connection once written; abort those that take longer than ``timeout`` seconds."""
        for connection in list(self._connections.values()):
            connection.close()
        deadline = self._loop.time() + timeout
        while self._connections and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections.values()):
            connection.abort("shutting down")
        await asyncio.sleep(0)

    # for connections

    def next_number(self) -> int:
        """A number that no connection of this server had."""
        self._last_number += 1
        return self._last_number

    def setup_socket(self, transport: Any) -> None:
        """Set a fresh socket's options."""
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_NBYTES, low=WRITE_LOW_WATER_NBYTES)
        sock = transport.get_extra_info("socket")
        if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return
        try:
            set_socket_options(sock, self.options)
        except OSError as error:  # a platform without one of them
            logger.debug("socket options: %s", error)

    def connection_made(self, connection: Link) -> None:
        """A connection opened."""
        self._connections[connection.number] = connection
        self.sink.opened(connection.number, connection.facts)

    def connection_lost(self, connection: Link, reason: str) -> None:
        """A connection is gone."""
        if self._connections.pop(connection.number, None) is not None:
            self.sink.closed(connection.number, reason)

    def write_pieces(self, transport: Any, pieces: list[Buffer]) -> None:
        """Write much without copying it into one."""
        if self._vectored:
            transport.writelines(pieces)
        else:  # this loop would join them
            for piece in pieces:
                transport.write(piece)


def socket_facts(transport: Any, outgoing: bool, scheme: str) -> PeerFacts:
    """What a socket's transport says of its ends."""
    peer = transport.get_extra_info("peername") or ("", 0)
    local = transport.get_extra_info("sockname") or ("", 0)
    return PeerFacts(
        peer_address=f"{scheme}://{join_host_port(str(peer[0]), int(peer[1]))}",
        local_address=f"{scheme}://{join_host_port(str(local[0]), int(local[1]))}",
        same_host=peer[0] == local[0] and peer[0] not in WILDCARDS,
        outgoing=outgoing,
        names=certificate_names(transport.get_extra_info("peercert")) if scheme == "tls" else (),
    )


def _writes_vectors(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether ``writelines`` of this loop's sockets hands the pieces to the kernel as they are."""
    return type(loop).__module__.startswith("uvloop") or sys.version_info >= (3, 12)
