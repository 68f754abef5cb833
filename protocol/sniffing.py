"""The frame reader of an observer, which omits frames that are too large to keep.

An observer needs only frame 0 and the headers. Of a gather of gigabytes it keeps the first
megabytes, and the sizes of the other frames.
"""

from __future__ import annotations

from collections.abc import Sequence

from .compression import Buffer
from .framing import LARGE_FRAME_NBYTES, FrameReader, Limits, frame_nbytes
from .omitted_frame import OmittedFrame

#: Bytes of frames that are kept of one message, the first ones.
KEPT_MAX_NBYTES = 16 * 2**20

_U64 = 8


def real_nbytes(frame: Buffer) -> int:
    """Return the size of a frame on the wire in bytes, whether it was kept or omitted."""
    return frame.omitted_nbytes if isinstance(frame, OmittedFrame) else frame_nbytes(frame)


def wire_nbytes(frames: Sequence[Buffer]) -> int:
    """Return the size of a message on the wire in bytes, including its prelude."""
    return _U64 * (2 + len(frames)) + sum(map(real_nbytes, frames))


class _OmittedSink:
    """A ``FrameSink`` that keeps the size of a frame only."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def write(self, data: memoryview) -> None:
        """Ignore `data`."""

    def received(self) -> Buffer:
        """Raise ValueError."""
        raise ValueError("the pieces of an omitted frame are not kept")

    def finish(self) -> OmittedFrame:
        """Return the replacement of the frame."""
        return OmittedFrame(self._nbytes)


class SniffingFrameReader(FrameReader):
    """A ``FrameReader`` that keeps at most `kept_nbytes` of one message."""

    def __init__(self, limits: Limits | None = None, kept_nbytes: int = KEPT_MAX_NBYTES) -> None:
        super().__init__(limits)
        self._kept_nbytes = kept_nbytes
        self._left = kept_nbytes  # of the incomplete message
        self._n_counted = 0  # its frames that were subtracted
        self.allocate = self._allocate

    def _allocate(self, nbytes: int) -> _OmittedSink | None:
        self._omit_small()
        if nbytes > self._left:
            return _OmittedSink(nbytes)
        self._left -= nbytes
        return None

    def _take_frames(self, data: Buffer, position: int, lengths: tuple[int, ...]) -> int:
        position = super()._take_frames(data, position, lengths)
        self._omit_small()
        if len(self._frames) == len(lengths):
            self._left, self._n_counted = self._kept_nbytes, 0
        return position

    def _omit_small(self) -> None:
        """Omit the small frames received last that exceed the limit."""
        frames = self._frames
        for index in range(self._n_counted, len(frames)):
            nbytes = real_nbytes(frames[index])
            if nbytes >= LARGE_FRAME_NBYTES:
                continue  # counted when it was allocated
            if nbytes > self._left:
                frames[index] = OmittedFrame(nbytes)
            else:
                self._left -= nbytes
        self._n_counted = len(frames)
