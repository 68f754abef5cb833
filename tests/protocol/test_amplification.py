"""Memory of a decoded message is bounded by what was received, for any placeholders and keys."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import msgpack
import pytest
from paceline.protocol.codec import Codec
from paceline.protocol.connection import Connection, HandshakeDone
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.handshake import Agreement, local_offer, read_handshake
from paceline.protocol.messages.base import InvalidMessage
from paceline.protocol.payload import FrameClaims, Payload, serialized_payload

N = 3000


def header(count: int) -> bytes:
    return bytes(serialized_payload({"serializer": "pickle"}, [b""] * count).header)


def placeholders(kind: str) -> tuple[list[Any], list[bytes]]:
    """N placeholders that share N frames."""
    if kind == "in-place":
        return [{"__Serialized__": [header(N), 1, N]}] * N, [b"x"] * N
    if kind == "same header":
        return [{"__Serialized__": 1}] * N, [header(N), *[b"x"] * N]
    headers = [header(N - k) for k in range(1, N + 1)]
    return [{"__Serialized__": k} for k in range(1, N + 1)], headers


def codec_of(kind: str) -> Codec:
    return Codec(Agreement(encoding="in-place")) if kind == "in-place" else Codec()


@pytest.mark.parametrize("kind", ["in-place", "same header", "each behind the other"])
def test_placeholders_share_no_frames(kind: str) -> None:
    values, frames = placeholders(kind)
    codec = codec_of(kind)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="share frame"):
            codec.decode_value([msgpack.packb(values), *frames])
        messages = [{"op": "log-event", "topic": "t", "stimulus_id": "s", "msg": x} for x in values]
        got = codec.decode_batch([msgpack.packb(messages), *frames], "worker_to_scheduler")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert sum(type(message) is InvalidMessage for message in got) == N - 1
    assert "share frame" in got[-1].error


def test_a_long_batch_shares_no_frames() -> None:
    """The batch is decoded in pieces, each with all frames of the message."""
    listener, connector = Connection("listener"), Connection("connector")
    listener.receive_frames(connector.start())
    listener.become_stream("worker")
    messages = [{"op": "log-event", "topic": "t" * 300, "msg": {"__Serialized__": 1}}] * N
    (batch,) = listener.receive_frames([msgpack.packb(messages), header(1), b"x"])
    pieces = [batch.messages, *batch.more]
    assert len(pieces) > 5
    opened = [x for x in itertools.chain(*pieces) if type(x) is not InvalidMessage]
    assert len(opened) == 1 and isinstance(opened[0].msg, Payload)


def test_claims_can_be_undone() -> None:
    claims = FrameClaims(10)
    claims.claim(1, 4)
    claims.claim(4, 6)
    claims.undo(1)
    claims.claim(4, 10)
    with pytest.raises(RemoteProtocolError, match="share frame 3"):
        claims.claim(3, 4)


def test_batch_that_is_decoded_again_decodes_its_payloads() -> None:
    """An invalid message does not affect the others of its batch."""
    good = {"op": "log-event", "topic": "t", "stimulus_id": "s", "msg": {"__Serialized__": 1}}
    bad = {"op": "add-keys", "keys": 5, "stimulus_id": "s"}
    got = Codec().decode_batch([msgpack.packb([good, bad]), header(1), b"x"], "worker_to_scheduler")
    assert [type(x) is InvalidMessage for x in got] == [False, True]
    assert got[0].msg.frames == (b"x",)


def test_handshake_is_decoded_without_hashing_its_content() -> None:
    collisions = [(a * (2**61 - 1), b * (2**61 - 1)) for a in range(8) for b in range(8)]
    nested = msgpack.packb(dict.fromkeys(collisions, 0))
    offer = {**local_offer(in_place=True), "map": {"a": 1}, "nested": [["a"]], "proof": ["a", "b"]}
    assert read_handshake([msgpack.packb(offer)]) == {
        **local_offer(),
        "encodings": ("in-place",),
        "proof": ("a", "b"),
    }
    with pytest.raises(RemoteProtocolError, match="not a handshake"):
        Connection("listener").receive_frames([nested])
    (done,) = Connection("listener").receive_frames([msgpack.packb(offer)])
    assert isinstance(done, HandshakeDone) and "map" not in done.remote
