"""Encode values as flat bytes: one pickle, followed by the buffers of arrays and frames.

Encoding copies nothing; large ``bytes`` objects inside a value are separate pieces too. Decoding
uses buffers in place, so an array from shared memory is backed by that memory and read-only.

Types with a serializer registered with Dask use Dask's own transfer, because the serializer may do
more than pickling.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
from distributed.protocol import pickle as dask_pickle
from distributed.protocol.serialize import dask_serialize

from . import huge_pages

#: Alignment of buffers, as in arrays allocated by numpy.
ALIGN_NBYTES = 64
#: Smaller buffers stay in the pickle, because a copy is cheaper than their bookkeeping.
BUFFER_NBYTES_MIN = 4096
#: Pickle writes larger ``bytes`` objects unchanged, so they cannot contain pickled names.
WHOLE_PIECE_NBYTES = 1 << 16
#: Modules whose types have serializers in distributed, and equivalent pickles with buffers.
KNOWN_MODULES = frozenset({"numpy", "pyarrow", "scipy"})


class Unsuitable(Exception):
    """The value cannot be encoded here; Dask's own transfer is used."""


@dataclass(frozen=True)
class Layout:
    """Sizes of the parts of an encoded value.

    Attributes:
        pickle_nbytes: length of the pickle, at offset 0.
        buffer_sizes: lengths of the buffers, each at the next multiple of ``ALIGN_NBYTES``.
    """

    pickle_nbytes: int
    buffer_sizes: tuple[int, ...]

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end offset of each buffer."""
        at = self.pickle_nbytes
        for size in self.buffer_sizes:
            at = _aligned(at)
            yield at, at + size
            at += size

    @property
    def size_nbytes(self) -> int:
        return [self.pickle_nbytes, *(end for _, end in self.spans())][-1]

    @property
    def mapped_share(self) -> float:
        """Share of the bytes that is used in place; the rest is copied on decoding."""
        return sum(self.buffer_sizes) / max(1, self.size_nbytes)


@dataclass
class Encoded:
    """An encoded value: its layout, and consecutive views of its memory and padding."""

    layout: Layout
    pieces: list[memoryview]


class _Pieces:
    """File object for the pickler that collects what is written."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def write(self, part: Any) -> int:
        # small parts are views of a buffer that the pickler reuses
        self.parts.append(part if isinstance(part, bytes) else bytes(part))
        return len(part)


def encode(value: Any) -> Encoded:
    """Encode ``value``. Raises Unsuitable if Dask's own transfer is better or necessary."""
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
    """Return the value encoded in ``view``; use buffers in place and copy large ``bytes``."""
    buffers = [view[begin:end] for begin, end in layout.spans()]
    if layout.pickle_nbytes < huge_pages.WORTH_NBYTES:
        return pickle.loads(view[: layout.pickle_nbytes], buffers=buffers)

    def read_into(begin: int, into: memoryview) -> None:
        huge_pages.copy(view[begin : begin + into.nbytes], into)

    return pickle.Unpickler(_Reading(read_into, layout.pickle_nbytes), buffers=buffers).load()


def decode_from(read_into: Callable[[int, memoryview], None], layout: Layout) -> Any:
    """Return the value of a ``Source``; buffers and large ``bytes`` are copied once."""
    buffers = []
    for begin, end in layout.spans():
        buffers.append(huge_pages.empty(end - begin))
        read_into(begin, buffers[-1])
    return pickle.Unpickler(_Reading(read_into, layout.pickle_nbytes), buffers=buffers).load()


class _Reading:
    """File object for the unpickler, which allocates large ``bytes`` and has them filled."""

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
        """Return one line. Slow, because pickles of protocol 5 rarely contain lines."""
        line = b""
        while not line.endswith(b"\n") and (char := self.read(1)):
            line += char
        return line


def _aligned(at: int) -> int:
    return -(-at // ALIGN_NBYTES) * ALIGN_NBYTES


def _check_type(value: Any) -> None:
    """Raise Unsuitable for types with a Dask serializer, and for arrays that pickle would copy."""
    kind = type(value)
    module = (getattr(kind, "__module__", None) or "").partition(".")[0]
    if module == "numpy" and hasattr(value, "strides"):
        if value.size and 0 in value.strides:
            raise Unsuitable("broadcast array: Dask sends its base")
        flags = value.flags
        if not (flags.c_contiguous or flags.f_contiguous):
            raise Unsuitable("array is not contiguous")
    elif module != "builtins" and module not in KNOWN_MODULES:
        with contextlib.suppress(TypeError):  # raised for types without a serializer
            dask_serialize.dispatch(kind)
            raise Unsuitable(f"{kind.__name__} has a serializer registered with Dask")
    if cloudpickle.list_registry_pickle_by_value():
        raise Unsuitable("modules are registered to be pickled by value")


def _pickled(value: Any, beside: Any, buffers: list[memoryview]) -> Sequence[bytes]:
    """Pickle as distributed does: pickle, cloudpickle for ``__main__``, or its own pickler."""
    out = _Pieces()
    with contextlib.suppress(Exception):
        pickle.Pickler(out, protocol=5, buffer_callback=beside).dump(value)
        if not any(b"__main__" in part for part in out.parts if len(part) < 2 * WHOLE_PIECE_NBYTES):
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
