"""Base class of comms that are written by a task, message by message."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

from paceline.protocol.compression import Buffer
from paceline.protocol.framing import Allocator, frame_nbytes

from .sockets import PeerFacts
from .transport import WRITE_HIGH_WATER_NBYTES, Comm, Transport

logger = logging.getLogger("distributed.scheduler")


class AsyncComm(Comm):
    """A connection. Unwritten data is bounded like sockets' buffers, by the high-water mark."""

    def __init__(self, owner: Transport, facts: PeerFacts) -> None:
        super().__init__(owner, facts)
        self._out: deque[Sequence[Buffer]] = deque()
        self._unwritten_nbytes = 0
        self._slow = False
        self._gone = False
        self._end_when_written = False
        self._writer: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Event()
        self._reading.set()

    # for subclasses to implement

    @abstractmethod
    async def send(self, frames: Sequence[Buffer]) -> None:
        """Write one message, and wait if the peer reads slowly.

        Raises:
            OSError: the connection is closed.
        """

    @abstractmethod
    def end(self) -> None:
        """Close the connection, after everything was written."""

    # called by subclasses

    def message_received(self, frames: Sequence[Buffer]) -> None:
        """Process one received message."""
        if not self._closing:
            self.events.messages_received([frames])

    def run_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run ``coroutine``, which reads or closes the connection, in a task."""
        task = asyncio.get_running_loop().create_task(coroutine, name="comm")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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

    def collect(self, frames: Sequence[Buffer]) -> None:
        self._out.append(frames)
        self._unwritten_nbytes += sum(map(frame_nbytes, frames))

    def flush(self) -> None:
        self._dirty = False
        if self._out and self._writer is None and not self._gone:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="writer")
        if not self._slow and self._unwritten_nbytes > WRITE_HIGH_WATER_NBYTES:
            self._slow = True
            self.events.paused()

    async def _write(self) -> None:
        try:
            while self._out:
                frames = self._out.popleft()
                await self.send(frames)
                self._unwritten_nbytes -= sum(map(frame_nbytes, frames))
        except OSError as error:
            self.lost(str(error) or type(error).__name__)
        except Exception as error:
            logger.exception("Cannot write to %s", self.facts.peer_address)
            self.abort(f"{type(error).__name__}: {error}")
        finally:
            self._writer = None
            self._written()

    def _written(self) -> None:
        if self._gone:
            return
        if self._slow and not self._closing:
            self._slow = False
            self.events.resumed()
        if self._end_when_written:
            self.end()

    def close_when_written(self) -> None:
        self._end_when_written = self._writer is not None
        if not self._end_when_written:
            self.end()

    def abort(self, reason: str) -> None:
        super().abort(reason)
        asyncio.get_running_loop().call_soon(self.lost, reason)

    def admit(self) -> None:
        """See ``Comm``. Messages are already in memory, so that only the backend can limit them."""

    def receive_large_into(self, allocate: Allocator | None) -> None:
        """See ``Comm``. The frames are in the backend's memory; the caller has to copy them."""

    @property
    def unwritten_nbytes(self) -> int:
        return self._unwritten_nbytes

    def pause_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()
