"""Long batches are decoded in pieces, to the same messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from paceline.protocol import messages as m
from paceline.protocol.codec import Codec
from paceline.protocol.connection import Batch, Connection
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.long_batch import LONG_BATCH_NBYTES, PIECE_KEYS, PIECE_NBYTES, split_batch
from paceline.protocol.packed_keys import PackedKeys, decode_or

KEYS: list[Any] = [("some-name-of-a-task", i) for i in range(20_000)]


def stream(kind: Any) -> Connection:
    connection = Connection("listener")
    other = Connection("connector")
    connection.receive_frames(other.start())
    other.receive_frames(connection.start())
    connection.become_stream(kind)
    return connection


def received(connection: Connection, frames: list[Any]) -> list[list[Any]]:
    (event,) = connection.receive_frames(frames)
    assert type(event) is Batch
    return [event.messages, *(event.more or ())]


def packed(batch: list[Any]) -> bytes:
    return msgspec.msgpack.encode(batch)


def release(*keys: Any) -> dict[str, Any]:
    return {"op": "client-releases-keys", "keys": list(keys), "client": "c"}


def test_short_batch_is_one_piece() -> None:
    pieces = received(stream("client"), [packed([release(key) for key in KEYS[:100]])])
    assert len(pieces) == 1
    assert split_batch(packed([release(*KEYS[:100])])) is None


def test_many_messages() -> None:
    pieces = received(stream("client"), [packed([release(key) for key in KEYS])])
    assert len(pieces) > 20
    assert [msg.keys for piece in pieces for msg in piece] == [[key] for key in KEYS]


@pytest.mark.parametrize("as_set", [False, True])
def test_very_many_keys_in_one_message(as_set: bool) -> None:
    keys: Any = {"__Set__": True, "as-list": KEYS} if as_set else KEYS
    before = release("before")
    batch = [before, {"op": "client-releases-keys", "keys": keys, "client": "c"}, release("after")]
    pieces = received(stream("client"), [packed(batch)])
    found = [key for piece in pieces for msg in piece for key in msg.keys]
    assert found == ["before", *KEYS, "after"]
    assert max(len(msg.keys) for piece in pieces for msg in piece) == PIECE_KEYS
    assert {msg.client for piece in pieces for msg in piece} == {"c"}


@pytest.mark.parametrize("as_set", [False, True])
def test_wanted_keys_of_a_large_graph_are_not_decoded(as_set: bool) -> None:
    wanted = [*KEYS, ("nested", (1, 2)), "text", b"bytes", 1.5]
    keys: Any = {"__Set__": True, "as-list": wanted} if as_set else wanted
    graph = {"op": "update-graph", "expr_ser": {"__Serialized__": 1}, "keys": keys, "client": "c"}
    graph["internal_priority"] = order = {key: n for n, key in enumerate(wanted)}
    frames: list[Any] = [packed([release("before"), graph, release("after")])]
    frames += [packed({"num-sub-frames": 0})]
    (before,), (message,), (after,) = received(stream("client"), frames)
    assert before.keys == ["before"] and after.keys == ["after"]
    assert type(message) is m.UpdateGraph and message.client == "c"
    assert type(message.keys) is PackedKeys and len(message.keys) == len(wanted)
    assert list(message.keys) == wanted and ("nested", (1, 2)) in message.keys
    (whole,) = Codec().decode_batch([packed([graph]), *frames[1:]], "client_to_scheduler")
    assert list(message.keys) == whole.keys
    assert type(message.internal_priority) is msgspec.Raw
    assert decode_or(message.internal_priority, None) == whole.internal_priority == order


def test_few_wanted_keys_of_a_large_graph_are_a_list() -> None:
    graph = {
        "op": "update-graph", "expr_ser": {"__Serialized__": 1}, "keys": ["x" * 50_000] * 3,
    }  # fmt: skip
    frames: list[Any] = [packed([graph]), packed({"num-sub-frames": 0})]
    ((message,),) = received(stream("client"), frames)
    assert message.keys == graph["keys"]


@pytest.mark.parametrize("keys", [17, {"as-list": "x" * PIECE_NBYTES}, {"x": KEYS}, None])
def test_wanted_keys_of_another_type(keys: Any) -> None:
    graph = {"op": "update-graph", "expr_ser": {"__Serialized__": 1}, "keys": keys}
    graph["code"] = "x" * LONG_BATCH_NBYTES
    frames: list[Any] = [packed([graph]), packed({"num-sub-frames": 0})]
    pieces = received(stream("client"), frames)
    assert [type(msg).__name__ for piece in pieces for msg in piece] == ["InvalidMessage"]


def test_keys_that_are_not_utf8() -> None:
    keys = PackedKeys(msgspec.Raw(packed(KEYS).replace(b"task", b"t\xffsk")))
    assert len(keys) == len(KEYS) and list(keys) == []


@pytest.mark.parametrize("priority", [None, {}, {"a": 1}, 5])
def test_short_order_of_many_keys_is_decoded(priority: Any) -> None:
    graph = {"op": "update-graph", "expr_ser": {"__Serialized__": 1}, "keys": KEYS}
    graph["internal_priority"] = priority
    frames: list[Any] = [packed([graph]), packed({"num-sub-frames": 0})]
    ((message,),) = received(stream("client"), frames)
    assert message.internal_priority == priority and len(message.keys) == len(KEYS)


def test_batches_of_workers() -> None:
    batch = [{"op": "add-keys", "keys": KEYS, "stimulus_id": "s"}]
    pieces = received(stream("worker"), [packed(batch)])
    assert all(type(msg) is m.AddKeys for piece in pieces for msg in piece)
    assert [key for piece in pieces for msg in piece for key in msg.keys] == KEYS


def test_single_long_message_is_not_split() -> None:
    long = {"op": "something-of-a-plugin", "text": "x" * LONG_BATCH_NBYTES}
    pieces = received(stream("client"), [packed([long, release("k")])])
    (invalid,), (last,) = pieces
    assert invalid.raw["text"] == long["text"]
    assert last.keys == ["k"]


def test_serialized_values_are_found_in_their_frames() -> None:
    error = {"__Pickled__": 2}
    erred = {
        "op": "task-erred", "key": "k", "run_id": 1, "exception": error, "traceback": None,
        "exception_text": "x" * PIECE_NBYTES, "traceback_text": "", "stimulus_id": "s",
        "startstops": [], "thread": None, "status": "error",
    }  # fmt: skip
    frames: list[Any] = [
        packed([erred] * 3),
        b"\x82\xa4nope\x00\xa1x\x01",
        packed({"num-sub-frames": 0}),
    ]
    whole = Codec().decode_batch(frames, "worker_to_scheduler")
    pieces = received(stream("worker"), frames)
    assert len(pieces) == 3
    found = [msg for piece in pieces for msg in piece]
    assert [type(msg) for msg in found] == [type(msg) for msg in whole]
    assert found[0].exception.header == whole[0].exception.header


def test_an_invalid_message_affects_no_other() -> None:
    batch: list[Any] = [release(key) for key in KEYS]
    batch[7] = {"op": "client-releases-keys", "keys": 17, "client": "c"}
    batch[8] = 5
    pieces = received(stream("client"), [packed(batch)])
    kinds = [type(msg).__name__ for piece in pieces for msg in piece]
    assert len(kinds) == len(KEYS)
    assert kinds[7:9] == ["InvalidMessage", "InvalidMessage"]
    assert kinds.count("InvalidMessage") == 2


def test_nothing_after_close() -> None:
    batch: list[Any] = [release(key) for key in KEYS]
    batch.insert(5_000, {"op": "close-stream"})
    connection = stream("client")
    pieces = received(connection, [packed(batch)])
    found = [msg for piece in pieces for msg in piece]
    assert len(found) == 5_001
    assert type(found[-1]) is m.CloseStream
    assert connection.phase == "closed"


def test_invalid_msgpack() -> None:
    connection = stream("client")
    with pytest.raises(RemoteProtocolError):
        connection.receive_frames([b"\xc1" * (LONG_BATCH_NBYTES + 1)])
