"""Memory for large frames that are passed on: the process's own up to a limit, then a temporary file's.

Disk and memory grow with the bytes that arrive, not with the lengths that a peer announces. The file is unlinked from the start. What comes in is written to it (through a small buffer that stays in the
processor's cache: several times cheaper than fresh memory); then it is mapped, so that a frame is an ordinary
memoryview wherever it goes. Mapped pages that were touched count to the process until they are let go of:
``trim`` does that, and the kernel reads them back when they are touched again. Files are freed with the last
frame in them.

The frames of one reply lie side by side, so that pieces of one thing can be passed on as one (``Spool.joined``).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from typing import BinaryIO

from paceline.protocol.framing import map_memory

logger = logging.getLogger("distributed.scheduler")

#: How often mapped pages are given back, seconds.
TRIM_SECONDS = 0.02
#: What a file can hold. It is sparse: only what is used is on the disk.
SEGMENT_NBYTES = 2**32
#: Disk space is reserved in steps of this size, when the bytes before them have arrived.
RESERVE_NBYTES = 2**24
#: When the disk is full, up to this much of an incomplete frame is moved to memory; the connection of a longer one is lost.
MOVED_MAX_NBYTES = 2**26
#: A frame from this size on goes to a file, and all that follow it in its reply: dask cuts what is larger into
#: pieces of this size, and they are to lie together.
FILE_FRAME_NBYTES = 2**26


class Spool:
    """Allocates memory for the frames of one flow.

    Attributes:
        in_memory_nbytes: what was given from the process's own memory.
        spooled_nbytes: what was given from temporary files.
        sealed: nothing more is allocated.

    Args:
        memory_nbytes: how much to give from the process's own memory.
        directory: where files go; None is the system's place for them.
        on_first_file: called once, when memory is first given from a file.
    """

    def __init__(
        self,
        memory_nbytes: int,
        directory: str | None = None,
        on_first_file: Callable[[], object] | None = None,
    ) -> None:
        self._memory_nbytes = memory_nbytes
        self._directory = directory
        self._on_first_file = on_first_file
        self._segments: list[weakref.ref[_Segment]] = []
        self._shared: _Segment | None = None
        self._broken = False
        self.sealed = False
        self.in_memory_nbytes = 0
        self.spooled_nbytes = 0
        self._places: dict[int, tuple[memoryview, _Segment, int]] = {}

    def lane(self) -> Lane:
        """An allocator for one reply."""
        return Lane(self)

    def has_room(self, nbytes: int) -> bool:
        """Whether a frame goes to the process's own memory."""
        if nbytes >= FILE_FRAME_NBYTES and nbytes >= self._memory_nbytes:
            return self._broken
        return self._broken or self.in_memory_nbytes + nbytes <= self._memory_nbytes

    def use_memory(self, nbytes: int) -> None:
        """Account for a frame in the process's own memory, which the frame reader maps without touching it."""
        self.in_memory_nbytes += nbytes

    def shared(self, nbytes: int) -> _Segment | None:
        """The file of all replies that have none of their own; None where there can be none."""
        if self._shared is None or self._shared.free_nbytes < nbytes:
            self._shared = self.new_segment(nbytes)
        return self._shared

    def new_segment(self, nbytes: int) -> _Segment | None:
        """A file with room for ``nbytes``; None, with a line in the log, where there can be none."""
        try:
            segment = _Segment(max(SEGMENT_NBYTES, nbytes), self._directory)
        except (OSError, ValueError, OverflowError) as error:
            self.give_up(error)
            return None
        if self._on_first_file is not None:
            self._on_first_file()
            self._on_first_file = None
        self._segments.append(weakref.ref(segment))
        return segment

    def take(self, segment: _Segment, nbytes: int) -> FileFrame | None:
        """Return a frame of the file, or None if the disk does not have ``nbytes`` free."""
        try:
            start = segment.assign(nbytes)
        except OSError as error:
            self.give_up(error)
            self.use_memory(nbytes)
            return None
        self.spooled_nbytes += nbytes
        return FileFrame(self, segment, start, nbytes)

    def give_up(self, error: Exception) -> None:
        """Use memory instead of files from now on, because of ``error``."""
        if not self._broken:
            logger.warning(
                "Cannot keep a large message in a temporary file: %s; keeping it in memory. "
                "Set temporary-directory to a larger file system",
                error,
            )
        self._broken = True

    def placed(self, view: memoryview, segment: _Segment, start: int) -> None:
        """A frame is complete."""
        if not self.sealed:
            self._places[id(view)] = (view, segment, start)

    def joined(self, frames: Sequence[object]) -> memoryview | None:
        """One view of frames that lie side by side in one file, in this order; None where they do not."""
        places = [self._places.get(id(frame)) for frame in frames]
        first = places[0] if places else None
        if first is None:
            return None
        _, segment, start = first
        at = start
        for place in places:
            if place is None or place[1] is not segment or place[2] != at:
                return None
            at += len(place[0])
        return memoryview(segment)[start:at]

    def seal(self) -> None:
        """Nothing more comes in: from now on frames alone keep their files."""
        self.sealed = True
        self._shared = None
        self._places.clear()
        for reference in self._segments:
            segment = reference()
            if segment is not None:
                segment.file.close()

    def trim(self) -> bool:
        """Give mapped pages back to the kernel. Returns whether any file is still in use."""
        alive = []
        for reference in self._segments:
            segment = reference()
            if segment is not None:
                segment.trim()
                alive.append(reference)
        self._segments = alive
        return bool(alive)


