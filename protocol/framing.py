"""Framing: split a byte stream into the frames of messages, and join frames into bytes.

A message on the socket, all integers u64 little endian::

    N            bytes that follow up to the end of frame K, so 8 * (1 + F) and the first K lengths
    F            number of frames
    length 0 .. length F-1
    frame 0 .. frame F-1

N is the number of bytes that a reader may receive into one buffer; here it is only validated. Large
frames are received directly into memory of their own, so that each can be freed alone.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Protocol

from .compression import Buffer
from .errors import RemoteProtocolError, StorageError

Frames = list[Buffer]


class FrameSink(Protocol):
    """Receives a large frame piece by piece, for example into a file."""

    def write(self, data: memoryview) -> None:
        """Append the next piece, whose memory may be reused after the call. May raise OSError."""

    def received(self) -> Buffer:
        """Return the pieces so far."""

    def finish(self) -> Buffer:
        """Return the whole frame. May raise OSError."""


#: Returns writable memory of exactly n bytes for a large frame, or a sink; None for the reader's
#: own memory.
Allocator = Callable[[int], "bytearray | memoryview | FrameSink | None"]

#: Frames of at least this size are received into memory of their own.
LARGE_FRAME_NBYTES: Final = 64 * 2**10
#: Frames of at least this size get their own pages, which are not cleared first; a size that is
#: claimed but not sent costs no memory.
MAPPED_FRAME_NBYTES = 2**20
#: Frames of at least this size use huge pages.
HUGE_FRAME_NBYTES = 2**22
#: Size of the buffer for one read from the socket. Untouched pages cost nothing.
SCRATCH_NBYTES = 256 * 2**10

_PRELUDE: Final = Struct("<QQ")
_U64: Final = 8
#: Structs of 0 to 63 numbers of a prelude; more are rare.
_NUMBERS: Final = tuple(Struct(f"<{count}Q") for count in range(64))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of what a prelude may claim. A peer that claims more is disconnected.

    Attributes:
        max_frames: frames of one message. A gather of a million keys has two million.
        max_message_nbytes: size of all frames of one message.
    """

    max_frames: int = 2**22
    max_message_nbytes: int = 2**36


#: Limits of the first message of a connection. A handshake has one frame of some hundred bytes.
HANDSHAKE_LIMITS = Limits(max_frames=8, max_message_nbytes=2**14)


