"""Bytes to messages' frames and back: the lowest layer of the wire.

A message on the socket, all integers u64 little endian::

    N            bytes that follow up to the end of frame K, so 8 * (1 + F) and the first K lengths
    F            how many frames
    length 0 .. length F-1
    frame 0 .. frame F-1

K tells a reader how much it may take into one buffer; here it is only checked. Large frames are received straight
into memory of their own, so that each can be freed alone.

Must not know: what frames mean.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Protocol

from .compression import Buffer
from .errors import RemoteProtocolError

Frames = list[Buffer]


class FrameSink(Protocol):
    """Takes a large frame piece by piece, as it comes: a file, say."""

    def write(self, data: memoryview) -> None:
        """The next piece; it may change after the call. Raises OSError."""

    def finish(self) -> memoryview:
        """The whole frame. Raises OSError."""


#: Gives writable memory of exactly so many bytes for a large frame, or a sink that takes so many; None: the reader's own.
Allocator = Callable[[int], "bytearray | memoryview | FrameSink | None"]

#: A frame from this size on is received into memory of its own.
LARGE_FRAME_NBYTES = 64 * 2**10
#: A frame from this size on gets its own pages: nothing is cleared first, and a size that is never
#: filled costs no memory.
MAPPED_FRAME_NBYTES = 2**20
#: A frame from this size on is worth huge pages.
HUGE_FRAME_NBYTES = 2**22
#: What one read from the socket may bring. Pages that no read has reached cost nothing.
SCRATCH_NBYTES = 256 * 2**10

_PRELUDE = Struct("<QQ")
_U64 = 8
#: How so many numbers of a prelude lie there; more are seldom.
_NUMBERS = tuple(Struct(f"<{count}Q") for count in range(64))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a prelude may claim. Whoever claims more is dropped.

    Attributes:
        max_frames: frames of one message. A gather of a million keys has two million.
        max_prelude_nbytes: size of the prelude; it is gathered before the first frame.
        max_message_nbytes: all frames of one message together.
    """

    max_frames: int = 2**22
    max_prelude_nbytes: int = 2**26
    max_message_nbytes: int = 2**36


