"""Memory for large frames that are passed on: the process's own up to a limit, then a temporary file's.

The file is unlinked from the start. What comes in is written to it (through a small buffer that stays in the
processor's cache: several times cheaper than fresh memory); then it is mapped, so that a frame is an ordinary
memoryview wherever it goes. Mapped pages that were touched count to the process until they are let go of:
``trim`` does that, and the kernel reads them back when they are touched again. Files are freed with the last
frame in them.

Must not know: what the frames hold.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from typing import BinaryIO

logger = logging.getLogger("distributed.scheduler")

#: Frames share files of this size; a larger frame has one of its own.
SEGMENT_NBYTES = 64 * 2**20
#: Frames start at multiples of this.
ALIGNMENT_NBYTES = 64


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
        self._current: _Segment | None = None
        self._broken = False
        self.sealed = False
        self.in_memory_nbytes = 0
        self.spooled_nbytes = 0

    def allocate(self, nbytes: int) -> bytearray | FileFrame:
        """Where a frame of ``nbytes`` is received to.

        Where no file can be had, it is the process's own memory after all, with a line in the log.
        """
        if self._broken or self.in_memory_nbytes + nbytes <= self._memory_nbytes:
            return self._from_memory(nbytes)
        current = self._current
        if current is None or current.free_nbytes < nbytes:
            try:
                current = _Segment(max(SEGMENT_NBYTES, nbytes), self._directory)
            except OSError as error:
                logger.warning(
                    "No temporary file for a large gather: %s; it stays in memory", error
                )
                self._broken = True
                return self._from_memory(nbytes)
            if self._on_first_file is not None:
                self._on_first_file()
                self._on_first_file = None
            self._current = current
            self._segments.append(weakref.ref(current))
        self.spooled_nbytes += nbytes
        return current.take(nbytes)

    def _from_memory(self, nbytes: int) -> bytearray:
        self.in_memory_nbytes += nbytes
        return bytearray(nbytes)

    def seal(self) -> None:
        """Nothing more comes in: from now on frames alone keep their segments."""
        self.sealed = True
        self._current = None
        for reference in self._segments:
            segment = reference()
            if segment is not None:
                segment.file.close()

    def trim(self) -> bool:
        """Give mapped pages back to the kernel. Returns whether any segment is still in use."""
        alive = []
        for reference in self._segments:
            segment = reference()
            if segment is not None:
                segment.trim()
                alive.append(reference)
        self._segments = alive
        return bool(alive)


class FileFrame:
    """A frame on its way into a file. A ``FrameSink`` of ``protocol.framing``."""

    __slots__ = ("_segment", "_start", "_stop", "_written")

    def __init__(self, segment: _Segment, start: int, nbytes: int) -> None:
        self._segment = segment
        self._start = start
        self._stop = start + nbytes
        self._written = start

    def write(self, data: memoryview) -> None:
        """The next piece.

        Raises:
            OSError: the file does not take it.
        """
        file = self._segment.file
        if file.closed:
            raise OSError("nobody waits for this frame any more")
        while data:
            count = os.pwrite(file.fileno(), data, self._written)
            self._written += count
            data = data[count:]

    def finish(self) -> memoryview:
        """The whole frame, mapped."""
        return memoryview(self._segment)[self._start : self._stop]


class _Segment(mmap.mmap):
    """One temporary file, mapped. The frames' memoryviews keep it alive.

    Attributes:
        file: where frames are written to; closed when nothing more is.
    """

    file: BinaryIO
    _used: int

    def __new__(cls, nbytes: int, directory: str | None) -> _Segment:
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - the segment owns it
        try:
            # reserved now: a full disk must be an error here, not a fault when a page is read; and writing
            # to reserved space is cheap
            os.posix_fallocate(file.fileno(), 0, nbytes)
            segment = super().__new__(cls, file.fileno(), nbytes, access=mmap.ACCESS_READ)
        except BaseException:
            file.close()
            raise
        segment.file = file
        segment._used = 0
        return segment

    @property
    def free_nbytes(self) -> int:
        return len(self) - self._used

    def take(self, nbytes: int) -> FileFrame:
        start = self._used
        self._used = min(len(self), start + -(-nbytes // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES)
        return FileFrame(self, start, nbytes)

    def trim(self) -> None:
        self.madvise(mmap.MADV_DONTNEED)