class FrameReader:
    """Reads messages from a socket's data, which may arrive in pieces of any size.

    Either call ``feed`` with data, or let the socket read into ``get_buffer()`` and then call
    ``buffer_updated`` (as ``asyncio.BufferedProtocol`` does). After a ``RemoteProtocolError`` the
    reader cannot be used.

    Args:
        limits: what a prelude may claim.
        scratch: buffer that the socket reads into. Readers may share one as long as each
            ``buffer_updated`` follows its ``get_buffer`` before another reader's ``get_buffer``. In
            one thread, asyncio's selector loop and uvloop ensure that.
        first: limits until ``admit`` is called. Until then, messages are returned one at a time, so
            that `limits` apply to everything after the message that admits the peer.

    Attributes:
        allocate: provides memory, or a sink, for large frames; None for memory of this process.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        scratch: memoryview | None = None,
        first: Limits | None = None,
    ) -> None:
        limits = limits or Limits()
        self._limits = first or limits
        self._admitted_limits = limits if first is not None else None
        self._scratch = scratch
        self._rest = bytearray()  # data that is incomplete until there are `_need` bytes
        self._need = 0
        self._lengths: tuple[int, ...] | None = None  # frames of the incomplete message
        self._frames: Frames = []  # its frames so far
        self._large_nbytes = 0  # size of the incomplete large frame; 0 for none
        self._filled = 0  # bytes of it so far
        self._large: memoryview | None = None  # its memory
        self._sink: FrameSink | None = None  # or its sink
        self._error: str | None = None
        self.allocate: Allocator | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether no part of an incomplete message was received."""
        return not self._rest and self._lengths is None

    @property
    def incomplete(self) -> tuple[tuple[int, ...], Frames] | None:
        """The lengths of the incomplete message's frames, and the list of frames received so far.

        None if no message is incomplete, or only a part of its prelude was received.
        """
        return None if self._lengths is None else (self._lengths, self._frames)

    def captured(self) -> tuple[bytes, bool, str | None]:
        """Return the incomplete message, whether ``admit`` was called, and the error, or None."""
        pieces: list[Buffer] = []
        if self._lengths is not None:
            pieces = [pack_prelude(self._lengths), *self._frames]
            if self._large is not None:
                pieces.append(self._large[: self._filled])
            elif self._sink is not None:
                pieces.append(self._sink.received())
        return b"".join([*pieces, self._rest]), self._admitted_limits is None, self._error

    def resume(self, unread: bytes, is_admitted: bool, error: str | None) -> None:
        """Continue what another reader has ``captured``."""
        if is_admitted:
            self.admit()
        if error is None:
            self.feed(unread)
        self._error = error

    def admit(self) -> list[Frames]:
        """Apply the limits of an admitted peer, and return the messages that are complete.

        Raises:
            RemoteProtocolError: the next message exceeds the limits.
        """
        if self._admitted_limits is None:
            return []
        self._limits, self._admitted_limits = self._admitted_limits, None
        self._need = 0
        return self.feed(b"")

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Return the memory that the socket may write to next."""
        if self._large is not None:
            return self._large[self._filled :]
        if self._scratch is None:
            self._scratch = memoryview(mmap.mmap(-1, SCRATCH_NBYTES, **_PRIVATE))
        return self._scratch

    def buffer_updated(self, nbytes: int) -> list[Frames]:
        """Process `nbytes` that the socket has written to ``get_buffer()``.

        Returns:
            The messages that are now complete.

        Raises:
            RemoteProtocolError: the data is invalid or exceeds the limits.
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
        """Process `data`, whose memory may be reused after the call.

        Returns:
            The messages that are now complete.

        Raises:
            RemoteProtocolError: the data is invalid or exceeds the limits; ``messages`` are
                complete.
        """
        if self._error is not None:
            raise RemoteProtocolError(self._error)
        messages: list[Frames] = []
        try:
            self._feed(data, messages)
            return messages
        except RemoteProtocolError as error:
            error.messages = messages
            self._error = str(error)
            self._rest = bytearray()
            self._frames = []
            self._large = self._sink = None
            self._large_nbytes = 0
            raise

    def _feed(self, data: Buffer, messages: list[Frames]) -> None:
        """Process `data`, and append the messages that are now complete to `messages`."""
        position = 0
        if self._large_nbytes:
            position = self._fill(data)
            if self._filled < self._large_nbytes:
                return
            self._frames.append(self._finish_large())
        elif self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return
            data = self._rest
            self._rest = bytearray()
        while True:
            lengths = self._lengths
            if lengths is None:
                if position == len(data):
                    return
                lengths = self._read_prelude(data, position)
                if lengths is None:
                    break
                position += 2 * _U64 + len(lengths) * _U64
                self._lengths = lengths
            position = self._take_frames(data, position, lengths)
            if len(self._frames) < len(lengths):
                break
            messages.append(self._frames)
            self._frames = []  # do not keep the frames alive until the next message
            self._lengths = None
            if self._admitted_limits is not None:
                self._need = 0
                break
        if not self._large_nbytes and position < len(data):
            self._rest = bytearray(memoryview(data)[position:])

    def _fill(self, data: Buffer) -> int:
        """Copy from `data` into the large frame. Return the number of bytes used."""
        count = min(len(data), self._large_nbytes - self._filled)
        piece = memoryview(data)[:count]
        if self._large is not None:
            self._large[self._filled : self._filled + count] = piece
        elif self._sink is not None and count:
            try:
                self._sink.write(piece)
            except OSError as error:
                raise StorageError(f"a large frame cannot be kept: {error}") from error
        self._filled += count
        return count

    def _read_prelude(self, data: Buffer, position: int) -> tuple[int, ...] | None:
        """Return the lengths of the next message's frames, or None if more bytes are needed."""
        limits = self._limits
        available = len(data) - position
        if available < 2 * _U64:
            self._need = 2 * _U64
            return None
        first: int
        count: int
        first, count = _PRELUDE.unpack_from(data, position)
        prelude_nbytes = 2 * _U64 + count * _U64
        if count > limits.max_frames:
            raise RemoteProtocolError(
                f"a message claims {count} frames; the limit is {limits.max_frames}"
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
        total: int = sum(lengths)
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
        """Append the complete frames, and start a large one. Return the new position."""
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
        """Allocate the memory or sink of a large frame."""
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
                self._large = memoryview(map_memory(nbytes))
        except (MemoryError, OSError, OverflowError, ValueError) as error:
            raise StorageError(f"no memory for a frame of {nbytes} bytes") from error
        self._large_nbytes = nbytes

    def _finish_large(self) -> Buffer:
        """Return the large frame, which is now complete."""
        self._large_nbytes = 0
        large, sink = self._large, self._sink
        self._large = self._sink = None
        if large is not None:
            return large
        assert sink is not None
        try:
            return sink.finish()
        except OSError as error:
            raise StorageError(f"a large frame cannot be kept: {error}") from error


def map_memory(nbytes: int) -> mmap.mmap:
    """Map `nbytes` that use memory only once they are written.

    Huge pages are used if possible; they are four times faster to fill.

    Raises:
        OSError: the system refuses the size.
    """
    mapped = mmap.mmap(-1, nbytes, **_PRIVATE)
    if sys.platform == "linux" and nbytes >= HUGE_FRAME_NBYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


#: Private pages, allocated when they are written to.
_PRIVATE: dict[str, Any] = {}
if sys.platform != "win32":
    _PRIVATE["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def _numbers(count: int) -> Struct:
    """Return the struct of `count` numbers of a prelude."""
    return _NUMBERS[count] if count < len(_NUMBERS) else Struct(f"<{count}Q")


def frame_nbytes(frame: Buffer) -> int:
    """Return the size of a frame in bytes, for any item size of a memoryview."""
    return frame.nbytes if type(frame) is memoryview else len(frame)


def pack_prelude(lengths: Sequence[int]) -> bytes:
    """Return the prelude of a message.

    N spans frame 0 and the frames up to the next large one, so that the stock reader gives each
    large frame, and each one after it, a buffer of its own.
    """
    count = len(lengths)
    together = _U64 * (1 + count)
    for index, length in enumerate(lengths):
        # frame 0 is always within N, as in stock; simple readers rely on that
        if index and length >= LARGE_FRAME_NBYTES:
            break
        together += length
    return _numbers(count + 2).pack(together, count, *lengths)


def pack_frames(frames: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers to write for one message: small frames joined, large ones unchanged.

    The first buffer starts with the prelude.
    """
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
