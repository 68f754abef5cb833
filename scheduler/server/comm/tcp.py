"""The comm of ``tcp://``: a buffered protocol around a ``FrameReader``.

Large frames are received directly into their own memory.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from paceline.protocol.compression import Buffer
from paceline.protocol.errors import RemoteProtocolError, StorageError
from paceline.protocol.framing import Allocator, FrameReader, Frames, pack_frames

from .accepting import SocketAcceptor, SocketListener, in_tasks
from .sockets import (
    PeerFacts,
    bind_sockets,
    bound,
    is_half_closed,
    set_socket_options,
    socket_facts,
)
from .transport import (
    WRITE_HIGH_WATER_NBYTES,
    WRITE_LOW_WATER_NBYTES,
    Comm,
    Listener,
    Transport,
)

#: Writes up to this size are joined into one buffer; pieces of larger ones are written separately.
JOIN_MAX_NBYTES = 128 * 2**10
#: Time in which a peer that has closed its end may read what was written, seconds.
EOF_SECONDS = 10.0


class _Protocol(asyncio.BufferedProtocol):
    """Passes the calls of the event loop to a comm.

    The comm does not derive from ``BufferedProtocol`` itself, because mypyc could not compile it.
    """

    def __init__(self, comm: TcpComm) -> None:
        reading = ("connection_made", "get_buffer", "buffer_updated", "eof_received")
        for name in (*reading, "pause_writing", "resume_writing", "connection_lost"):
            setattr(self, name, getattr(comm, name))


class TcpComm(Comm):
    """A connection over a plain socket."""

    scheme = "tcp"

    def __init__(self, owner: Transport, outgoing: bool) -> None:
        super().__init__(owner, PeerFacts("", "", outgoing))
        self._reader = FrameReader(owner.limits, owner.scratch, owner.handshake_limits)
        self._transport: Any = None  # while the connection is open
        self._out: list[Buffer] = []
        self._out_nbytes = 0
        self._eof_timer: asyncio.TimerHandle | None = None  # while the peer reads slowly

    def protocol(self) -> asyncio.BufferedProtocol:
        """Return the protocol whose methods the event loop calls."""
        return _Protocol(self)

    # called by the event loop

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory that receives what is read next."""
        return self._reader.get_buffer(sizehint)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_NBYTES, low=WRITE_LOW_WATER_NBYTES)
        set_socket_options(transport.get_extra_info("socket"))
        self.facts = socket_facts(
            transport.get_extra_info("peername") or ("", 0),
            transport.get_extra_info("sockname") or ("", 0),
            transport.get_extra_info("peercert"),
            self.scheme,
            self.facts.outgoing,
        )
        self.begin()

    def begin(self) -> None:
        """Report the new connection."""
        self._owner.connection_made(self)

    def buffer_updated(self, nbytes: int) -> None:
        if not self._closing:
            self._process(self._reader.buffer_updated, nbytes)

    def _process(self, read: Callable[..., list[Any]], *args: Any) -> None:
        try:
            messages = read(*args)
        except RemoteProtocolError as error:
            if error.messages:
                self.events.messages_received(list(error.messages))
                self.flush()
            if not self._closing:
                self.out_of_memory = isinstance(error, StorageError)
                self.drop(str(error))
        else:
            if messages:
                self.events.messages_received(messages)

    def pause_writing(self) -> None:
        self._set_eof_timer()
        self.events.paused()

    def resume_writing(self) -> None:
        self._stop_eof_timer()
        self.events.resumed()

    def _set_eof_timer(self) -> None:
        """Check for the end of the peer later: ``eof_received`` waits while reading is paused."""
        loop = asyncio.get_running_loop()
        self._eof_timer = loop.call_later(EOF_SECONDS, self._check_eof)

    def _stop_eof_timer(self) -> None:
        if self._eof_timer is not None:
            self._eof_timer.cancel()
            self._eof_timer = None

    def _check_eof(self) -> None:
        if self._transport is not None and is_half_closed(self.fd):
            self._reason = self._reason or "closed by peer"
            self.close_now()
        elif self._transport is not None:
            self._set_eof_timer()

    def eof_received(self) -> bool:
        self._reason = self._reason or "closed by peer"
        if self.unwritten_nbytes:
            asyncio.get_running_loop().call_later(EOF_SECONDS, self.close_now)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._transport = None
        self._stop_eof_timer()
        self._reader = FrameReader()  # release the frames of an incomplete message
        self._out.clear()
        self._out_nbytes = 0
        reason = self._reason or (f"{type(error).__name__}: {error}" if error else "closed")
        self._owner.connection_lost(self, reason)

    # called by the server

    def collect(self, frames: Sequence[Buffer]) -> None:
        for piece in pack_frames(frames):
            self._out.append(piece)
            self._out_nbytes += len(piece)

    def flush(self) -> None:
        self._dirty = False
        out, nbytes = self._out, self._out_nbytes
        if out and self._transport is not None:
            self._out, self._out_nbytes = [], 0
            self.write_out(out if nbytes > JOIN_MAX_NBYTES else [b"".join(out)], nbytes)

    def write_out(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Pass data of `nbytes` to the event loop."""
        if len(buffers) > 1 and _writes_vectors(self._transport):
            self._transport.writelines(buffers)
        else:
            for buffer in buffers:
                self._transport.write(buffer)

    def close_now(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close_when_written(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def pause_reading(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def admit(self) -> None:
        if self._transport is not None:
            self._process(self._reader.admit)

    def receive_large_into(self, allocate: Allocator | None) -> None:
        if self._transport is not None:
            self._reader.allocate = allocate

    @property
    def incomplete(self) -> tuple[tuple[int, ...], Frames] | None:
        return self._reader.incomplete

    @property
    def fd(self) -> int:
        """The descriptor of the socket, or -1 if it is closed."""
        if self._transport is None:
            return -1
        return int(self._transport.get_extra_info("socket").fileno())

    @property
    def unwritten_nbytes(self) -> int:
        if self._transport is None:
            return self._out_nbytes
        return self._out_nbytes + int(self._transport.get_write_buffer_size())


class TcpBackend:
    """Listens and connects with ``tcp://``."""

    scheme = "tcp"

    def sockets(self, host: str, port: int) -> list[socket.socket]:
        """Return the bound sockets of a new listener."""
        return bind_sockets(host, port)

    def new_comm(self, transport: Transport) -> TcpComm:
        """Return the comm for an accepted socket."""
        return TcpComm(transport, outgoing=False)

    async def listen(self, transport: Transport, host: str, port: int) -> Listener:
        sockets = self.sockets(host, port)
        accept = in_tasks(lambda sock: self.accept(transport, sock))
        acceptors = [SocketAcceptor(sock, accept) for sock in sockets]
        return SocketListener(acceptors, self.scheme, *bound(sockets))

    async def accept(self, transport: Transport, sock: socket.socket) -> None:
        """Open a comm on an accepted socket."""
        await self.open(self.new_comm(transport), sock)

    async def open(self, comm: TcpComm, sock: socket.socket) -> bool:
        """Connect a comm to its socket. Return False if the peer has closed it."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(comm.protocol, sock)
        except OSError:
            sock.close()
            return False
        return True

    async def connect(self, transport: Transport, host: str, port: int) -> Comm:
        comm = TcpComm(transport, outgoing=True)
        await asyncio.get_running_loop().create_connection(comm.protocol, host, port)
        return comm


def _writes_vectors(transport: Any) -> bool:
    """Return whether ``writelines`` passes the pieces to the kernel unjoined, and pauses writing.

    In asyncio, it joins them before Python 3.12, and may not pause before 3.13.2 (CVE-2024-12254).
    """
    return type(transport).__module__.startswith("uvloop") or sys.version_info >= (3, 13, 2)
