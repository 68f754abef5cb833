"""Values to flat bytes and back: one pickle, and after it the buffers of arrays and frames as they lie in memory.

Nothing is copied on the way out: large ``bytes`` inside a value are pieces of their own too. On the way in buffers are used where
they lie, so that an array out of shared memory *is* the shared memory, read-only.

Types for which somebody registered a serializer with Dask go Dask's own way: it alone knows what it does.

Must not know: back ends, workers.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
from distributed.protocol import pickle as dask_pickle
from distributed.protocol.serialize import dask_serialize

from . import large_pages

ALIGN_NBYTES = 64
"""Buffers begin at multiples of it, as arrays that numpy makes itself."""
BUFFER_NBYTES_MIN = 4096
"""Smaller buffers stay in the pickle: their bookkeeping would cost more than their copy."""
WHOLE_PIECE_NBYTES = 1 << 16
"""Pickle gives bytes objects from here on to its file as they are, so that they are no text in which a name could stand."""
KNOWN_MODULES = frozenset({"numpy", "pyarrow", "scipy"})
"""Their types have serializers in distributed, and pickles that say the same with buffers beside them."""


class Unsuitable(Exception):
    """The value goes Dask's own way."""


@dataclass(frozen=True)
class Layout:
    """Where the parts of a value lie in its flat bytes.

    Attributes:
        pickle_nbytes: length of the pickle, at the beginning.
        buffer_sizes: lengths of the buffers, each at the next multiple of ``ALIGN_NBYTES``.
    """

    pickle_nbytes: int
    buffer_sizes: tuple[int, ...]

    def spans(self) -> Iterator[tuple[int, int]]:
        """Begin and end of each buffer."""
        at = self.pickle_nbytes
        for size in self.buffer_sizes:
            at = _aligned(at)
            yield at, at + size
            at += size

    @property
    def size_nbytes(self) -> int:
        end = self.pickle_nbytes
        for _, end in self.spans():  # noqa: B007
            pass
        return end

    @property
    def mapped_share(self) -> float:
        """Which part of the bytes is used where it lies; the rest is copied when the value is made."""
        return sum(self.buffer_sizes) / max(1, self.size_nbytes)


@dataclass
class Encoded:
    """A value as pieces that lie one after the other.

    Attributes:
        layout: see ``Layout``.
        pieces: views of the value's own memory, with the padding between them.
    """

    layout: Layout
    pieces: list[memoryview]


