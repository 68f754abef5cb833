"""All connections of a server: comms, and the transport that listens and connects.

Each scheme has a ``CommBackend`` (``backends.py``), whose comms receive messages for their
``CommEvents`` and collect what is written: everything written within one turn of the event loop is
sent in one write per peer.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.protocol.compression import Buffer
from paceline.protocol.framing import SCRATCH_NBYTES, Allocator, Frames, Limits
from paceline.workers_compat.addressing import join_host_port

from .errors import EncryptionRequiredError
from .sockets import PeerFacts

logger = logging.getLogger("distributed.scheduler")

#: A peer with more unwritten bytes is slow: ``CommEvents.paused`` is called.
WRITE_HIGH_WATER_NBYTES = 4 * 2**20
#: ``CommEvents.resumed`` is called once fewer bytes are left.
WRITE_LOW_WATER_NBYTES = 2**20
#: Schemes without encryption.
PLAIN_SCHEMES = frozenset({"tcp", "ws"})


class CommEvents(Protocol):
    """Receives the events of one comm. Implemented by ``peers.peer.Peer``."""

    def messages_received(self, messages: list[Any]) -> None:
        """Process received messages (lists of frames), in order."""

    def paused(self) -> None:
        """Process that the peer reads slowly: more than the high-water mark is unwritten."""

    def resumed(self) -> None:
        """Process that less than the low-water mark is unwritten."""

    def connection_lost(self, reason: str) -> None:
        """Process the end of the connection, which is the last event."""


class NoEvents:
    """The ``CommEvents`` of a comm that is closed, which ignores them."""

    def messages_received(self, messages: list[Any]) -> None: ...

    def paused(self) -> None: ...

    def resumed(self) -> None: ...

    def connection_lost(self, reason: str) -> None: ...


class Listener(Protocol):
    """Accepts connections."""

    @property
    def listen_address(self) -> str:
        """The address it is bound to, which may be a wildcard."""

    @property
    def contact_address(self) -> str:
        """An address that peers can connect to."""

    def close(self) -> None:
        """Stop accepting connections; open ones stay."""


class Comm(ABC):
    """A connection that sends and receives frames. Base class of the comms of all schemes.

    Attributes:
        facts: what is known of the peer.
        events: receives the events. Set when the connection opens; ``NoEvents`` once it is closed.
        incomplete: the incomplete message's frame lengths and its frames so far; None if unknown.
        number: of a connection that is recorded (``durable``), else 0.
        is_stream: whether it is the stream of a worker or client.
        out_of_memory: it was closed because there was no memory or disk space for a message.
        has_replied: data other than the handshake was written since the last request was done.
        n_messages: number of messages of the stream that are in what was written so far.
    """

    events: CommEvents
    number = 0
    is_stream = False
    out_of_memory = False
    has_replied = False
    n_messages = 0

    def __init__(self, owner: Transport, facts: PeerFacts) -> None:
        self.facts = facts
        self._owner = owner
        self._closing = False
        self._dirty = False
        self._reason = ""

    def write(self, frames: Sequence[Buffer]) -> None:
        """Collect the frames of one message, which must not change, unless the comm is closed.

        Raises:
            ValueError: the message is too large for this scheme.
        """
        if self._closing:
            return
        self.collect(frames)
        if not self._dirty:
            self._dirty = True
            self._owner.flush_soon(self)

    def drop(self, reason: str) -> None:
        """Close the connection at once because of what the peer did, and log `reason`."""
        logger.warning("Dropping connection to %s: %s", self.facts.peer_address, reason)
        self.abort(reason)

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        self._reason = self._reason or reason
        self._closing = True
        self.close_now()

    def close(self) -> None:
        """Close the connection once everything is written."""
        if not self._closing:
            self.flush()
            self._closing = True
            self._reason = self._reason or "closed"
            self.close_when_written()

    @property
    def incomplete(self) -> tuple[tuple[int, ...], Frames] | None:
        return None

    # for subclasses to implement

    @abstractmethod
    def admit(self) -> None:
        """Accept messages of full size, after the handshake was accepted.

        Messages received together with the handshake reach `events` before this returns.
        """

    @abstractmethod
    def receive_large_into(self, allocate: Allocator | None) -> None:
        """Receive large frames into memory that ``allocate(nbytes)`` returns, unless it is None."""

    @property
    @abstractmethod
    def unwritten_nbytes(self) -> int:
        """Bytes that the peer has not been sent, including those collected since the last flush."""

    @abstractmethod
    def collect(self, frames: Sequence[Buffer]) -> None:
        """Collect one message for the next flush."""

    @abstractmethod
    def flush(self) -> None:
        """Write what was collected."""

    @abstractmethod
    def pause_reading(self) -> None:
        """Stop reading from the peer, so that the kernel applies backpressure."""

    @abstractmethod
    def resume_reading(self) -> None:
        """Resume reading."""

    @abstractmethod
    def close_now(self) -> None:
        """Close the connection at once."""

    @abstractmethod
    def close_when_written(self) -> None:
        """Close the connection once everything is written."""


class CommBackend(Protocol):
    """Implements a scheme. If the scheme has no ports, the host is the whole location."""

    async def listen(self, transport: Transport, host: str, port: int) -> Listener: ...

    async def connect(self, transport: Transport, host: str, port: int) -> Comm: ...


class Transport:
    """All connections of a server.

    Args:
        opened: called with each new comm; returns the receiver of its events.
        backends: returns the backend of a scheme.
        handshake_limits: limits of a message until ``Comm.admit`` is called; None for `limits`.
        require_encryption: whether to refuse ``tcp`` and ``ws``.

    Attributes:
        limits: what a message's prelude may claim.
        scratch: read buffer of all comms, because a read is handled before the next one.
    """

    def __init__(
        self,
        opened: Callable[[Comm], CommEvents],
        backends: Callable[[str], CommBackend],
        handshake_limits: Limits | None = None,
        require_encryption: bool = False,
        scratch: memoryview | None = None,
    ) -> None:
        self.limits = Limits()
        self.handshake_limits = handshake_limits
        self.scratch = scratch or memoryview(bytearray(SCRATCH_NBYTES))
        self.comms: set[Comm] = set()
        self._opened = opened
        self._backends = backends
        self._require_encryption = require_encryption
        self._loop = asyncio.get_running_loop()
        self._dirty: list[Comm] = []

    async def listen(self, scheme: str, host: str, port: int) -> Listener:
        """Accept connections. Host "" is every interface, IPv4 and IPv6; port 0 is a free one.

        Raises:
            OSError: the address cannot be bound.
            ValueError: the scheme is unknown.
        """
        return await self._backend(scheme, host, port).listen(self, host, port)

    async def connect(self, scheme: str, host: str, port: int) -> Comm:
        """Connect, and return the open comm.

        Raises:
            OSError: connecting failed, or encryption is required.
            ValueError: the scheme is unknown.
        """
        return await self._backend(scheme, host, port).connect(self, host, port)

    def _backend(self, scheme: str, host: str, port: int) -> CommBackend:
        if self._require_encryption and scheme in PLAIN_SCHEMES:
            raise EncryptionRequiredError(
                "encryption required by Dask configuration, refusing communication from/to "
                f"{f'{scheme}://{join_host_port(host, port)}'!r}"
            )
        return self._backends(scheme)

    def flush(self) -> None:
        """Write everything that was collected, in one write per peer.

        A comm that cannot be written is closed. The other ones are written.
        """
        dirty, self._dirty = self._dirty, []
        for comm in dirty:
            try:
                comm.flush()
            except Exception as error:
                logger.exception("Cannot write to %s", comm.facts.peer_address)
                comm.abort(f"{type(error).__name__}: {error}")

    async def close_all(self, timeout: float) -> None:
        """Close all connections once written; abort them after `timeout` seconds."""
        for comm in list(self.comms):
            comm.close()
        deadline = self._loop.time() + timeout
        while self.comms and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for comm in list(self.comms):
            comm.abort("shutting down")
        await asyncio.sleep(0)

    # called by comms

    def flush_soon(self, comm: Comm) -> None:
        """Flush a comm at the end of this turn of the event loop."""
        if not self._dirty:
            self._loop.call_soon(self.flush)
        self._dirty.append(comm)

    def connection_made(self, comm: Comm) -> None:
        """Register a connection that was opened."""
        self.comms.add(comm)
        comm.events = self._opened(comm)

    def connection_lost(self, comm: Comm, reason: str) -> None:
        """Remove a connection that was closed, and break the reference cycle of comm and peer.

        A scheduler that is always busy would collect such cycles late.
        """
        if comm in self.comms:
            self.comms.remove(comm)
            events, comm.events = comm.events, NoEvents()
            events.connection_lost(reason)
