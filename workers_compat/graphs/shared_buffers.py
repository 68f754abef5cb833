"""Large values of a graph, each stored once.

A buffer is identified by its place in memory (fifty tasks that use one array), then by its content
(fifty equal arrays). Repeating small buffers is cheaper than sharing them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any

#: Smaller buffers stay within the bytes of their task: a frame of its own costs the event loop more
#: than the copy costs memory. Most functions that are pickled by value are smaller.
SHARE_MIN_NBYTES = 1024

#: bytes and str values within a task are shared from this size on. CPython's pickler writes them
#: separately from this size (its FRAME_SIZE_TARGET), so they can be found without parsing the
#: pickle.
IN_BAND_MIN_NBYTES = 65_536

#: Bytes compared at the start, middle and end before a whole buffer is hashed.
SAMPLE_NBYTES = 64

BytesLike = bytes | bytearray | memoryview


class SharedBuffers:
    """The out-of-band buffers of one graph, numbered from 0 in order of appearance.

    Views are kept, not copied: buffers must not change during the life of the table.
    """

    def __init__(self) -> None:
        self._by_place: dict[tuple[int, int], int] = {}
        self._by_sample: dict[tuple[int, bytes], list[int]] = {}
        self._digests: dict[int, bytes] = {}
        self._views: list[memoryview] = []
        self._n_taken = 0

    def __len__(self) -> int:
        return len(self._views)

    @property
    def nbytes(self) -> int:
        """Return the size of all distinct buffers."""
        return sum(view.nbytes for view in self._views)

    def add(self, buffer: PickleBuffer | BytesLike) -> int:
        """Return the number of `buffer`, or of an equal one that was added before."""
        view = flat_view(buffer)
        place = (address_of(view), view.nbytes)
        number = self._by_place.get(place)
        if number is None:
            number = self._by_content(view)
            if number == len(self._views):
                self._views.append(view)
                # the view keeps this memory from being reused
                self._by_place[place] = number
        return number

    def take_new(self) -> list[memoryview]:
        """Return the buffers added since the last call, in the order of their numbers."""
        new = self._views[self._n_taken :]
        self._n_taken = len(self._views)
        return new

    def _by_content(self, view: memoryview) -> int:
        same_sample = self._by_sample.setdefault((view.nbytes, sample_of(view)), [])
        if same_sample:
            digest = digest_of(view)
            for number in same_sample:
                if number not in self._digests:
                    self._digests[number] = digest_of(self._views[number])
                if self._digests[number] == digest:
                    return number
            self._digests[len(self._views)] = digest
        same_sample.append(len(self._views))
        return len(self._views)


def flat_view(buffer: PickleBuffer | BytesLike) -> memoryview:
    """Return a one-dimensional view of bytes. Raises BufferError if `buffer` is not contiguous."""
    if isinstance(buffer, PickleBuffer):
        return buffer.raw()
    view = memoryview(buffer)
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def address_of(view: memoryview) -> int:
    """Return the address of the bytes. Live views of the same address and size hold the same bytes.

    Without numpy only the owner is known. It identifies its bytes if the view covers all of them.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and view.nbytes:
        return int(numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0])
    owner = view.obj
    if isinstance(owner, bytes | bytearray) and len(owner) == view.nbytes:
        return id(owner)
    return -id(view)


def sample_of(view: memoryview) -> bytes:
    """Return a few bytes, which differ for most unequal buffers."""
    middle = max(0, view.nbytes // 2 - SAMPLE_NBYTES // 2)
    return b"".join(
        (view[:SAMPLE_NBYTES], view[middle : middle + SAMPLE_NBYTES], view[-SAMPLE_NBYTES:])
    )


def digest_of(view: memoryview) -> bytes:
    """Return a digest of the whole buffer. Buffers with equal digests are taken to be equal."""
    return hashlib.blake2b(view, digest_size=20).digest()


# Large values inside a pickle

_PROTO = 0x80
_FRAME = 0x95
_FRAME_HEADER_NBYTES = 9
_SHORTEST_FRAME_NBYTES = 4
_BY_OPCODE: dict[int, tuple[int, bytes, bytes]] = {
    # opcode -> width of its length field, and the replacements before and after NEXT_BUFFER
    ord("B"): (4, b"cbuiltins\nbytes\n", b"\x85R"),
    0x8E: (8, b"cbuiltins\nbytes\n", b"\x85R"),
    0x96: (8, b"cbuiltins\nbytearray\n", b"\x85R"),
    ord("X"): (4, b"cbuiltins\nstr\n", b"\x8c\x05utf-8\x8c\x0dsurrogatepass\x87R"),
    0x8D: (8, b"cbuiltins\nstr\n", b"\x8c\x05utf-8\x8c\x0dsurrogatepass\x87R"),
}
_NEXT_BUFFER = b"\x97"


class SpecSink:
    """The file that a C pickler writes to: keeps the pieces that it writes, and its buffers.

    A pickler writes large ``bytes`` and ``str`` values as separate pieces. ``finish`` takes those
    out of the stream and turns them into out-of-band buffers, so that they can be shared. If a
    Python version writes its pieces differently, nothing is taken out and the pickle is still
    correct.
    """

    __slots__ = ("_pieces", "_places", "buffers", "write")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._places: list[int] = []
        self.buffers: list[PickleBuffer | bytes] = []
        self.write: Callable[[bytes], Any] = self._pieces.append

    def on_buffer(self, buffer: PickleBuffer) -> bool:
        """Keep a buffer out of band and return False, or return True to embed a small one."""
        with buffer.raw() as view:
            if view.nbytes < SHARE_MIN_NBYTES:
                return True
        self._places.append(len(self._pieces))
        self.buffers.append(buffer)
        return False

    def finish(self) -> tuple[bytes, list[PickleBuffer | bytes]]:
        """Return the pickle and its buffers, and reset the sink."""
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else self._take_out(pieces)
        pieces.clear()
        if buffers := self.buffers:
            self.buffers = []
            self._places.clear()
        return data, buffers

    def _take_out(self, pieces: list[bytes]) -> bytes:
        """Join the pieces without the large values, which become buffers in their place."""
        out: list[bytes] = []
        merged: list[PickleBuffer | bytes] = []
        met = 0
        index = 0
        while index < len(pieces):
            piece = pieces[index]
            # buffers reported while this piece was filled precede its last value
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
    """Parse the header of a large value at the end of a piece, outside of any frame.

    Return its length, the bytes to write instead, and those after NEXT_BUFFER; None if `piece` does
    not end with the header of a value of `following_nbytes`.
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


def pickle_out_of_band(pickler_class: Any, value: Any) -> tuple[bytes, list[PickleBuffer | bytes]]:
    """Pickle one value with `pickler_class`, with its large parts out of band."""
    sink = SpecSink()
    pickler_class(sink, protocol=5, buffer_callback=sink.on_buffer).dump(value)
    return sink.finish()