class _Pieces:
    """A file for the pickler that keeps what it is given."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def write(self, part: Any) -> int:
        # small parts are the pickler's own buffer, which it uses again
        self.parts.append(part if isinstance(part, bytes) else bytes(part))
        return len(part)


def encode(value: Any) -> Encoded:
    """A value's pickle and buffers.

    Raises:
        Unsuitable: Dask's own way is the better one, or the only one.
    """
    _check_type(value)
    buffers: list[memoryview] = []

    def beside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < BUFFER_NBYTES_MIN:
            return True
        buffers.append(raw)
        return False

    try:
        parts = _pickled(value, beside, buffers)
    except Exception as error:
        raise Unsuitable(f"{type(value).__name__} cannot be pickled: {error}") from error
    pieces = [memoryview(part) for part in parts]
    at = pickle_nbytes = sum(piece.nbytes for piece in pieces)
    for buffer in buffers:
        if padding := _aligned(at) - at:
            pieces.append(memoryview(bytes(padding)))
        pieces.append(buffer)
        at += padding + buffer.nbytes
    sizes = tuple(buffer.nbytes for buffer in buffers)
    return Encoded(Layout(pickle_nbytes, sizes), pieces)


def decode(view: memoryview, layout: Layout) -> Any:
    """The value whose flat bytes these are; its buffers stay where they lie, and large ``bytes`` are copied into large pages."""
    buffers = [view[begin:end] for begin, end in layout.spans()]
    if layout.pickle_nbytes < large_pages.WORTH_NBYTES:
        return pickle.loads(view[: layout.pickle_nbytes], buffers=buffers)

    def read_into(begin: int, into: memoryview) -> None:
        large_pages.copy(view[begin : begin + into.nbytes], into)

    return _unpickled(read_into, layout, buffers)


def decode_from(read_into: Callable[[int, memoryview], None], layout: Layout) -> Any:
    """The value whose flat bytes a source has: each buffer, and each large ``bytes``, is copied once, to where it stays.

    Args:
        read_into: ``Source.read_into``.
        layout: where the parts lie.
    """
    buffers = []
    for begin, end in layout.spans():
        buffers.append(memoryview(np.empty(end - begin, "u1")))
        read_into(begin, buffers[-1])
    return _unpickled(read_into, layout, buffers)


def _unpickled(
    read_into: Callable[[int, memoryview], None], layout: Layout, buffers: list[memoryview]
) -> Any:
    """The value of a pickle that a source has, and of buffers that are here."""
    return pickle.Unpickler(_Reading(read_into, layout.pickle_nbytes), buffers=buffers).load()


class _Reading:
    """A file for the unpickler: it brings the memory of large ``bytes`` itself, to be filled."""

    def __init__(self, read_into: Callable[[int, memoryview], None], size_nbytes: int) -> None:
        self._read_into = read_into
        self._at = 0
        self._end = size_nbytes

    def readinto(self, view: memoryview) -> int:
        size = min(view.nbytes, self._end - self._at)
        if size:
            self._read_into(self._at, view[:size])
            self._at += size
        return size

    def read(self, size: int = -1) -> bytes:
        left = self._end - self._at
        data = bytearray(left if size < 0 else min(size, left))
        self.readinto(memoryview(data))
        return bytes(data)

    def readline(self) -> bytes:
        """No pickle of protocol 5 has lines, but for names written by old ``__reduce__``: byte by byte will do."""
        line = b""
        while not line.endswith(b"\n") and (char := self.read(1)):
            line += char
        return line


def _aligned(at: int) -> int:
    return -(-at // ALIGN_NBYTES) * ALIGN_NBYTES


def _check_type(value: Any) -> None:
    """Raises Unsuitable for what Dask serializes in a way of its own, and for what pickle would make larger."""
    kind = type(value)
    module = (getattr(kind, "__module__", None) or "").partition(".")[0]
    if module == "numpy" and hasattr(value, "strides"):
        if value.size and 0 in value.strides:
            raise Unsuitable("broadcast: Dask sends what it was broadcast from")
        flags = value.flags
        if not (flags.c_contiguous or flags.f_contiguous):
            raise Unsuitable("not contiguous: it would be copied first")
    elif module != "builtins" and module not in KNOWN_MODULES:
        with contextlib.suppress(TypeError):  # what dask's dispatch raises where nobody registered
            dask_serialize.dispatch(kind)
            raise Unsuitable(f"{kind.__name__} has a serializer of its own")
    if cloudpickle.list_registry_pickle_by_value():
        raise Unsuitable("modules are pickled by value here")


def _pickled(value: Any, beside: Any, buffers: list[memoryview]) -> Sequence[bytes]:
    """Pickle as distributed does: plainly; by value what is of ``__main__``; with its own pickler what refuses."""
    out = _Pieces()
    with contextlib.suppress(Exception):
        pickle.Pickler(out, protocol=5, buffer_callback=beside).dump(value)
        if not _names_main(out.parts):
            return out.parts
        buffers.clear()
        out = _Pieces()
        cloudpickle.Pickler(out, protocol=5, buffer_callback=beside).dump(value)
        return out.parts
    buffers.clear()
    raw: list[Any] = []
    text = dask_pickle.dumps(value, buffer_callback=raw.append)
    buffers.extend(pickle.PickleBuffer(each).raw() for each in raw)
    return [text]


def _names_main(parts: Sequence[bytes]) -> bool:
    return any(b"__main__" in part for part in parts if len(part) < WHOLE_PIECE_NBYTES * 2)
