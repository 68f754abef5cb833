"""Conformance vectors: what ``docs/vectors`` says of each message is what the codecs read and write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paceline.protocol.catalogue import STREAM_DIRECTIONS, TABLES
from paceline.protocol.checking import check_message
from paceline.protocol.codec import Codec
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.handshake import IN_PLACE
from paceline.protocol.json_form import frames_to_json, json_to_frames
from paceline.protocol.messages import Message
from paceline.protocol.values import ValueReader

FOLDER = Path(__file__).parent.parent.parent / "docs" / "vectors"
INDEX = json.loads((FOLDER / "index.json").read_text())
VECTORS = INDEX["vectors"]


def frames_of(entry):
    (frames,) = FrameReader().feed((FOLDER / f"{entry['vector']}.bin").read_bytes())
    return frames


def test_each_op_has_a_vector():
    there = {(e["direction"], e["op"]) for e in VECTORS if e["kind"] == "message"}
    assert {(d, op) for d, table in TABLES.items() for op in table} <= there


def test_most_are_captured():
    captured = sum(entry["source"] == "captured" for entry in VECTORS)
    assert captured > 0.8 * len(VECTORS)


@pytest.mark.parametrize("entry", VECTORS, ids=lambda e: e["vector"])
def test_bytes_and_json_are_one(entry):
    data = (FOLDER / f"{entry['vector']}.bin").read_bytes()
    form = json.loads((FOLDER / f"{entry['vector']}.json").read_text())
    assert len(data) == entry["nbytes"]
    assert frames_to_json(frames_of(entry)) == form
    assert b"".join(map(bytes, pack_frames(json_to_frames(form)))) == data
    # the second encoding says the same
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
        message = Codec().decode_rpc(frames, entry["direction"])
    assert isinstance(message, Message)
    assert type(message) is TABLES[entry["direction"]][entry["op"]].cls
    assert check_message(raw, entry["direction"]) == []
