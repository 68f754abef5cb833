"""Large values of a graph, each stored once, however many tasks hold it.

A buffer is known by its place in memory first (fifty tasks over one array), then by its content (fifty
equal arrays). What is small is cheaper to repeat than to share.

Must not know: what a task is, or what the bytes mean.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any

SHARE_MIN_NBYTES = 1024
"""Buffers below this size travel inside their task's own bytes: a frame of its own costs the event loop more than
the copy costs memory. Most functions that travel by value are smaller."""

IN_BAND_MIN_NBYTES = 65_536
"""bytes and str values inside a task are shared from this size on: CPython's pickler writes them apart
from here on (its FRAME_SIZE_TARGET), which is what makes them findable without reading the pickle."""

SAMPLE_NBYTES = 64
"""Bytes looked at, at the start, middle and end, before a whole buffer is hashed."""

BytesLike = bytes | bytearray | memoryview


class SharedBuffers:
    """The out-of-band buffers of one graph, numbered from 0 in the order in which they were first met.

    Buffers must not change while the table lives. Views are kept, not copied.
    """

    def __init__(self) -> None:
        self._by_place: dict[tuple[int, int], int] = {}
        self._by_sample: dict[tuple[int, bytes], list[int]] = {}
        self._digests: dict[int, bytes] = {}
        self._views: list[memoryview] = []
        self._announced = 0

    def __len__(self) -> int:
        return len(self._views)

    @property
    def nbytes(self) -> int:
        """Bytes of all distinct buffers."""
        return sum(view.nbytes for view in self._views)

    def add(self, buffer: PickleBuffer | BytesLike) -> int:
        """The number of this buffer, a new one if nothing equal is there yet."""
        view = flat_view(buffer)
        place = (address_of(view), view.nbytes)
        number = self._by_place.get(place)
        if number is None:
            number = self._by_content(view)
            if number == len(self._views):
                self._views.append(view)
                # the view keeps the memory at this place from being used for something else
                self._by_place[place] = number
        return number

    def take_new(self) -> list[memoryview]:
        """The buffers added since the last call, in the order of their numbers."""
        new = self._views[self._announced :]
        self._announced = len(self._views)
        return new

    def _by_content(self, view: memoryview) -> int:
        same_sample = self._by_sample.setdefault((view.nbytes, sample_of(view)), [])
        if same_sample:
            digest = digest_of(view)
            for number in same_sample:
                if self._digest(number) == digest:
                    return number
            self._digests[len(self._views)] = digest
        same_sample.append(len(self._views))
        return len(self._views)

    def _digest(self, number: int) -> bytes:
        digest = self._digests.get(number)
        if digest is None:
            digest = self._digests[number] = digest_of(self._views[number])
        return digest


def flat_view(buffer: PickleBuffer | BytesLike) -> memoryview:
    """A one-dimensional view of bytes. Raises BufferError when the buffer is not contiguous."""
    if isinstance(buffer, PickleBuffer):
        return buffer.raw()
    view = memoryview(buffer)
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def address_of(view: memoryview) -> int:
    """Where the bytes lie. Two live views of one place and size hold the same bytes.

    Without numpy nothing is known but the owner, which names its bytes when the view is all of them.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and view.nbytes:
        return int(numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0])
    owner = view.obj
    if isinstance(owner, bytes | bytearray) and len(owner) == view.nbytes:
        return id(owner)
    return -id(view)


