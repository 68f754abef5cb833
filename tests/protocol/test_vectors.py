"""Conformance vectors: the codecs decode and encode what ``docs/vectors`` describes."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
from distributed.protocol.core import loads
from distributed.protocol.serialize import Serialized
from paceline.protocol.catalogue import STREAM_DIRECTIONS, TABLES
from paceline.protocol.codec import Codec
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.handshake import IN_PLACE, Agreement
from paceline.protocol.json_form import frames_to_json, json_to_frames
from paceline.protocol.messages import Message
from paceline.protocol.payload import Payload, payload_header, payload_pickle
from paceline.protocol.validation import check_message, check_reply
from paceline.protocol.values import ValueReader

from tests.protocol.requests import decode_rpc
from tests.wiretap import features

FOLDER = Path(__file__).parent.parent.parent / "docs" / "vectors"
INDEX = json.loads((FOLDER / "index.json").read_text())
VECTORS = INDEX["vectors"]


def frames_of(entry):
    (frames,) = FrameReader().feed((FOLDER / f"{entry['vector']}.bin").read_bytes())
    return frames


def test_each_op_has_a_vector():
    there = {(e["direction"], e["op"]) for e in VECTORS if e["kind"] == "message"}
    assert {(d, op) for d, table in TABLES.items() for op in table} <= there


def test_most_vectors_are_captured():
    as_it_passed = [e for e in VECTORS if e["source"] == "captured" and "cut_from_batch" not in e]
    assert len(as_it_passed) > 0.9 * len(VECTORS)


@pytest.mark.parametrize(
    "shape",
    [
        "batch",
        "batch-of-values",
        "several-values",
        "several-frames",
        "compressed",
        "sharded",
        "empty-frame",
    ],
)
def test_each_shape_has_a_vector(shape):
    """The smallest message of an op is rarely a batch, and its values have one frame each."""
    assert any(e["kind"] == "shape" and e["op"].endswith(f".{shape}") for e in VECTORS)


@pytest.mark.parametrize("entry", VECTORS, ids=lambda e: e["vector"])
def test_bytes_and_json_agree(entry):
    data = (FOLDER / f"{entry['vector']}.bin").read_bytes()
    form = json.loads((FOLDER / f"{entry['vector']}.json").read_text())
    assert len(data) == entry["nbytes"]
    assert frames_to_json(frames_of(entry)) == form
    assert b"".join(map(bytes, pack_frames(json_to_frames(form)))) == data
    # the in-place encoding has the same content
    assert frames_to_json(json_to_frames(form, IN_PLACE), IN_PLACE) == form


@pytest.mark.parametrize(
    "entry", [e for e in VECTORS if e["kind"] == "message"], ids=lambda e: e["vector"]
)
def test_messages_decode_to_their_class(entry):
    frames = frames_of(entry)
    raw = ValueReader(frames).read(frames[0])
    if entry["direction"] in STREAM_DIRECTIONS:
        (message,) = Codec().decode_batch(frames, entry["direction"])
        (raw,) = raw
    else:
        message = decode_rpc(Codec(), frames, entry["direction"])
    assert isinstance(message, Message)
    assert type(message) is TABLES[entry["direction"]][entry["op"]].cls
    assert check_message(raw, entry["direction"]) == []


@pytest.mark.parametrize(
    "entry", [e for e in VECTORS if e["kind"] == "shape"], ids=lambda e: e["vector"]
)
def test_stock_decodes_shapes(entry, monkeypatch):
    """The shapes are equal after encoding them again, and after a round trip in the in-place encoding."""
    monkeypatch.setitem(sys.modules, "features", features)  # its name when vectors were captured
    frames = frames_of(entry)
    theirs = as_stock_reads(frames)
    value = ValueReader(frames).read(frames[0])
    assert plain(value) == theirs
    assert as_stock_reads(Codec().encode(value)) == theirs
    second = json_to_frames(frames_to_json(frames), IN_PLACE)
    assert plain(Codec(Agreement(encoding="in-place")).decode_value(second)) == theirs
    if "batch" in entry["op"]:
        messages = Codec().decode_batch(frames, entry["op"].split(".")[0])
        assert [m.op() for m in messages] == [raw["op"] for raw in theirs]
        assert len(messages) > 2 and all(isinstance(m, Message) for m in messages)


def as_stock_reads(frames):
    return plain(loads([bytes(frame) for frame in frames], deserialize=False))


def plain(value):
    """Convert serialized values of paceline and stock to one form: the decoded header, and the frames."""
    if isinstance(value, Payload) and value.kind == "pickled":  # stock deserializes these at once
        pickled, buffers = payload_pickle(value)
        return plain(pickle.loads(pickled, buffers=buffers))
    if isinstance(value, Payload):
        header = {k: v for k, v in payload_header(value).items() if k != "num-sub-frames"}
        return ("closed", header, list(map(bytes, value.frames)))
    if isinstance(value, Serialized):
        header = {k: v for k, v in value.header.items() if k != "num-sub-frames"}
        return ("closed", header, list(map(bytes, value.frames)))
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


@pytest.mark.parametrize(
    "entry",
    [e for e in VECTORS if e["kind"] == "reply" and e["direction"] in TABLES],
    ids=lambda e: e["vector"],
)
def test_replies_match_the_types_in_the_catalogue(entry):
    frames = frames_of(entry)
    value = ValueReader(frames).read(frames[0])
    assert check_reply(value, TABLES[entry["direction"]][entry["op"]]) == []
