"""Interfaces of comms: what is known of a peer, the events of a comm, and listeners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

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
    """Receives the events of one comm. Implemented by ``peers.peer.Peer``."""

    def frames_in(self, messages: list[Any]) -> None:
        """Process received messages (lists of frames), in order."""

    def paused(self) -> None:
        """Process that the peer reads slowly: more than the high-water mark is unwritten."""

    def resumed(self) -> None:
        """Process that less than the low-water mark is unwritten."""

    def connection_lost(self, reason: str) -> None:
        """Process the end of the connection, which is the last event."""


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
