"""Payloads created by stock's helpers, decoded without unpickling."""

from __future__ import annotations

import lzma
import pickle
import zlib
from types import SimpleNamespace
from typing import Any

import lz4.block
import msgpack
import numpy as np
import pytest
import zstandard
from distributed.protocol import dumps, loads
from distributed.protocol.compression import compressions
from distributed.protocol.serialize import ToPickle, serialize, to_serialize
from hypothesis import given
from hypothesis import strategies as st
from paceline.protocol.codec import Codec
from paceline.protocol.compression import MODULES, expand
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.payload import (
    Payload,
    count_frames,
    payload_header,
    payload_members,
    payload_pickle,
    pickled_header,
    pickled_payload,
    serialized_payload,
)

AVAILABLE = [name for name in MODULES if name in compressions]


def from_stock(value: Any, **options: Any) -> Payload:
    """Return the payload that a stock peer sends for a serialized value."""
    frames = [bytes(frame) for frame in dumps({"p": value}, **options)]
    payload = Codec().decode_value(frames)["p"]
    assert type(payload) is Payload
    return payload


def opened(payload: Payload) -> Any:
    pickled, buffers = payload_pickle(payload)
    return pickle.loads(pickled, buffers=buffers)


@given(
    st.one_of(st.binary(max_size=300), st.integers(60_000, 70_000).map(bytes)), st.integers(0, 300)
)
def test_headers_of_pickled_payloads_are_stocks(pickled: bytes, n_buffers: int) -> None:
    header = pickled_header(pickled, n_buffers)
    assert header == msgpack.packb({"pickled-obj": pickled, "num-sub-frames": n_buffers})
    assert count_frames(header) == n_buffers