class Lane:
    """Allocates for the frames of one reply, which come one after the other."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._own: _Segment | None = None

    def allocate(self, nbytes: int) -> FileFrame | None:
        """Return the file that receives a frame of ``nbytes``, or None for the memory of the frame reader.

        If no file can be created or the disk is full, log a warning and return None.
        """
        spool = self._spool
        segment = self._own
        if segment is None and spool.has_room(nbytes):
            spool.use_memory(nbytes)
            return None
        if segment is not None and segment.free_nbytes < nbytes:
            segment = None
        if segment is None:
            if self._own is not None or nbytes >= FILE_FRAME_NBYTES:
                segment = self._own = spool.new_segment(nbytes)
            else:
                segment = spool.shared(nbytes)
        if segment is None:
            spool.use_memory(nbytes)
            return None
        return spool.take(segment, nbytes)


class FileFrame:
    """A frame on its way into a file. A ``FrameSink`` of ``protocol.framing``."""

    __slots__ = ("_memory", "_segment", "_spool", "_start", "_stop", "_written")

    def __init__(self, spool: Spool, segment: _Segment, start: int, nbytes: int) -> None:
        self._spool = spool
        self._segment = segment
        self._start = start
        self._stop = start + nbytes
        self._written = start
        self._memory: memoryview | None = None

    def write(self, data: memoryview) -> None:
        """Append ``data``. If the disk is full, move the frame to memory.

        Raises:
            OSError: the file cannot be written, and the frame is too long to be moved.
        """
        file = self._segment.file
        if self._memory is None and file.closed:
            raise OSError("the message is no longer expected")
        while data:
            if self._memory is not None:
                count = len(data)
                at = self._written - self._start
                self._memory[at : at + count] = data
            else:
                try:
                    self._segment.reserve(self._written + len(data))
                    count = os.pwrite(file.fileno(), data, self._written)
                except OSError as error:
                    self._move_to_memory(error)
                    continue
            self._written += count
            data = data[count:]

    def _move_to_memory(self, error: OSError) -> None:
        """Go on in memory after the file refused a write with ``error``."""
        done = self._written - self._start
        if done > MOVED_MAX_NBYTES:
            raise error
        self._spool.give_up(error)
        memory = memoryview(map_memory(self._stop - self._start))
        memory[:done] = memoryview(self._segment)[self._start : self._written]
        self._memory = memory

    def finish(self) -> memoryview:
        """Return the whole frame."""
        if self._memory is not None:
            return self._memory
        view = memoryview(self._segment)[self._start : self._stop]
        self._spool.placed(view, self._segment, self._start)
        return view


class _Segment(mmap.mmap):
    """One temporary file, mapped. The frames' memoryviews keep it alive.

    Attributes:
        file: where frames are written to; closed when nothing more is.
    """

    file: BinaryIO
    _used: int
    _reserved: int

    def __new__(cls, nbytes: int, directory: str | None) -> _Segment:
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - the segment owns it
        try:
            os.ftruncate(file.fileno(), nbytes)
            segment = super().__new__(cls, file.fileno(), nbytes, access=mmap.ACCESS_READ)
        except BaseException:
            file.close()
            raise
        segment.file = file
        segment._used = 0
        segment._reserved = 0
        return segment

    @property
    def free_nbytes(self) -> int:
        return len(self) - self._used

    def assign(self, nbytes: int) -> int:
        """Return the offset of the next frame. No disk space is used yet.

        Raises:
            OSError: the disk has less than ``nbytes`` free now.
        """
        free = os.fstatvfs(self.file.fileno())
        if nbytes > free.f_bavail * free.f_frsize:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} for {nbytes} bytes")
        start = self._used
        self._used = start + nbytes
        return start

    def reserve(self, stop: int) -> None:
        """Reserve disk space up to the offset ``stop`` and some more, which makes the writes cheaper.

        Raises:
            OSError: the disk is full.
        """
        missing = stop - self._reserved
        if missing > 0:
            step = min(max(missing, RESERVE_NBYTES), len(self) - self._reserved)
            with contextlib.suppress(OSError):  # less may be free; the write will show
                os.posix_fallocate(self.file.fileno(), self._reserved, step)
            self._reserved += step

    def trim(self) -> None:
        self.madvise(mmap.MADV_DONTNEED)


async def trim_while_used(spool: Spool) -> None:
    """Give mapped pages back while anything uses them."""
    while True:
        await asyncio.sleep(TRIM_SECONDS)
        if not spool.trim() and spool.sealed:
            return
