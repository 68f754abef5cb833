"""Where large messages of peers go while they come in: what is scattered, for the most part.

A message beyond a limit is received into an unlinked temporary file (``flows/spool.py``) and mapped, so that the process does not
grow by it; all else stays in memory. One object a connection.

Must not know: what messages mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from paceline.protocol.framing import LARGE_FRAME_NBYTES, Frames, FrameSink

from .flows.spool import Lane, Spool, trim_while_used

#: What opens a background task: ``Server.spawn``.
Spawn = Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]]


class Inbound:
    """Gives memory for the large frames of one connection. ``allocate`` is an ``Allocator``.

    Args:
        coming: lengths, and the frames so far, of the message that is coming.
        memory_nbytes: a message of more goes to a file.
        directory: where files go; None is the system's place for them.
        spawn: runs what gives mapped pages back.
    """

    __slots__ = ("_coming", "_directory", "_frames", "_lane", "_memory_nbytes", "_spawn", "_spool")

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
        self._spool: Spool | None = None
        self._lane: Lane | None = None

    def allocate(self, nbytes: int) -> bytearray | FrameSink | None:
        """Where the next large frame goes; None for memory as usual."""
        coming = self._coming()
        if coming is None:
            return None
        lengths, frames = coming
        if frames is not self._frames:
            self.close()
            if sum(lengths) <= self._memory_nbytes:
                return None
            self._begin(frames)
        if self._lane is None:
            return None
        place = self._lane.allocate(nbytes)
        if max(lengths[len(frames) + 1 :], default=0) >= LARGE_FRAME_NBYTES:
            return place
        if isinstance(place, bytearray):
            self.close()
            return place
        return _Last(place, self.close)

    def _begin(self, frames: Frames) -> None:
        spool = Spool(
            0,
            self._directory,
            on_first_file=lambda: self._spawn(trim_while_used(spool), "inbound-trim"),
        )
        self._frames, self._spool, self._lane = frames, spool, spool.lane()

    def close(self) -> None:
        """Nothing more of this message comes: its frames alone keep their file."""
        if self._spool is not None:
            self._spool.seal()
        self._frames = self._spool = self._lane = None


class _Last:
    """The last large frame of a message."""

    __slots__ = ("_done", "_place", "write")

    def __init__(self, place: FrameSink, done: Callable[[], None]) -> None:
        self._place = place
        self._done = done
        self.write = place.write

    def finish(self) -> memoryview:
        """The whole frame."""
        view = self._place.finish()
        self._done()
        return view