class FrameReader:
    """Puts messages together from what a socket gives, in pieces of any size.

    Either ``feed`` what was read, or let the socket read into ``get_buffer`` and then call ``buffer_updated`` (the shape of
    ``asyncio.BufferedProtocol``). After a ``RemoteProtocolError`` it is dead.

    Args:
        limits: what a prelude may claim.
        scratch: where the socket reads to. Readers may share one as long as ``buffer_updated`` follows its ``get_buffer``
            before another reader's ``get_buffer``, which is so in one thread of asyncio's selector loop and uvloop.

    Attributes:
        allocate: gives memory, or a sink, for large frames; None for the process's own memory.
    """

    __slots__ = (
        "_error",
        "_filled",
        "_frames",
        "_large",
        "_large_nbytes",
        "_lengths",
        "_limits",
        "_need",
        "_rest",
        "_scratch",
        "_sink",
        "allocate",
    )

    def __init__(self, limits: Limits | None = None, scratch: memoryview | None = None) -> None:
        self._limits = limits or Limits()
        self._scratch = scratch
        self._rest = bytearray()  # what was read and cannot be used before `_need` bytes are there
        self._need = 0
        self._lengths: tuple[int, ...] | None = None  # of the message whose frames are coming
        self._frames: Frames = []  # of it, so far
        self._large_nbytes = 0  # size of the large frame that is coming; 0 for none
        self._filled = 0  # of it, so far
        self._large: memoryview | None = None  # its memory
        self._sink: FrameSink | None = None  # or where it goes instead
        self._error: str | None = None
        self.allocate: Allocator | None = None

    @property
    def is_idle(self) -> bool:
        """Nothing of a message has come that is not complete."""
        return not self._rest and self._lengths is None

    @property
    def coming(self) -> tuple[tuple[int, ...], Frames] | None:
        """Of the message that is coming: the lengths of all its frames, and the list that takes them one after the other.

        None while nothing of a message is there but perhaps a part of its prelude.
        """
        return None if self._lengths is None else (self._lengths, self._frames)

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Where the socket may write to next."""
        if self._large is not None:
            return self._large[self._filled :]
        if self._scratch is None:
            self._scratch = memoryview(mmap.mmap(-1, SCRATCH_NBYTES, **_PRIVATE))
        return self._scratch

    def buffer_updated(self, nbytes: int) -> list[Frames]:
        """The socket has written so many bytes to ``get_buffer()``.

        Returns: messages that are complete now.

        Raises:
            RemoteProtocolError: the peer claims what cannot be.
        """
        large = self._large
        if large is None:
            if self._scratch is None:
                raise ValueError("buffer_updated without get_buffer")
            return self.feed(self._scratch[:nbytes])
        self._filled += nbytes
        if self._filled < self._large_nbytes:
            return []
        return self.feed(b"")

    def feed(self, data: Buffer) -> list[Frames]:
        """Takes the next bytes, which may be reused afterwards.

        Returns: messages that are complete now.

        Raises:
            RemoteProtocolError: the peer claims what cannot be.
        """
        if self._error is not None:
            raise RemoteProtocolError(self._error)
        try:
            return self._feed(data)
        except RemoteProtocolError as error:
            self._error = str(error)
            self._rest = bytearray()
            self._frames = []
            self._large = self._sink = None
            self._large_nbytes = 0
            raise

    def _feed(self, data: Buffer) -> list[Frames]:
        position = 0
        if self._large_nbytes:
            position = self._fill(data)
            if self._filled < self._large_nbytes:
                return []
            self._frames.append(self._finish_large())
        elif self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return []
            data = self._rest
            self._rest = bytearray()
        messages: list[Frames] = []
        while True:
            lengths = self._lengths
            if lengths is None:
                if position == len(data):
                    return messages
                lengths = self._read_prelude(data, position)
                if lengths is None:
                    break
                position += 2 * _U64 + len(lengths) * _U64
                self._lengths = lengths
            position = self._take_frames(data, position, lengths)
            if len(self._frames) < len(lengths):
                break
            messages.append(self._frames)
            self._frames = []  # what it has given is not its own any more: the next message may be hours away
            self._lengths = None
        if not self._large_nbytes and position < len(data):
            self._rest = bytearray(memoryview(data)[position:])
        return messages

    def _fill(self, data: Buffer) -> int:
        """Gives the large frame what comes next. Returns how much of ``data`` it took."""
        count = min(len(data), self._large_nbytes - self._filled)
        piece = memoryview(data)[:count]
        if self._large is not None:
            self._large[self._filled : self._filled + count] = piece
        elif self._sink is not None and count:
            try:
                self._sink.write(piece)
            except OSError as error:
                raise RemoteProtocolError(f"a large frame cannot be kept: {error}") from error
        self._filled += count
        return count

    def _read_prelude(self, data: Buffer, position: int) -> tuple[int, ...] | None:
        """Lengths of the next message's frames; None if more bytes are needed."""
        limits = self._limits
        available = len(data) - position
        if available < 2 * _U64:
            self._need = 2 * _U64
            return None
        first, count = _PRELUDE.unpack_from(data, position)
        prelude_nbytes = 2 * _U64 + count * _U64
        if count > limits.max_frames:
            raise RemoteProtocolError(
                f"a message claims {count} frames; the limit is {limits.max_frames}"
            )
        if prelude_nbytes > limits.max_prelude_nbytes:
            raise RemoteProtocolError(
                f"a message claims a prelude of {prelude_nbytes} bytes; "
                f"the limit is {limits.max_prelude_nbytes}"
            )
        if first - prelude_nbytes > limits.max_message_nbytes:
            raise RemoteProtocolError(
                f"a message claims {first} bytes; the limit is {limits.max_message_nbytes}"
            )
        if first < prelude_nbytes - _U64:
            raise RemoteProtocolError(
                f"a message claims {first} bytes, less than the lengths of its {count} frames take"
            )
        if available < prelude_nbytes:
            self._need = prelude_nbytes
            return None
        lengths = _numbers(count).unpack_from(data, position + 2 * _U64)
        total = sum(lengths)
        if total > limits.max_message_nbytes:
            raise RemoteProtocolError(
                f"a message claims {total} bytes; the limit is {limits.max_message_nbytes}"
            )
        if first > prelude_nbytes - _U64 + total:
            raise RemoteProtocolError(
                f"a message claims {first} bytes, more than its {count} frames have"
            )
        return lengths

    def _take_frames(self, data: Buffer, position: int, lengths: tuple[int, ...]) -> int:
        """Takes frames that are there as a whole, and begins a large one. Returns the new position."""
        frames = self._frames
        end = len(data)
        view = memoryview(data) if type(data) is bytearray else data
        for index in range(len(frames), len(lengths)):
            length = lengths[index]
            if length >= LARGE_FRAME_NBYTES:
                self._begin_large(length)
                position += self._fill(view[position:])
                if self._filled < length:
                    return position
                frames.append(self._finish_large())
                continue
            stop = position + length
            if stop > end:
                self._need = length
                return position
            frames.append(bytes(view[position:stop]))
            position = stop
        return position

    def _begin_large(self, nbytes: int) -> None:
        """Finds a place for a large frame."""
        self._filled = 0
        try:
            place = None if self.allocate is None else self.allocate(nbytes)
            if place is not None:
                if isinstance(place, bytearray | memoryview):
                    self._large = memoryview(place).cast("B")
                else:
                    self._sink = place
            elif nbytes < MAPPED_FRAME_NBYTES:
                self._large = memoryview(bytearray(nbytes))
            else:
                self._large = memoryview(_mapped(nbytes))
        except (MemoryError, OSError, OverflowError, ValueError) as error:
            raise RemoteProtocolError(
                f"a message claims a frame of {nbytes} bytes, for which there is no memory: {error}"
            ) from error
        self._large_nbytes = nbytes

    def _finish_large(self) -> memoryview:
        """The large frame that is complete now."""
        self._large_nbytes = 0
        large, sink = self._large, self._sink
        self._large = self._sink = None
        if large is not None:
            return large
        assert sink is not None
        try:
            return sink.finish()
        except OSError as error:
            raise RemoteProtocolError(f"a large frame cannot be kept: {error}") from error


