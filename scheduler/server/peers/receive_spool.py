"""Receive large messages, such as scattered data, into temporary files.

A message larger than a limit is received into an unlinked temporary file (``requests/spool.py``)
and mapped, so that it does not add to the memory of the process. Smaller messages stay in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from paceline.protocol.compression import Buffer
from paceline.protocol.framing import LARGE_FRAME_NBYTES, Frames, FrameSink
from paceline.scheduler.server.requests.spool import Lane, Spool, trim_while_used

#: Starts a background task: ``Server.spawn``.
Spawn = Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]]


class ReceiveSpool:
    """Allocates memory for the large frames of one connection. ``allocate`` is an ``Allocator``.

    Args:
        coming: returns the frame lengths and the received frames of the message that is being
            received.
        memory_nbytes: larger messages go to a file.
        directory: directory of the files; None is the system's directory for temporary files.
        spawn: runs the task that releases mapped pages.
    """

    def __init__(
        self,
        coming: Callable[[], tuple[tuple[int, ...], Frames] | None],
        memory_nbytes: int,
        directory: str | None,
        spawn: Spawn,
    ) -> None:
        self._coming = coming
        self._memory_nbytes = memory_nbytes
        self._directory = directory
        self._spawn = spawn
        self._frames: Frames | None = None
        self._last = 0
        self._spool: Spool | None = None
        self._lane: Lane | None = None

    def allocate(self, nbytes: int) -> FrameSink | None:
        """Return the file that receives the next large frame, of ``nbytes``, or None for memory."""
        coming = self._coming()
        if coming is None:
            return None
        lengths, frames = coming
        if frames is not self._frames:
            self.close()
            self._frames = frames
            if sum(lengths) > self._memory_nbytes:
                self._open()
                self._last = max(i for i, n in enumerate(lengths) if n >= LARGE_FRAME_NBYTES)
        if self._lane is None:
            return None
        sink = self._lane.allocate(nbytes)
        if len(frames) < self._last:
            return sink
        if sink is None:
            self.close()
            return None
        return _LastFrame(sink, self.close)

    def _open(self) -> None:
        spool = Spool(
            0,
            self._directory,
            on_first_file=lambda: self._spawn(trim_while_used(spool), "receive-spool-trim"),
        )
        self._spool, self._lane = spool, spool.lane()

    def close(self) -> None:
        """Seal the file of the current message. Only the frames that use it keep it open."""
        if self._spool is not None:
            self._spool.seal()
        self._frames = self._spool = self._lane = None


class _LastFrame:
    """The last large frame of a message: calls ``done`` when it is complete."""

    def __init__(self, sink: FrameSink, done: Callable[[], None]) -> None:
        self._sink = sink
        self._done = done
        self.write = sink.write

    def finish(self) -> Buffer:
        """Return the whole frame."""
        view = self._sink.finish()
        self._done()
        return view
