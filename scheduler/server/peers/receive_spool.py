"""Receive large messages, such as scattered data, into temporary files (``spool.py``).

They are mapped, so that they do not add to the memory of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from paceline.protocol.framing import Frames, FrameSink

from .spool import ReplyAllocator, Spool, trim_while_used

#: Starts a background task: ``Server.spawn``.
Spawn = Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]]


class ReceiveSpool:
    """Allocates memory for the large frames of one connection. ``allocate`` is an ``Allocator``.

    Args:
        incomplete: returns the frame lengths and the received frames of the message that is being
            received.
        memory_nbytes: larger messages go to a file.
        directory: directory of the files; None for the system's default.
        spawn: runs the task that releases mapped pages.
    """

    def __init__(
        self,
        incomplete: Callable[[], tuple[tuple[int, ...], Frames] | None],
        memory_nbytes: int,
        directory: str | None,
        spawn: Spawn,
    ) -> None:
        self._incomplete = incomplete
        self._memory_nbytes = memory_nbytes
        self._directory = directory
        self._spawn = spawn
        self._frames: Frames | None = None
        self._spool: Spool | None = None
        self._allocator: ReplyAllocator | None = None

    def allocate(self, nbytes: int) -> FrameSink | None:
        """Return the file that receives the next large frame, of ``nbytes``, or None for memory."""
        incomplete = self._incomplete()
        if incomplete is None:
            return None
        lengths, frames = incomplete
        if frames is not self._frames:
            self.close()
            self._frames = frames
            if sum(lengths) > self._memory_nbytes:
                self._open()
        return None if self._allocator is None else self._allocator.allocate(nbytes)

    def _open(self) -> None:
        spool = Spool(
            0,
            self._directory,
            on_first_file=lambda spool: self._spawn(trim_while_used(spool), "receive-spool-trim"),
        )
        self._spool, self._allocator = spool, spool.allocator()

    def continue_with(
        self, incomplete: Callable[[], tuple[tuple[int, ...], Frames] | None], spawn: Spawn
    ) -> None:
        """Receive in another process, which has inherited the file of the current message."""
        self._incomplete, self._spawn = incomplete, spawn
        if self._spool is not None:
            spawn(trim_while_used(self._spool), "receive-spool-trim")

    def close_complete(self) -> None:
        """Close the file of a message that is complete."""
        if self._frames is not None:
            incomplete = self._incomplete()
            if incomplete is None or incomplete[1] is not self._frames:
                self.close()

    def close(self) -> None:
        """Seal the file of the current message. Only the frames that use it keep it open."""
        if self._spool is not None:
            self._spool.seal()
        self._frames = self._spool = self._allocator = None
