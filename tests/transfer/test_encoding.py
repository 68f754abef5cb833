"""Values are encoded to flat bytes and decoded again, with their buffers used in place."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from paceline.transfer.encoding import Layout, Unsuitable, decode, decode_from, encode


class Own:
    """A module-level class: pickled by name."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and bool((self.array == other.array).all())

    __hash__ = None  # type: ignore[assignment]


VALUES = {
    "array": np.arange(10_000),
    "fortran": np.ones((30, 300)).T,
    "empty array": np.empty(0),
    "objects": np.array([1, "two", None], dtype=object),
    "structured": np.zeros(1000, dtype=[("a", "i4"), ("b", "f8")]),
    "dates": np.arange("2020", "2030", dtype="datetime64[D]"),
    "bytes": b"\0\1" * 100_000,
    "bytearray": bytearray(b"ab" * 100_000),
    "text": "ü" * 100_000,
    "frame": pd.DataFrame({"a": np.arange(9999), "b": ["x", "y", "z"] * 3333}),
    "series": pd.Series(np.arange(9999.0), name="s"),
    "nested": [{"a": np.ones((100, 100)), "b": [b"z" * 70_000, "t" * 80_000]}, (1, np.ones(3))],
    "own": Own(np.arange(5000)),
    "large bytes": b"\0\1" * (5 << 20),
    "large bytearray": bytearray(b"ab" * (5 << 20)),
    "large text": "ü" * (5 << 20),
    "many large": [b"z" * (5 << 20), np.ones(9999), "t" * (5 << 20), b""],
    "none": None,
}


@pytest.mark.parametrize("name", VALUES)
def test_round_trip(name: str) -> None:
    value = VALUES[name]
    encoded = encode(value)
    flat = b"".join(encoded.pieces)
    assert len(flat) == encoded.layout.size_nbytes
    assert_same(decode(memoryview(flat), encoded.layout), value)

    def read_into(begin: int, view: memoryview) -> None:
        view[:] = flat[begin : begin + view.nbytes]

    assert_same(decode_from(read_into, encoded.layout), value)


def assert_same(again: object, value: object) -> None:
    assert type(again) is type(value)
    if isinstance(value, pd.DataFrame):
        pd.testing.assert_frame_equal(again, value)
    elif isinstance(value, pd.Series):
        pd.testing.assert_series_equal(again, value)
    elif isinstance(value, np.ndarray):
        np.testing.assert_array_equal(again, value)
        assert again.dtype == value.dtype
    elif isinstance(value, list) and isinstance(value[0], bytes):
        np.testing.assert_array_equal(again[1], value[1])
        assert [again[i] for i in (0, 2, 3)] == [value[i] for i in (0, 2, 3)]
    elif isinstance(value, list):
        np.testing.assert_array_equal(again[0]["a"], value[0]["a"])
        assert again[0]["b"] == value[0]["b"]
    else:
        assert again == value


def test_encoding_copies_nothing() -> None:
    array, text = np.arange(10_000), b"x" * 1_000_000
    pieces = encode([array, text]).pieces
    addresses = {np.frombuffer(p, dtype="u1").ctypes.data for p in pieces if p.nbytes > 50_000}
    assert array.ctypes.data in addresses
    assert any(piece.obj is text for piece in pieces)


def test_large_buffers_are_read_from_source_once() -> None:
    value = [np.arange(10_000), b"x" * 1_000_000]
    encoded = encode(value)
    flat = b"".join(encoded.pieces)
    read: list[tuple[int, int]] = []

    def read_into(begin: int, view: memoryview) -> None:
        read.append((np.frombuffer(view, "u1").ctypes.data, view.nbytes))
        view[:] = flat[begin : begin + view.nbytes]

    again = decode_from(read_into, encoded.layout)
    assert (again[0].ctypes.data, 80_000) in read
    assert (np.frombuffer(again[1], "u1").ctypes.data, 1_000_000) in read
    assert again[0].flags.writeable, "there is no other reference"
    assert sum(size for _, size in read) <= len(flat)


def test_truncated_source_raises() -> None:
    encoded = encode(b"x" * 1_000_000)
    short = Layout(encoded.layout.pickle_nbytes - 10, ())
    with pytest.raises((EOFError, pickle.UnpicklingError)):
        decode_from(lambda begin, view: None, short)
    with pytest.raises(ZeroDivisionError):
        decode_from(lambda begin, view: 1 / 0, encoded.layout)  # type: ignore[arg-type, return-value]


def test_buffers_are_used_in_place_and_read_only() -> None:
    encoded = encode(np.arange(10_000))
    flat = bytearray(b"".join(encoded.pieces))
    again = decode(memoryview(flat).toreadonly(), encoded.layout)
    assert np.shares_memory(again, np.frombuffer(flat, dtype="u1"))
    assert not again.flags.writeable
    assert again.ctypes.data % 8 == 0


@pytest.mark.parametrize(
    "value",
    [np.broadcast_to(np.ones(1), (1000, 1000)), np.ones((100, 100))[:, ::2], (i for i in "ab")],
    ids=["broadcast", "not contiguous", "no pickle"],
)
def test_values_left_to_dask(value: object) -> None:
    with pytest.raises(Unsuitable):
        encode(value)


def test_types_with_registered_serializers_are_left_to_them() -> None:
    from distributed.protocol import dask_serialize

    class Special:
        pass

    dask_serialize.register(Special)(lambda value: ({}, []))
    with pytest.raises(Unsuitable, match="serializer registered with Dask"):
        encode(Special())


def test_buffers_are_aligned() -> None:
    spans = list(Layout(70, (5000, 64, 7000)).spans())
    assert spans == [(128, 5128), (5184, 5248), (5248, 12248)]
    assert Layout(70, ()).size_nbytes == 70
