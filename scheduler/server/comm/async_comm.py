"""Base class of comms that are written by a task, message by message."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from paceline.protocol.framing import Allocator, frame_nbytes

from .interface import WRITE_HIGH_WATER_NBYTES, Buffer, PeerFacts
from .transport import Transport

logger = logging.getLogger("distributed.scheduler")


class AsyncComm:
    """One connection. Unwritten data is bounded like sockets' buffers, by the high-water mark.

    Args:
        owner: the transport.
        facts: of the peer.
    """

    def __init__(self, owner: Transport, facts: PeerFacts) -> None:
        self._owner = owner
        self._facts = facts
        self._number = owner.next_number()
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
        """See ``Comm``."""
        return self._number

    @property
    def facts(self) -> PeerFacts:
        """See ``Comm``."""
        return self._facts

    @property
    def transport(self) -> Any:
        """See ``Comm``."""
        return self

    # for subclasses to implement

    async def send(self, frames: Sequence[Buffer]) -> None:
        """Write one message, and wait if the peer reads slowly.

        Raises:
            OSError: the connection is closed.
        """
        raise AssertionError("a subclass implements this")

    def hang_up(self) -> None:
        """Close the connection, after everything was written."""
        raise AssertionError("a subclass implements this")

    def cut(self) -> None:
        """Close the connection at once."""
        raise AssertionError("a subclass implements this")

    # called by subclasses

    def message(self, frames: Sequence[Buffer]) -> None:
        """Process one received message."""
        if not self._closing:
            self._owner.events.frames_in(self._number, [frames])

    async def may_read(self) -> None:
        """Wait while reading is paused."""
        await self._reading.wait()

    def lost(self, reason: str) -> None:
        """Process the end of the connection."""
        if self._gone:
            return
        self._gone = self._closing = True
        self._out.clear()
        self._reading.set()
        if self._writer is not None and self._writer is not asyncio.current_task():
            self._writer.cancel()
        self._owner.connection_lost(self, self._reason or reason)

    # called by Transport

    def write(self, frames: Sequence[Buffer]) -> bool:
        """See ``Comm``."""
        if self._closing:
            return False
        self._out.append(frames)
        self._unwritten_nbytes += sum(map(frame_nbytes, frames))
        if self._dirty:
            return False
        self._dirty = True
        return True

    def flush(self) -> None:
        """See ``Comm``."""
        self._dirty = False
        if self._out and self._writer is None and not self._gone:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="writer")
        if not self._slow and self._unwritten_nbytes > WRITE_HIGH_WATER_NBYTES:
            self._slow = True
            self._owner.events.paused(self._number)

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
            self._owner.events.resumed(self._number)
        if self._close_when_written:
            self.hang_up()

    def close(self) -> None:
        """See ``Comm``."""
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
        """See ``Comm``."""
        self._reason = self._reason or reason
        self._closing = True
        self.cut()
        asyncio.get_running_loop().call_soon(self.lost, reason)

    def drop(self, reason: str) -> None:
        """See ``Comm``."""
        logger.warning("Dropping connection to %s: %s", self._facts.peer_address, reason)
        self.abort(reason)

    def admit(self) -> None:
        """See ``Comm``. Messages are already in memory, so that only the backend can limit them."""

    def receive_large_into(self, allocate: Allocator | None) -> None:
        """See ``Comm``. The frames are in the backend's memory; the caller has to copy them."""

    @property
    def unwritten_nbytes(self) -> int:
        """See ``Comm``."""
        return self._unwritten_nbytes

    # the interface of asyncio's transports

    def is_reading(self) -> bool:
        """See ``asyncio.ReadTransport``."""
        return self._reading.is_set()

    def pause_reading(self) -> None:
        """See ``asyncio.ReadTransport``."""
        self._reading.clear()

    def resume_reading(self) -> None:
        """See ``asyncio.ReadTransport``."""
        self._reading.set()