def sample_of(view: memoryview) -> bytes:
    """A few bytes that tell most unequal buffers apart."""
    middle = max(0, view.nbytes // 2 - SAMPLE_NBYTES // 2)
    return b"".join(
        (view[:SAMPLE_NBYTES], view[middle : middle + SAMPLE_NBYTES], view[-SAMPLE_NBYTES:])
    )


def digest_of(view: memoryview) -> bytes:
    """A digest of the whole buffer; equal digests are taken for equal content."""
    return hashlib.blake2b(view, digest_size=20).digest()


# ------------------------------------------------------------------ large values inside a pickle

_PROTO = 0x80
_FRAME = 0x95
_FRAME_HEADER_NBYTES = 9
_SHORTEST_FRAME_NBYTES = 4
_BY_OPCODE: dict[int, tuple[int, bytes, bytes]] = {
    # opcode -> width of its length field; what is written instead, before and after NEXT_BUFFER
    ord("B"): (4, b"cbuiltins\nbytes\n", b"\x85R"),
    0x8E: (8, b"cbuiltins\nbytes\n", b"\x85R"),
    0x96: (8, b"cbuiltins\nbytearray\n", b"\x85R"),
    ord("X"): (4, b"cbuiltins\nstr\n", b"\x8c\x05utf-8\x8c\x0dsurrogatepass\x87R"),
    0x8D: (8, b"cbuiltins\nstr\n", b"\x8c\x05utf-8\x8c\x0dsurrogatepass\x87R"),
}
_NEXT_BUFFER = b"\x97"


class SpecSink:
    """The file that a C pickler writes to: keeps what it writes, piece by piece, beside its buffers.

    A pickler hands over large ``bytes`` and ``str`` values as pieces of their own. ``finish`` takes those
    out of the stream and makes out-of-band buffers of them, so that they can be shared. If a Python
    should write its pieces otherwise, nothing is taken out and the pickle is still right.

    Attributes:
        write: for the pickler.
        on_buffer: for the pickler, as its ``buffer_callback``.
        buffers: the out-of-band buffers of the pickle being written, in order.
    """

    __slots__ = ("_pieces", "_places", "buffers", "write")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._places: list[int] = []
        self.buffers: list[PickleBuffer | bytes] = []
        self.write: Callable[[bytes], Any] = self._pieces.append

    def on_buffer(self, buffer: PickleBuffer) -> bool:
        """Keep a buffer out of the pickle (False), unless it is small (True: written into it)."""
        with buffer.raw() as view:
            if view.nbytes < SHARE_MIN_NBYTES:
                return True
        self._places.append(len(self._pieces))
        self.buffers.append(buffer)
        return False

    def finish(self) -> tuple[bytes, list[PickleBuffer | bytes]]:
        """The pickle that was written, and its buffers; the sink is empty again."""
        pieces, buffers = self._pieces, self.buffers
        if len(pieces) == 1:
            data = pieces[0]
        else:
            data = self._take_out(pieces)
            buffers = self.buffers
        pieces.clear()
        if buffers:
            self.buffers = []
            self._places.clear()
        return data, buffers

    def clear(self) -> None:
        """Forget what was written (the pickler failed)."""
        self._pieces.clear()
        self._places.clear()
        self.buffers = []

    def _take_out(self, pieces: list[bytes]) -> bytes:
        """Join the pieces without the large values, which become buffers at their place."""
        out: list[bytes] = []
        merged: list[PickleBuffer | bytes] = []
        met = 0
        index = 0
        while index < len(pieces):
            piece = pieces[index]
            # buffers announced while this piece was being filled come before what it ends with
            while met < len(self._places) and self._places[met] <= index:
                merged.append(self.buffers[met])
                met += 1
            following = pieces[index + 1] if index + 1 < len(pieces) else b""
            swap = large_value_header(piece, len(following)) if following else None
            if swap is None:
                out.append(piece)
                index += 1
                continue
            header_nbytes, before, after = swap
            out += (piece[:-header_nbytes], before, _NEXT_BUFFER, after)
            merged.append(following)
            index += 2
        merged += self.buffers[met:]
        self.buffers = merged
        return b"".join(out)


def large_value_header(piece: bytes, following_nbytes: int) -> tuple[int, bytes, bytes] | None:
    """Whether a piece ends with the header of a large value of this size, outside of any frame.

    Returns (length of that header, what to write instead, what to write after NEXT_BUFFER), or None.
    """
    if following_nbytes < IN_BAND_MIN_NBYTES:
        return None
    place, end = 0, len(piece)
    if end >= 2 and piece[0] == _PROTO:
        place = 2
    while end - place >= _FRAME_HEADER_NBYTES and piece[place] == _FRAME:
        frame_nbytes = int.from_bytes(piece[place + 1 : place + 9], "little")
        if place + _FRAME_HEADER_NBYTES + frame_nbytes > end:
            break
        place += _FRAME_HEADER_NBYTES + frame_nbytes
    for header_nbytes in (5, 9):
        start = end - header_nbytes
        if not place <= start < place + _SHORTEST_FRAME_NBYTES:
            continue
        known = _BY_OPCODE.get(piece[start])
        if known is None or known[0] != header_nbytes - 1:
            continue
        if int.from_bytes(piece[start + 1 : end], "little") == following_nbytes:
            return header_nbytes, known[1], known[2]
    return None


def pickle_apart(pickler_class: Any, value: Any) -> tuple[bytes, list[PickleBuffer | bytes]]:
    """Pickle one value with the given pickler class, its large parts apart."""
    sink = SpecSink()
    pickler_class(sink, protocol=5, buffer_callback=sink.on_buffer).dump(value)
    return sink.finish()
