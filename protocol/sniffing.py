"""The frame reader of an observer, which omits frames that are too large to keep.

``framing.FrameReader`` is for an end of a connection, which needs every byte. An observer needs
frame 0 and the headers. Of a gather of gigabytes it keeps the first megabytes, and the size of the
rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack_from

from .compression import Buffer
from .errors import RemoteProtocolError
from .framing import Frames, Limits, frame_nbytes

#: Bytes of frames that are kept of one message, the first ones.
KEPT_MAX_NBYTES = 16 * 2**20

_U64 = 8


class OmittedFrame(bytes):
    """Replaces a frame that was not kept; it is empty.

    Attributes:
        omitted_nbytes: size of the frame.
    """

    omitted_nbytes: int

    def __new__(cls, nbytes: int) -> OmittedFrame:
        """Return the replacement of a frame of `nbytes`."""
        frame = super().__new__(cls)
        frame.omitted_nbytes = nbytes
        return frame


def real_nbytes(frame: Buffer) -> int:
    """Return the size of a frame on the wire in bytes, whether it was kept or omitted."""
    return frame.omitted_nbytes if isinstance(frame, OmittedFrame) else frame_nbytes(frame)


def wire_nbytes(frames: Sequence[Buffer]) -> int:
    """Return the size of a message on the wire in bytes, including its prelude."""
    return _U64 * (2 + len(frames)) + sum(map(real_nbytes, frames))


class SniffingFrameReader:
    """Reads messages from pieces of any size. It keeps at most a prelude and `kept_nbytes`.

    Args:
        limits: what a prelude may claim.
        kept_nbytes: limit of the bytes that are kept of one message.
    """

    __slots__ = ("_frames", "_kept", "_left", "_lengths", "_limits", "_prelude", "_skip")

    def __init__(self, limits: Limits | None = None, kept_nbytes: int = KEPT_MAX_NBYTES) -> None:
        self._limits = limits or Limits()
        self._kept = kept_nbytes
        self._left = kept_nbytes  # of the incomplete message
        self._prelude = bytearray()
        self._lengths: tuple[int, ...] | None = None  # frames of the incomplete message
        self._frames: list[Buffer] = []  # its frames so far; the last may be incomplete
        self._skip = 0  # remaining bytes of an omitted frame

    @property
    def is_idle(self) -> bool:
        """Whether no part of an incomplete message was received."""
        return not self._prelude and self._lengths is None

    def feed(self, data: Buffer) -> list[Frames]:
        """Process `data`, whose memory may be reused after the call. Return the complete messages.

        Raises:
            RemoteProtocolError: the data is invalid; the reader cannot be used any more.
        """
        view = memoryview(data)
        messages: list[Frames] = []
        while True:
            if self._lengths is None:
                view = self._take_prelude(view)
                if self._lengths is None:
                    return messages
            view = self._take_frames(view)
            if self._skip or len(self._frames) < len(self._lengths or ()) or not self._is_whole():
                return messages
            messages.append([f if isinstance(f, OmittedFrame) else bytes(f) for f in self._frames])
            self._lengths, self._frames, self._left = None, [], self._kept

    def _take_prelude(self, view: memoryview) -> memoryview:
        prelude = self._prelude
        while True:
            need = 2 * _U64
            if len(prelude) >= need:
                count = unpack_from("<Q", prelude, _U64)[0]
                need += count * _U64
                if count > self._limits.max_frames or need > self._limits.max_prelude_nbytes:
                    raise RemoteProtocolError(f"a message claims {count} frames")
                if len(prelude) == need:
                    break
            taken = min(need - len(prelude), len(view))
            if not taken:
                return view
            prelude += view[:taken]
            view = view[taken:]
        first = unpack_from("<Q", prelude)[0]
        lengths = unpack_from(f"<{count}Q", prelude, 2 * _U64)
        total = sum(lengths)
        if total > self._limits.max_message_nbytes:
            raise RemoteProtocolError(f"a message claims {total} bytes")
        if not _U64 * (1 + count) <= first <= _U64 * (1 + count) + total:
            raise RemoteProtocolError(f"a message of {count} frames claims {first} bytes")
        self._lengths = lengths
        self._prelude = bytearray()
        return view

    def _take_frames(self, view: memoryview) -> memoryview:
        lengths, frames = self._lengths or (), self._frames
        if self._skip:
            taken = min(self._skip, len(view))
            self._skip -= taken
            view = view[taken:]
            if self._skip:
                return view
        while True:
            if frames and not self._is_whole():
                last = frames[-1]
                assert isinstance(last, bytearray)
                taken = min(lengths[len(frames) - 1] - len(last), len(view))
                last += view[:taken]
                view = view[taken:]
                if not self._is_whole():
                    return view
            if len(frames) == len(lengths):
                return view
            length = lengths[len(frames)]
            if length <= self._left:
                self._left -= length
                frames.append(bytearray())
                continue
            frames.append(OmittedFrame(length))
            taken = min(length, len(view))
            self._skip = length - taken
            view = view[taken:]
            if self._skip:
                return view

    def _is_whole(self) -> bool:
        """Return whether the last frame is complete or omitted."""
        if not self._frames:
            return True
        last = self._frames[-1]
        if isinstance(last, OmittedFrame):
            return True
        return len(last) == (self._lengths or ())[len(self._frames) - 1]