def _mapped(nbytes: int) -> mmap.mmap:
    """Pages of their own; huge ones where there can be: filling small ones costs four times as much."""
    mapped = mmap.mmap(-1, nbytes, **_PRIVATE)
    if nbytes >= HUGE_FRAME_NBYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


#: Pages of the process alone; they are not made before they are written to.
_PRIVATE: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
)


def _numbers(count: int) -> Struct:
    """So many numbers of a prelude."""
    return _NUMBERS[count] if count < len(_NUMBERS) else Struct(f"<{count}Q")


def frame_nbytes(frame: Buffer) -> int:
    """Size of a frame, bytes, whatever the items of its memoryview are."""
    return frame.nbytes if type(frame) is memoryview else len(frame)


def pack_prelude(lengths: Sequence[int]) -> bytes:
    """What goes before the frames of a message.

    N spans frame 0 and those up to the next large one, so that the stock reader gives each large frame (and each after it) a
    buffer of its own.
    """
    count = len(lengths)
    together = _U64 * (1 + count)
    for index, length in enumerate(lengths):
        # frame 0 is always within N, as stock writes it: simple readers rely on that
        if index and length >= LARGE_FRAME_NBYTES:
            break
        together += length
    return _numbers(count + 2).pack(together, count, *lengths)


def pack_frames(frames: Sequence[Buffer]) -> list[Buffer]:
    """What to write for one message: small frames joined, large ones as they are. The first buffer begins with the prelude."""
    lengths = [len(frame) if type(frame) is bytes else frame_nbytes(frame) for frame in frames]
    nbytes = sum(lengths)
    if nbytes < LARGE_FRAME_NBYTES or max(lengths) < LARGE_FRAME_NBYTES:
        count = len(frames)
        prelude = _numbers(count + 2).pack(_U64 * (1 + count) + nbytes, count, *lengths)
        return [b"".join([prelude, *frames])]
    pieces: list[Buffer] = []
    small: list[Buffer] = [pack_prelude(lengths)]
    for frame, length in zip(frames, lengths, strict=True):
        if length < LARGE_FRAME_NBYTES:
            small.append(frame)
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(frame if type(frame) is not memoryview else frame.cast("B"))
    if small:
        pieces.append(b"".join(small))
    return pieces
