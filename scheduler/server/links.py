"""Connections that a task of their own writes: where what carries them is awaited, message by message.

Must not know: what carries them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from paceline.protocol.framing import Allocator, frame_nbytes

from .seam import WRITE_HIGH_WATER_NBYTES, Buffer, PeerFacts
from .transport import Transport

logger = logging.getLogger("distributed.scheduler")


class QueuedLink:
    """One connection. What waits to be written is bounded as sockets' buffers are: above the high-water mark the peer is slow.

    Args:
        owner: whom to tell.
        facts: of the peer.
    """

    def __init__(self, owner: Transport, facts: PeerFacts) -> None:
        self._owner = owner
        self._facts = facts
        self._number = owner.next_number()
        self._received = 0
        self._out: deque[Sequence[Buffer]] = deque()
        self._unwritten_nbytes = 0
        self._slow = False
        self._dirty = False
        self._closing = False
        self._gone = False
        self._close_when_written = False
        self._reason = ""
        self._writer: asyncio.Task[None] | None = None
        self._reading = asyncio.Event()
        self._reading.set()

    @property
    def number(self) -> int:
        """See ``seam.Link``."""
        return self._number

    @property
    def facts(self) -> PeerFacts:
        """See ``seam.Link``."""
        return self._facts

    @property
    def transport(self) -> Any:
        """See ``seam.Link``."""
        return self

    # what each kind has

    async def send(self, frames: Sequence[Buffer]) -> None:
        """Write one message; wait where the peer reads slowly.

        Raises:
            OSError: the connection is gone.
        """
        raise AssertionError("each kind of link has its own")

    def hang_up(self) -> None:
        """Everything is written: close."""
        raise AssertionError("each kind of link has its own")

    def cut(self) -> None:
        """Close at once."""
        raise AssertionError("each kind of link has its own")

    # what comes

    def message(self, frames: Sequence[Buffer]) -> None:
        """One message came."""
        if not self._closing:
            sequence = self._received
            self._received += 1
            self._owner.sink.frames_in(self._number, sequence, [frames])

    async def may_read(self) -> None:
        """Wait while nothing more is wanted of the peer."""
        await self._reading.wait()

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        if self._gone:
            return
        self._gone = self._closing = True
        self._out.clear()
        self._reading.set()
        if self._writer is not None and self._writer is not asyncio.current_task():
            self._writer.cancel()
        self._owner.connection_lost(self, self._reason or reason)

    # what the owner calls

    def write(self, frames: Sequence[Buffer]) -> bool:
        """See ``seam.Link``."""
        if self._closing:
            return False
        self._out.append(frames)
        self._unwritten_nbytes += sum(map(frame_nbytes, frames))
        if self._dirty:
            return False
        self._dirty = True
        return True

    def flush(self) -> None:
        """See ``seam.Link``."""
        self._dirty = False
        if self._out and self._writer is None and not self._gone:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="writer")
        if not self._slow and self._unwritten_nbytes > WRITE_HIGH_WATER_NBYTES:
            self._slow = True
            self._owner.sink.paused(self._number)

    async def _write(self) -> None:
        try:
            while self._out:
                frames = self._out.popleft()
                await self.send(frames)
                self._unwritten_nbytes -= sum(map(frame_nbytes, frames))
        except OSError as error:
            self.lost(str(error) or type(error).__name__)
        except Exception as error:
            logger.exception("Cannot write to %s", self._facts.peer_address)
            self.abort(f"{type(error).__name__}: {error}")
        finally:
            self._writer = None
            self._written()

    def _written(self) -> None:
        if self._gone:
            return
        if self._slow and not self._closing:
            self._slow = False
            self._owner.sink.resumed(self._number)
        if self._close_when_written:
            self.hang_up()

    def close(self) -> None:
        """See ``seam.Link``."""
        if self._closing:
            return
        self.flush()
        self._closing = True
        self._reason = self._reason or "closed"
        if self._writer is None:
            self.hang_up()
        else:
            self._close_when_written = True

    def abort(self, reason: str) -> None:
        """See ``seam.Link``."""
        self._reason = self._reason or reason
        self._closing = True
        self.cut()
        asyncio.get_running_loop().call_soon(self.lost, reason)

    def drop(self, reason: str) -> None:
        """See ``seam.Link``."""
        logger.warning("Dropping connection to %s: %s", self._facts.peer_address, reason)
        self.abort(reason)

    def receive_large_into(self, allocate: Allocator | None) -> None:
        """Frames come in memory of the carrier's; whoever wanted them elsewhere copies them."""

    # as asyncio's transports

    def is_reading(self) -> bool:
        """As asyncio's transports say it."""
        return self._reading.is_set()

    def pause_reading(self) -> None:
        """As asyncio's transports do it."""
        self._reading.clear()

    def resume_reading(self) -> None:
        """As asyncio's transports do it."""
        self._reading.set()

    def get_write_buffer_size(self) -> int:
        """As asyncio's transports say it."""
        return self._unwritten_nbytes
