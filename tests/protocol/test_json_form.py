"""The JSON form: captured and generated messages are converted back to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.protocol.errors import LocalProtocolError, RemoteProtocolError
from paceline.protocol.framing import FrameReader
from paceline.protocol.json_form import (
    documents,
    dumps,
    frames_to_json,
    from_json,
    json_to_frames,
    to_json,
)
from paceline.protocol.payload import Payload, pickled_payload, serialized_payload

CAPTURES = sorted((Path(__file__).parent / "captures").glob("*.bin"))

keys = st.recursive(
    st.text(max_size=5) | st.binary(max_size=5) | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)  # fmt: skip
payloads = st.builds(
    lambda pickled, frames: pickled_payload(pickled, frames),
    st.binary(max_size=300),
    st.lists(st.binary(max_size=9), max_size=3),
) | st.builds(
    lambda name, frames: serialized_payload({"serializer": name}, frames),
    st.text(max_size=5),
    st.lists(st.binary(max_size=9), max_size=3),
)
values = st.recursive(
    st.none() | st.booleans() | keys | payloads,
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.sampled_from(("$a", "$bytes", "b", "__Set__")), inner, max_size=2)
        | st.sets(keys, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.stem)
def test_captured_bytes_round_trip(path: Path) -> None:
    for frames in FrameReader().feed(path.read_bytes()):
        form = frames_to_json(frames)
        (again,) = documents(dumps(form))
        assert again == form
        back = json_to_frames(again)
        assert [bytes(x) for x in back] == [bytes(x) for x in frames]


@given(values)
def test_values_round_trip(value: object) -> None:
    text = dumps(to_json(value))
    assert from_json(json.loads(text)) == value


@given(values)
def test_frames_of_values_round_trip(value: object) -> None:
    frames = json_to_frames(to_json(value))
    form = frames_to_json(frames)
    assert [bytes(x) for x in json_to_frames(form)] == [bytes(x) for x in frames]
    in_place = json_to_frames(form, "in-place")
    assert frames_to_json(in_place, "in-place") == form


def test_format() -> None:
    pickled = pickled_payload(b"p", [b"\x01"])
    assert to_json({("x", 0): pickled, "n": 2**60, "f": 3.0, "i": float("inf")}) == {
        "$map": [
            [["x", 0], {"$pickled": {"header": {"pickled-obj": {"$bytes": "70"}, "num-sub-frames": 1}, "frames": ["01"]}}],
            ["n", {"$int": str(2**60)}],
            ["f", 3.0],
            ["i", {"$float": "inf"}],
        ]
    }  # fmt: skip
    assert to_json({"a": b"\x00\xff", "s": {1}}) == {"a": {"$bytes": "00ff"}, "s": {"$set": [1]}}


def test_unusual_header_is_kept_in_hex() -> None:
    header = b"\x81\xd9\x0enum-sub-frames\x00"  # a longer msgpack encoding than necessary
    form = to_json(Payload("serialized", header))
    assert form["$serialized"]["header_hex"] == header.hex()
    assert from_json(form).header == header


@pytest.mark.parametrize(
    "form",
    [
        {"$bytes": "0"},
        {"$bytes": 1},
        {"$no": 1},
        {"$bytes": "", "more": 1},
        {"$map": [1]},
        {"$map": [[{"a": 1}, 2]]},
        {"$set": {}},
        {"$pickled": {}},
        {"$int": "x"},
        {"$ext": []},
        float("nan"),
    ],
)
def test_invalid_forms(form: object) -> None:
    with pytest.raises(LocalProtocolError):
        json_to_frames(form)


def test_depth_is_bounded() -> None:
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(LocalProtocolError, match="deep"):
        json_to_frames(deep)
    with pytest.raises(RemoteProtocolError, match="deep"):
        to_json(deep)
    with pytest.raises(LocalProtocolError):
        list(documents("[" * 100_000))


def test_documents_follow_each_other() -> None:
    assert list(documents('{"a":1}\n[2]\n\n 3 ')) == [{"a": 1}, [2], 3]
    with pytest.raises(LocalProtocolError):
        list(documents("{"))


def test_long_bytes_can_be_omitted() -> None:
    value = {"a": bytes(11), "b": pickled_payload(b"1", [bytes(11), b"2"]), "c": b"3"}
    form = to_json(value, max_nbytes=10_000)
    assert from_json(form) == value
    short = to_json({**value, "d": pickled_payload(bytes(90))}, max_nbytes=50)
    assert short["a"] == {"$bytes": "00" * 11}
    assert short["d"] == {"$pickled": {"$omitted": pickled_payload(bytes(90)).nbytes}}
    shorter = to_json({"b": serialized_payload({}, [bytes(99)]), "e": bytes(99)}, max_nbytes=50)
    assert shorter["b"]["$serialized"]["frames"] == [{"$omitted": 99}]
    assert shorter["e"] == {"$omitted": 99}
    with pytest.raises(LocalProtocolError):
        from_json(short)