def test_stock_deserializes_our_payloads() -> None:
    array = np.arange(1000)
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(array, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    ours = {
        "a": pickled_payload(pickled, views),
        "b": serialized_payload({"serializer": "pickle", "writeable": (True,)}, [pickled, *views]),
        "c": Payload("serialized", *packed(serialize({"x": array}))),
    }
    read = loads(Codec().encode(ours))
    assert (read["a"] == array).all() and (read["b"] == array).all()
    assert (read["c"]["x"] == array).all()


def packed(parts: tuple[dict[str, Any], list[Any]]) -> tuple[bytes, tuple[Any, ...]]:
    payload = serialized_payload(*parts)
    return payload.header, payload.frames


@pytest.mark.parametrize("name", [None, *AVAILABLE])
@pytest.mark.parametrize("wrap", [ToPickle, to_serialize])
def test_pickles_are_extracted(wrap: Any, name: str | None) -> None:
    """Compressed, sharded, with out-of-band buffers: complete, and not unpickled."""
    arrays = [np.arange(30_000), np.zeros(50_000)]
    value = SimpleNamespace(arrays=arrays, text="x" * 40_000)  # a list would be taken apart
    options: dict[str, Any] = {"context": {"compression": name}, "frame_split_size": 15_000}
    if wrap is to_serialize:
        options["serializers"] = ["pickle"]
    payload = from_stock(wrap(value), **options)
    read = opened(payload)
    assert all((a == b).all() for a, b in zip(read.arrays, arrays, strict=True))
    assert read.text == value.text
    if wrap is to_serialize:
        assert len(payload.frames) > 3
        assert payload_header(payload)["split-num-sub-frames"]
    if name:
        assert name in payload_header(payload)["compression"]


def test_buffers_keep_their_writability() -> None:
    frozen = np.arange(2000)
    frozen.flags.writeable = False
    for array in (np.arange(2000), frozen):
        payload = from_stock(to_serialize(SimpleNamespace(a=array)), serializers=["pickle"])
        assert opened(payload).a.flags.writeable == array.flags.writeable


def test_payloads_without_pickle() -> None:
    other = from_stock(to_serialize(np.arange(10)))  # family "dask"
    broken = [
        other,
        Payload("pickled", b""),
        Payload("pickled", b"\x80"),
        Payload("pickled", b"\x90"),
        Payload("serialized", b"\x81\xaaserializer\xa6pickle"),
        serialized_payload({"serializer": "pickle", "writeable": (True, True)}, [b"x", b"y"]),
        serialized_payload({"serializer": "pickle", "compression": ("unknown",)}, [b"x"]),
        serialized_payload({"serializer": "pickle", "compression": ("zlib",)}, [b"x"]),
        serialized_payload({"serializer": "pickle", "compression": ("zlib",)}, [b"x", b"y"]),
        serialized_payload(
            {"serializer": "pickle", "split-num-sub-frames": (3,), "split-offsets": (0,)}, [b"x"]
        ),
        serialized_payload({"serializer": "pickle", "split-num-sub-frames": (1,)}, [b"x"]),
        serialized_payload(
            {"serializer": "pickle", "split-num-sub-frames": "x", "split-offsets": {}}, [b"x"]
        ),
    ]
    for payload in broken:
        with pytest.raises(RemoteProtocolError):
            payload_pickle(payload)


@pytest.mark.parametrize("header", [b"", b"\x80", b"\x90", b"\xc1", b"\x81\xaenum-sub-frames\xff"])
def test_headers_that_do_not_count(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        count_frames(header)


def test_equality_and_size() -> None:
    one = pickled_payload(b"x", [b"abc"])
    same = Payload("pickled", one.header, (memoryview(b"abc"),))
    assert one == same and one != Payload("serialized", one.header, one.frames)
    assert one != pickled_payload(b"x", [b"abd"]) and one != "x"
    assert one.nbytes == len(one.header) + 3
    assert len({one, same}) == 2  # hashed as the objects that they are
    wide = pickled_payload(b"x", [memoryview(bytes(16)).cast("Q")])
    assert wide.nbytes == len(wide.header) + 16


# ------------------------------------------------------------------ compression


def test_required_codecs_exist() -> None:
    assert {"lz4", "zstd", "zlib"} <= set(AVAILABLE)


@pytest.mark.parametrize("name", AVAILABLE)
@given(st.one_of(st.binary(max_size=100), st.integers(0, 10**5).map(bytes)))
def test_codecs(name: str, data: bytes) -> None:
    for frame in (data, bytearray(data), memoryview(data)):
        assert expand(name, compressions[name].compress(frame), 10**6) == data
    assert expand(None, data) is data


@pytest.mark.parametrize("name", AVAILABLE)
def test_expansion_is_bounded(name: str) -> None:
    bomb = compressions[name].compress(bytes(10**7))
    assert len(bomb) < 10**5
    with pytest.raises(RemoteProtocolError, match="would become"):
        expand(name, bomb, 10**6)
    with pytest.raises(RemoteProtocolError):
        expand(name, b"\xff" * 20)
    with pytest.raises(RemoteProtocolError):
        expand(name, bomb[:-5])


def test_expansion_is_bounded_for_all_frames_together() -> None:
    frames = [zlib.compress(bytes(600)), zlib.compress(bytes(600))]
    payload = serialized_payload({"serializer": "pickle", "compression": ("zlib", "zlib")}, frames)
    assert payload_pickle(payload, 1200)[0] == bytes(600)
    with pytest.raises(RemoteProtocolError):
        payload_pickle(payload, 1199)


def test_wrong_sizes() -> None:
    claims = (2**31 - 1).to_bytes(4, "little") + lz4.block.compress(b"x", store_size=False)
    with pytest.raises(RemoteProtocolError, match="would become"):
        expand("lz4", claims)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(b"x")
    with pytest.raises(RemoteProtocolError, match="size"):
        expand("zstd", silent)
    for name in ("lzma", "auto", ""):
        with pytest.raises(RemoteProtocolError, match="unknown codec"):
            expand(name, lzma.compress(b"x"))


def opened_members(payload: Payload) -> Any:
    """Return the value as a reader of pickles deserializes what a stock worker sends."""
    found = payload_members(payload)
    if found is None:
        return opened(payload)
    kind, members = found
    if kind == "dict":
        return {key: opened_members(inner) for key, inner in members}
    kinds: dict[str, Any] = {"list": list, "tuple": tuple, "set": set}
    return kinds[kind](opened_members(inner) for _, inner in members)


@pytest.mark.parametrize("context", [{}, {"compression": "zlib"}], ids=["plain", "zlib"])
@pytest.mark.parametrize("size", [None, 7000], ids=["whole", "sharded"])
def test_collections_of_stock(context: Any, size: int | None) -> None:
    """Members of lists and maps are serialized one by one, also for peers that read only pickles."""
    value = {
        "a": [b"x", bytes(50_000), (np.arange(3000), "text")],
        ("b", 1): {b"set"},
        "empty": [[], {}, np.zeros(0)],
        "c": {"deep": [{"deeper": np.ones(2)}]},
    }
    options = {"serializers": ["pickle"], "context": context, "frame_split_size": size}
    payload = from_stock(to_serialize(value), **options)
    assert payload_members(payload) is not None
    np.testing.assert_equal(opened_members(payload), value)
    lists = opened_members(from_stock(to_serialize([np.arange(9), b"x"]), **options))
    np.testing.assert_equal(lists, [np.arange(9), b"x"])


def test_payloads_that_are_no_collection() -> None:
    assert payload_members(pickled_payload(pickle.dumps(1))) is None
    assert payload_members(from_stock(to_serialize(1))) is None


@pytest.mark.parametrize(
    "change",
    [
        {"frame-lengths": (1, -1)},
        {"frame-lengths": (1,)},
        {"frame-lengths": (1, 5)},
        {"frame-lengths": (1, "x")},
        {"frame-lengths": (1, 2**64 - 1)},
        {"frame-lengths": None},
        {"sub-headers": 5},
        {"sub-headers": (1, 2)},
        {"type-serialized": "dict_keys"},
        {"type-serialized": [1]},
    ],
)
def test_broken_collections(change: Any) -> None:
    header = {
        **{"is-collection": True, "type-serialized": "list", "frame-lengths": (1, 1)},
        "sub-headers": ({"serializer": "pickle"}, {"serializer": "pickle"}),
    }
    assert payload_members(serialized_payload(header, [b"a", b"b"])) is not None
    with pytest.raises(RemoteProtocolError):
        payload_members(serialized_payload({**header, **change}, [b"a", b"b"]))
