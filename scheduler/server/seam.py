"""The shapes at the seam, and below it: facts of a peer, the sink above, and what each carrier's connections can.

Must not know: who implements them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from paceline.protocol.framing import Allocator

if TYPE_CHECKING:
    from .transport import Transport

Buffer = bytes | bytearray | memoryview

#: A peer with more than this waiting to be written is slow: it is told upwards as ``paused``.
WRITE_HIGH_WATER_NBYTES = 4 * 2**20
#: ... and as ``resumed`` once less than this is left.
WRITE_LOW_WATER_NBYTES = 2**20


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """What is known of a connection when it opens.

    Attributes:
        peer_address: ``tcp://host:port`` of the other end.
        local_address: of ours.
        same_host: both ends have the same IP address.
        outgoing: we dialled.
        names: what the peer's certificate calls it; () without TLS.
    """

    peer_address: str
    local_address: str
    same_host: bool
    outgoing: bool
    names: tuple[str, ...] = ()


class SeamSink(Protocol):
    """What lies above the seam."""

    def opened(self, number: int, facts: PeerFacts) -> None:
        """A connection is there, accepted or dialled."""

    def frames_in(self, number: int, sequence: int, messages: list[Any]) -> None:
        """Messages (lists of frames) came in order; ``sequence`` counts those before on this connection."""

    def paused(self, number: int) -> None:
        """The peer reads slowly: more than the high-water mark waits to be written."""

    def resumed(self, number: int) -> None:
        """Less than the low-water mark waits."""

    def closed(self, number: int, reason: str) -> None:
        """The connection is gone; nothing of this number follows."""


class Link(Protocol):
    """One connection, whatever carries it: what the transport asks of it."""

    @property
    def number(self) -> int:
        """At the seam."""

    @property
    def facts(self) -> PeerFacts:
        """What is known of the peer."""

    @property
    def transport(self) -> Any:
        """Answers ``is_reading``, ``pause_reading``, ``resume_reading`` and ``get_write_buffer_size``."""

    def write(self, frames: Sequence[Buffer]) -> bool:
        """Collect one message. Returns whether it had nothing to write before."""

    def flush(self) -> None:
        """Hand what was collected to the peer."""

    def drop(self, reason: str) -> None:
        """End it at once, with a line in the log."""

    def abort(self, reason: str) -> None:
        """End it at once."""

    def close(self) -> None:
        """End it once everything is written."""

    def receive_large_into(self, allocate: Allocator | None) -> None:
        """Receive large frames into memory that ``allocate(nbytes)`` gives."""


class Listening(Protocol):
    """Something that accepts connections.

    Attributes:
        scheme: of its addresses.
    """

    scheme: str

    @property
    def listen_address(self) -> str:
        """The address it is bound to; may be a wildcard."""

    @property
    def contact_address(self) -> str:
        """An address that others can reach it by."""

    def close(self) -> None:
        """Accept nothing more; connections stay."""


class Carrier(Protocol):
    """What speaks a scheme that is not plain ``tcp``. Where a scheme has no ports, the whole location is its host."""

    async def listen(self, transport: Transport, host: str, port: int) -> Listening:
        """See ``Transport.listen``."""

    async def dial(self, transport: Transport, host: str, port: int) -> int:
        """See ``Transport.dial``."""
