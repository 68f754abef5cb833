"""Memory for large frames that are passed on: up to a limit in memory, then in a temporary file.

Disk and memory grow with the bytes that arrive, not with the lengths that a peer announces. The
file is unlinked from the start. Received bytes are written to it, which is several times cheaper
than filling fresh memory, and then mapped, so that a frame is a memoryview. Mapped pages that were
touched count to the process until ``trim`` returns them; the kernel reads them again when needed.
A file is freed with its last frame.

The frames of one reply are adjacent, so that the shards of a value can be passed on as one frame
(``Spool.joined``).
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

#: Interval in which mapped pages are returned, seconds.
TRIM_SECONDS = 0.02
#: Size of a file. It is sparse: only what is used is on the disk.
SEGMENT_NBYTES = 2**32
#: Size of a file if a limit of the process (``ulimit -f`` or ``-v``) does not allow a larger one.
SEGMENT_MIN_NBYTES = 2**26
#: Disk space is reserved in steps of this size, when the bytes before them have arrived.
RESERVE_NBYTES = 2**24
#: If the disk is full, an incomplete frame up to this size is moved to memory; the connection of a
#: larger one is closed.
MOVED_MAX_NBYTES = 2**26
#: A frame of at least this size, and all that follow it in its reply, go to a file of their own,
#: because they are probably the shards of one value.
FILE_FRAME_NBYTES = 2**26
#: Error number -> what to do if a file cannot be used.
ADVICE = {
    errno.ENOSPC: "Set temporary-directory to a larger file system",
    errno.EDQUOT: "Set temporary-directory to a larger file system",
    errno.ENOMEM: "Raise the limit of the address space (ulimit -v)",
    errno.EFBIG: "Raise the limit of the file size (ulimit -f)",
}


class Spool:
    """Allocates memory for the frames of one request.

    Args:
        memory_nbytes: limit of the bytes in memory.
        directory: directory of the files; None for the system's default.
        on_first_file: called once with this object, when the first file is created.
    """

    def __init__(
        self,
        memory_nbytes: int,
        directory: str | None = None,
        on_first_file: Callable[[Spool], object] | None = None,
    ) -> None:
        self._memory_nbytes = memory_nbytes
        self._directory = directory
        self._on_first_file = on_first_file
        self._segments: weakref.WeakSet[_Segment] = weakref.WeakSet()
        self._shared: _Segment | None = None
        self._broken = False
        self.sealed = False  # no further frames are received
        self.in_memory_nbytes = 0
        self._places: dict[int, tuple[memoryview, _Segment, int]] = {}

    def allocator(self) -> ReplyAllocator:
        """Return an allocator for one reply."""
        return ReplyAllocator(self)

    def has_room(self, nbytes: int) -> bool:
        """Return whether a frame is received into memory."""
        is_large = FILE_FRAME_NBYTES <= nbytes >= self._memory_nbytes
        fits = self.in_memory_nbytes + nbytes <= self._memory_nbytes
        return self._broken or (fits and not is_large)

    def shared(self, nbytes: int) -> _Segment:
        """Return the file for the small frames of all replies."""
        if self._shared is None or self._shared.free_nbytes < nbytes:
            self._shared = self.new_segment(nbytes)
        return self._shared

    def new_segment(self, nbytes: int) -> _Segment:
        """Return a new file for at least ``nbytes``.

        Raises:
            OSError, ValueError, OverflowError: it cannot be created.
        """
        try:
            segment = _Segment(max(SEGMENT_NBYTES, nbytes), self._directory)
        except (OSError, ValueError, OverflowError):
            segment = _Segment(max(SEGMENT_MIN_NBYTES, nbytes), self._directory)
        if self._on_first_file is not None:
            self._on_first_file(self)
            self._on_first_file = None
        self._segments.add(segment)
        return segment

    def use_memory(self, error: Exception) -> None:
        """Use memory instead of files from now on, because of ``error``."""
        if not self._broken:
            advice = ADVICE.get(getattr(error, "errno", None) or 0)
            logger.warning(
                "Cannot keep a large message in a temporary file: %s; keeping it in memory%s",
                error,
                f". {advice}" if advice else "",
            )
        self._broken = True

    def placed(self, view: memoryview, segment: _Segment, start: int) -> None:
        """Record the place of a complete frame."""
        if not self.sealed:
            self._places[id(view)] = (view, segment, start)

    def joined(self, frames: Sequence[object]) -> memoryview | None:
        """Return one view of frames that are adjacent in one file, or None if they are not."""
        places = [self._places.get(id(frame)) for frame in frames]
        first = places[0] if places else None
        if first is None:
            return None
        _, segment, start = first
        stop = start
        for place in places:
            if place is None or place[1] is not segment or place[2] != stop:
                return None
            stop += len(place[0])
        return memoryview(segment)[start:stop]

    def seal(self) -> None:
        """Receive no further frames: only frames keep their files from now on."""
        self.sealed = True
        self._shared = None
        self._places.clear()
        for segment in self._segments:
            segment.file.close()

    def trim(self) -> bool:
        """Return mapped pages to the kernel. Return whether any file is still in use."""
        for segment in self._segments:
            segment.madvise(mmap.MADV_DONTNEED)
        return bool(self._segments)


class ReplyAllocator:
    """Allocates for the frames of one reply, which arrive one after the other."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._own: _Segment | None = None

    def allocate(self, nbytes: int) -> FileFrame | None:
        """Return the file that receives a frame of ``nbytes``, or None for the reader's memory.

        If no file can be created or the disk is full, log a warning and return None.
        """
        spool = self._spool
        if self._own is not None or not spool.has_room(nbytes):
            try:
                segment = self._segment(nbytes)
                start = segment.assign(nbytes)
            except (OSError, ValueError, OverflowError) as error:
                self._own = None
                spool.use_memory(error)
            else:
                return FileFrame(spool, segment, start, nbytes)
        spool.in_memory_nbytes += nbytes
        return None

    def _segment(self, nbytes: int) -> _Segment:
        if self._own is None and nbytes < FILE_FRAME_NBYTES:
            return self._spool.shared(nbytes)
        if self._own is None or self._own.free_nbytes < nbytes:
            self._own = self._spool.new_segment(nbytes)
        return self._own


