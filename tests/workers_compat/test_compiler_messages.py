"""Messages between scheduler and compiler round-trip in pieces of any size."""

from __future__ import annotations

import time

import msgspec
import pytest
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import FrameReader, Frames
from paceline.protocol.packed_keys import PackedKeys
from paceline.protocol.payload import Payload, pickled_payload
from paceline.scheduler.core.stimuli import AnnotationSet, GraphChunk, GraphCommit, GraphFailed
from paceline.workers_compat.graphs.compiler_messages import (
    Cancel,
    ChildSetup,
    CompileRequest,
    CompilerReady,
    GraphDone,
    UploadedFile,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)

PAYLOAD = Payload("serialized", b"header", (b"abc", b"x" * 100_000, b""))

REQUESTS = [
    CompileRequest(1, "c", PAYLOAD, [("x", 0), "a", 1, 2.5, b"b", ("n", ("m", 1))]),
    CompileRequest(
        2,
        "c",
        PAYLOAD,
        [],
        internal_priority={("x", 0): 0, "b": 1, ("n", ("m", 1)): 2},
        submitting_task=("x", ("y", 2)),
        user_priority={("x", 1): 3},
        actors=[("x", 1)],
        fifo_timeout="60s",
        code=pickled_payload(b"code", [b"buffer"]),
        annotations={"a": [1, {"b": None}]},
        received_at=1.5,
        validate=True,
    ),
    CompileRequest(3, "c", PAYLOAD, ["a"], actors=True, internal_priority={}),
    ChildSetup({"a": {"b": 1}}, ["/x"], {"f.py": b"1"}),
    UploadedFile("f.py", b"x = 1"),
    Cancel(3),
]

REPLIES = [
    CompilerReady(12, 0.5),
    GraphChunk(
        graph_id=1,
        keys=[("x", 0), "a", 1, ("n", ("m", 1)), (), (1, 2)],
        groups=[0, 1, 2, 3, 4, 4],
        new_groups=[("x", "x"), ("a", "a")],
        dependencies=[[], [0, -1], [], [], [], []],
        new_externals=[("f", 1)],
        run_specs=[b"spec", b"", b"", b"", b"", b""],
        priorities=[0, 1, 2, 3, 4, 5],
        spec_buffers={0: [0, 1]},
        buffers=[b"x" * 600, b"y" * 200_000],
        data_producers=[2],
        annotations={0: 0},
        new_annotations=[
            AnnotationSet({"a": [1]}, ["w"], True, {"GPU": 1.0}, 3, 2.0),
            AnnotationSet(pickled_payload(b"pickle")),
        ],
    ),
    GraphCommit(
        1, [("x", 0)], "c", user_priority={("x", ("y", 0)): 1}, actors=[("x", 0)], code=PAYLOAD
    ),
    GraphFailed(1, [("x", 0)], "c", PAYLOAD, None, "text"),
    GraphDone(4),
]


def received(pieces: Frames) -> Frames:
    """Return the frames of the one message in `pieces`."""
    (frames,) = FrameReader().feed(b"".join(pieces))
    return frames


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_requests(request_):
    assert decode_request(received(encode_request(request_))) == request_


def test_packed_keys_of_a_request():
    keys = [("x", (n, "y")) for n in range(20)]
    packed = PackedKeys(msgspec.Raw(msgspec.msgpack.encode(keys)))
    request = CompileRequest(1, "c", PAYLOAD, packed, internal_priority={"x": 1})
    expected = CompileRequest(1, "c", PAYLOAD, keys, internal_priority={"x": 1})
    assert decode_request(received(encode_request(request))) == expected
    request.internal_priority = msgspec.Raw(msgspec.msgpack.encode(expected.internal_priority))
    assert decode_request(received(encode_request(request))) == expected


@pytest.mark.parametrize("reply", REPLIES, ids=lambda r: type(r).__name__)
def test_replies(reply):
    assert decode_reply(received(encode_reply(reply))) == reply


def test_keys_are_hashable_and_share_their_first_element():
    chunk = GraphChunk(
        1, [("name-" + "x" * n, n) for n in (3, 3)], [0, 0], [], [[], []], [], [b"", b""], [0, 1]
    )
    keys = decode_reply(received(encode_reply(chunk))).keys
    assert keys[0][0] is keys[1][0]
    assert all(hash(key) for key in keys)


def test_group_names_and_worker_names_may_be_tuples_too():
    sets = [AnnotationSet(workers=["a", 5, ("rack", 1)])]
    chunk = GraphChunk(1, [(1, 2)], [0], [(1, "1"), (("a", ("b",)), "a")], [[]], [], [b""], [0])
    chunk.new_annotations = sets
    reply = decode_reply(received(encode_reply(chunk)))
    assert reply.new_groups == [(1, "1"), (("a", ("b",)), "a")]
    assert reply.new_annotations == sets and set(reply.new_annotations[0].workers)


def test_large_buffers_are_not_copied():
    frames = received(encode_reply(REPLIES[1]))
    small, large = decode_reply(frames).buffers
    assert type(small) is bytes
    assert type(large) is memoryview
    assert large is frames[2]
    pieces = encode_request(REQUESTS[0])
    assert any(piece is PAYLOAD.frames[1] for piece in pieces)


@pytest.mark.parametrize("step", [1, 7, 8, 9, 1000, 65_536, 10**9])
def test_reader_accepts_any_pieces(step):
    messages = [
        b"".join(encode_reply(reply)) for reply in REPLIES if step > 1 or reply != REPLIES[1]
    ]
    stream = b"".join(messages)
    reader = FrameReader()
    got = []
    for start in range(0, len(stream), step):
        got += reader.feed(stream[start : start + step])
    assert got == list(map(received, map(list, zip(messages, strict=True))))


def test_invalid_lengths_are_refused():
    with pytest.raises(RemoteProtocolError):
        FrameReader().feed(b"\xff" * 16)
    (message,) = received(encode_reply(REPLIES[0]))
    for broken in ([message[:-1]], [message[:1]], [message + b"x"], [b""], []):
        with pytest.raises(RemoteProtocolError):
            decode_reply(broken)
    with pytest.raises(RemoteProtocolError):
        decode_reply([b"\x63" + message[1:]])
    with pytest.raises(RemoteProtocolError):
        decode_request([b"\x63" + message[1:]])
    with pytest.raises(RemoteProtocolError):
        decode_reply([message[:1] + b"\xc1" + message[2:]])


def test_values_that_cannot_be_encoded_are_errors():
    with pytest.raises(TypeError):
        encode_reply(GraphCommit(1, [], "c", user_priority=object()))


def test_decoding_a_chunk_is_fast():
    n = 1000
    chunk = GraphChunk(
        1, [("e-abcdef", i) for i in range(n)], [0] * n, [("e-abcdef", "e")],
        [[i - 1] if i else [] for i in range(n)], [], [b"x" * 140] * n, list(range(n)),
    )  # fmt: skip
    message = received(encode_reply(chunk))
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        decode_reply(message)
        best = min(best, time.perf_counter() - started)
    assert best < 3e-3
