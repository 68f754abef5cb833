"""Interfaces of comms: what is known of a peer, the events of a comm, comms and listeners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.protocol.framing import Allocator

Buffer = bytes | bytearray | memoryview

#: A peer with more unwritten bytes is slow: ``CommEvents.paused`` is called.
WRITE_HIGH_WATER_NBYTES = 4 * 2**20
#: ``CommEvents.resumed`` is called once fewer bytes are left.
WRITE_LOW_WATER_NBYTES = 2**20


class FatalConnectError(ConnectionError):
    """Connecting failed, and a retry would fail, too, for example with a rejected certificate."""


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """What is known of a connection when it opens.

    Attributes:
        peer_address: ``tcp://host:port`` of the other end.
        local_address: address of this end.
        same_host: whether both ends have the same IP address.
        outgoing: whether this end connected.
        names: names in the peer's certificate; () without TLS.
    """

    peer_address: str
    local_address: str
    same_host: bool
    outgoing: bool
    names: tuple[str, ...] = ()


class CommEvents(Protocol):
    """Receives the events of all comms of a ``Transport``."""

    def opened(self, number: int, facts: PeerFacts) -> None:
        """Process a connection that was accepted or made."""

    def frames_in(self, number: int, messages: list[Any]) -> None:
        """Process received messages (lists of frames), in order."""

    def paused(self, number: int) -> None:
        """Process that the peer reads slowly: more than the high-water mark is unwritten."""

    def resumed(self, number: int) -> None:
        """Process that less than the low-water mark is unwritten."""

    def closed(self, number: int, reason: str) -> None:
        """Process the end of the connection; this number has no further events."""


class Comm(Protocol):
    """One connection, of any scheme."""

    @property
    def number(self) -> int:
        """The number that the transport knows the connection by."""

    @property
    def facts(self) -> PeerFacts:
        """What is known of the peer."""

    @property
    def transport(self) -> Any:
        """An object with ``is_reading``, ``pause_reading`` and ``resume_reading``."""

    @property
    def unwritten_nbytes(self) -> int:
        """Bytes that the peer has not been sent, including those collected since the last flush."""

    def write(self, frames: Sequence[Buffer]) -> bool:
        """Collect one message. Return whether nothing was collected before."""

    def flush(self) -> None:
        """Write what was collected."""

    def drop(self, reason: str) -> None:
        """Close the connection at once and log `reason`."""

    def abort(self, reason: str) -> None:
        """Close the connection at once."""

    def close(self) -> None:
        """Close the connection once everything is written."""

    def admit(self) -> None:
        """Accept messages of full size, after the handshake was accepted."""

    def receive_large_into(self, allocate: Allocator | None) -> None:
        """Receive large frames into memory that ``allocate(nbytes)`` returns, unless it is None."""


class Listener(Protocol):
    """Accepts connections.

    Attributes:
        scheme: of its addresses.
    """

    scheme: str

    @property
    def listen_address(self) -> str:
        """The address it is bound to, which may be a wildcard."""

    @property
    def contact_address(self) -> str:
        """An address that peers can connect to."""

    def close(self) -> None:
        """Stop accepting connections; open ones stay."""