class FileFrame:
    """A frame that is received into a file. A ``FrameSink`` of ``protocol.framing``."""

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
        done = self._written - self._start
        if done > MOVED_MAX_NBYTES:
            raise error
        self._spool.use_memory(error)
        memory = memoryview(map_memory(self._stop - self._start))
        memory[:done] = self.received()
        self._memory = memory

    def received(self) -> memoryview:
        """Return what was written."""
        if self._memory is not None:
            return self._memory[: self._written - self._start]
        return memoryview(self._segment)[self._start : self._written]

    def finish(self) -> memoryview:
        """Return the whole frame."""
        if self._memory is not None:
            return self._memory
        view = memoryview(self._segment)[self._start : self._stop]
        self._spool.placed(view, self._segment, self._start)
        return view


class _Segment(mmap.mmap):
    """A mapped temporary file. The frames' memoryviews keep it alive.

    Attributes:
        file: frames are written to it; closed when no further frames are received.
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
        """Reserve disk space up to the offset ``stop`` and some more, which speeds writes up."""
        missing = stop - self._reserved
        if missing > 0:
            step = min(max(missing, RESERVE_NBYTES), len(self) - self._reserved)
            with contextlib.suppress(OSError):  # too little may be free; then the write fails
                os.posix_fallocate(self.file.fileno(), self._reserved, step)
            self._reserved += step


async def trim_while_used(spool: Spool) -> None:
    """Return mapped pages to the kernel until no frame uses them."""
    while True:
        await asyncio.sleep(TRIM_SECONDS)
        if not spool.trim() and spool.sealed:
            return
