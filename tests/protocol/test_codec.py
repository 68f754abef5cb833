"""The codec: batches in one call, invalid messages one by one, values decoded as in stock."""

from __future__ import annotations

import math
import sys
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from distributed.protocol import dumps, loads
from distributed.protocol.serialize import Pickled, Serialized, ToPickle, to_serialize
from paceline.protocol.codec import Codec
from paceline.protocol.errors import LocalProtocolError, RemoteProtocolError
from paceline.protocol.handshake import Agreement
from paceline.protocol.keys import KEY_NBYTES_MAX
from paceline.protocol.messages import (
    AddKeys,
    ClientReleasesKeys,
    ComputeTask,
    Event,
    FreeKeys,
    InvalidMessage,
    KeepAlive,
    KeyInMemory,
    LogEvent,
    StealResponse,
    StreamStart,
    TaskErred,
    TaskErredReport,
    TaskFinished,
    UnknownMessage,
    UpdateGraph,
)
from paceline.protocol.payload import Payload, payload_pickle, pickled_payload, serialized_payload

from tests.protocol.requests import decode_rpc, stock_frames

UP = "worker_to_scheduler"
FINISHED: dict[str, Any] = {
    **{"op": "task-finished", "key": ("x", 1), "stimulus_id": "s", "run_id": 3, "nbytes": 28},
    **{"type": b"pickle", "typename": "int", "metadata": {}, "thread": 5, "status": "OK"},
    "startstops": [{"action": "compute", "start": 1.0, "stop": 2.0}],
}


def stock_reads(frames: list[Any], deserialize: bool = True) -> Any:
    return loads(frames, deserialize=deserialize)


def batch(*messages: Any, direction: Any = UP, codec: Codec | None = None) -> list[Any]:
    return (codec or Codec()).decode_batch(stock_frames(list(messages)), direction)


# ------------------------------------------------------------------ decoding


def test_keys_are_hashable_at_any_depth() -> None:
    keys = ["x", b"x", 5, 1.5, ("x", 1), ("x", (1, ("y", b"z"))), ((), ("a",))]
    messages = batch(*({**FINISHED, "key": key} for key in keys))
    assert [m.key for m in messages] == keys
    assert {m.key for m in messages} == set(keys)
    (message,) = batch({"op": "add-keys", "keys": keys, "stimulus_id": "s"})
    assert message == AddKeys(keys=keys, stimulus_id="s")


def test_maps_by_keys() -> None:
    who_has = {("x", (1, 2)): ["tcp://a:1"], b"y": ["tcp://b:2"], 3: ["c", "d"]}
    frames = stock_frames([{"op": "update-data", "who_has": who_has, "nbytes": {("x", (1, 2)): 5}}])
    (message,) = Codec().decode_batch(frames, "client_to_scheduler")
    assert message.who_has == who_has
    assert message.nbytes == {("x", (1, 2)): 5}


def test_sets_of_keys() -> None:
    """``request-refresh-who-has`` and ``update-graph`` send sets."""
    keys = {("x", 1), "y", b"z"}
    (message,) = batch({"op": "request-refresh-who-has", "keys": keys, "stimulus_id": "s"})
    assert type(message.keys) is list and set(message.keys) == keys
    graph = {"op": "update-graph", "expr_ser": to_serialize(1), "keys": keys}
    (message,) = batch(graph, direction="client_to_scheduler")
    assert type(message.keys) is list and set(message.keys) == keys
    assert message.expr_ser.kind == "serialized"


def test_untyped_values_are_as_stock_reads_them() -> None:
    value = {"a": [1, (2, {"b": [3]})], ("k", 1): {1, 2}, "s": {("x", 1)}, "n": None}
    (message,) = batch({"op": "log-event", "topic": ["a", "b"], "msg": value})
    stock = stock_reads(stock_frames([value]))[0]
    assert message == LogEvent(topic=("a", "b"), msg=stock)
    assert type(message.msg["a"]) is tuple and type(message.msg["s"]) is set
    assert stock_reads(Codec().encode([message]))[0]["msg"] == stock


def test_serialized_values_in_any_place() -> None:
    array = np.arange(10)
    value = {"deep": [{"array": to_serialize(array)}], "pickled": ToPickle(1j)}
    frames = stock_frames([{"op": "log-event", "topic": "t", "msg": value}])
    (message,) = Codec().decode_batch(frames, UP)
    inner = message.msg["deep"][0]["array"]
    assert type(inner) is Payload and inner.kind == "serialized" and len(inner.frames) == 1
    assert message.msg["pickled"].kind == "pickled"
    again = stock_reads(Codec().encode([KeepAlive(), message, message]))
    for m in again[1:]:
        assert (m["msg"]["deep"][0]["array"] == array).all()
        assert m["msg"]["pickled"] == 1j


def test_whole_numbers_may_come_as_floats() -> None:
    (message,) = batch({**FINISHED, "nbytes": 3.0, "run_id": 1.0})
    assert message.nbytes == 3 and type(message.nbytes) is int


def test_numbers_may_come_pickled() -> None:
    def read_scalar(payload: Payload) -> Any:
        pickled, _ = payload_pickle(payload)
        return 28 if b"scalar" in pickled or b"int64" in pickled else payload

    scalar = {**FINISHED, "nbytes": np.int64(28)}
    (message,) = batch(scalar, codec=Codec(read_scalar=read_scalar))
    assert message == batch(FINISHED)[0]
    before, message, after = batch(FINISHED, scalar, FINISHED)  # without a reader
    assert before == after == batch(FINISHED)[0]
    assert type(message) is TaskFinished and message.nbytes is None
    scalar = {"op": "task-finished", "key": "x", "run_id": np.int64(3)}
    before, message, after = batch(FINISHED, scalar, FINISHED)
    assert type(message) is InvalidMessage and message.path == "$.run_id"
    assert type(message.raw["run_id"]) is Payload and message.raw["key"] == "x"


def test_user_values_keep_pickled_numbers() -> None:
    frames = stock_frames({"op": "queue_put", "timeout": np.int64(4), "data": [np.int64(4), 2]})
    value = Codec(read_scalar=lambda payload: 4).decode_value(frames)
    assert value["timeout"] == 4
    number, plain = value["data"]
    assert type(number) is Payload and plain == 2
    value = stock_reads(Codec().encode({"value": value["data"]}))
    assert type(value["value"][0]) is np.int64


def test_a_scalar_reader_may_keep_a_value_serialized() -> None:
    message = {"op": "log-event", "topic": "t", "msg": ToPickle({"a": 1})}
    (message,) = batch(message, codec=Codec(read_scalar=lambda payload: payload))
    assert type(message.msg) is Payload


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"stimulus_id": 5}, "$.stimulus_id"),
        ({"key": "x" * (KEY_NBYTES_MAX + 1)}, "$.key"),
        ({"key": ("x" * 60_000, ["y" * 60_000])}, "$.key"),
        ({"run_id": None}, "$.run_id"),
        ({"key": {"a": 1}}, "$.key"),
        ({"key": ("a", {"b": 1})}, "$.key"),
        ({"key": ToPickle(1)}, "$.key"),
    ],
)
def test_an_invalid_field_affects_only_its_message(change: dict[str, Any], path: str) -> None:
    first, invalid, last = batch(FINISHED, {**FINISHED, **change}, {**FINISHED, "key": "z"})
    assert first.key == ("x", 1) and last.key == "z"
    assert type(invalid) is InvalidMessage
    assert (invalid.op, invalid.path, invalid.cls) == ("task-finished", path, TaskFinished)
    assert invalid.raw["typename"] == "int"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"nbytes": "many"}, {"nbytes": None}),
        ({"nbytes": -1}, {"nbytes": None}),
        ({"nbytes": 2**60}, {"nbytes": None}),
        ({"nbytes": math.nan}, {"nbytes": None}),
        ({"startstops": [{"action": 5}]}, {"startstops": []}),
        ({"startstops": [{"action": "compute"}]}, {"startstops": []}),
        (
            {"startstops": [{"action": "compute", "start": 1.0, "stop": math.inf}]},
            {"startstops": []},
        ),
        ({"startstops": [{"action": "compute", "start": math.nan, "stop": 1}]}, {"startstops": []}),
        ({"metadata": 5, "thread": "main"}, {"metadata": None, "thread": None}),
        ({"typename": "x" * 10_000}, {"typename": None}),
    ],
)
@pytest.mark.parametrize("codec", [Codec(), Codec(Agreement(encoding="in-place"))])
def test_invalid_field_of_a_finished_task_is_dropped(
    change: dict[str, Any], expected: dict[str, Any], codec: Codec
) -> None:
    """Without the message, the task would stay in processing forever."""
    (valid,) = codec.decode_batch(codec.encode([FINISHED]), "worker_to_scheduler")
    frames = codec.encode([FINISHED, {**FINISHED, **change}])
    first, message = codec.decode_batch(frames, "worker_to_scheduler")
    assert first == valid
    assert message == msgspec.structs.replace(valid, **expected)


def test_missing_fields_are_invalid() -> None:
    messages = batch(FINISHED, {"op": "task-finished"}, {"op": "release-worker-data", "key": 1})
    assert type(messages[1]) is InvalidMessage and "key" in messages[1].error
    assert messages[2].key == 1


def test_unknown_ops_and_no_ops() -> None:
    messages = batch(
        FINISHED,
        {"op": "plugin-op", "x": [1, {"y"}]},
        {"x": 1},
        "OK",
        {"op": 5},
        {"op": "keep-alive"},
    )
    assert messages[1] == UnknownMessage("plugin-op", {"op": "plugin-op", "x": (1, {"y"})})
    assert messages[2] == UnknownMessage("", {"x": 1})
    assert type(messages[3]) is InvalidMessage and messages[3].raw == {"message": "OK"}
    assert type(messages[4]) is UnknownMessage
    assert messages[5] == KeepAlive()


def test_single_message_is_a_batch_of_one() -> None:
    assert Codec().decode_batch(stock_frames({"op": "keep-alive"}), UP) == [KeepAlive()]


def test_fields_of_later_releases_are_ignored() -> None:
    assert batch({**FINISHED, "added": {"in": 2027}}) == batch(FINISHED)


@pytest.mark.parametrize("index", [0, -1, 7, 2**40, "x", True, None, 1.0])
def test_placeholder_without_frame(index: Any) -> None:
    erred = {"op": "task-erred", "key": "x", "exception": {"__Serialized__": index}}
    for nested in (erred, {"op": "log-event", "topic": "t", "msg": {"a": [erred["exception"]]}}):
        frames = [msgpack.packb([nested, {"op": "keep-alive"}]), b"\x81\xaenum-sub-frames\x00"]
        invalid, good = Codec().decode_batch(frames, UP)
        assert type(invalid) is InvalidMessage and "placeholder" in invalid.error
        assert good == KeepAlive()


@pytest.mark.parametrize("header", [b"", b"\x80", b"\xc1", b"\x81\xaenum-sub-frames\x05", b"\x90"])
def test_a_header_with_a_wrong_count(header: bytes) -> None:
    frames = [msgpack.packb([{"op": "task-erred", "key": 1, "exception": {"__Pickled__": 1}}])]
    (invalid,) = Codec().decode_batch([*frames, header, b""], UP)
    assert type(invalid) is InvalidMessage


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x92\x80", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x91" * 10**5]
)  # fmt: skip
def test_no_msgpack(frame: bytes) -> None:
    for read in (
        Codec().decode_value,
        lambda f: decode_rpc(Codec(), f),
        lambda f: Codec().decode_batch(f, UP),
    ):
        with pytest.raises(RemoteProtocolError):
            read([frame])
        with pytest.raises(RemoteProtocolError):
            read([])


def test_invalid_text_affects_only_its_message() -> None:
    bad = b"\x82\xa2op\xaalog-event\x00"
    bad = b"\x82\xa2op\xa9log-event\xa5topic\xa2\xff\xff"
    frame = b"\x92" + bad + msgpack.packb({"op": "keep-alive"})
    invalid, good = Codec().decode_batch([frame], UP)
    assert (invalid.op, good) == ("log-event", KeepAlive())


# ------------------------------------------------------------------ encoding


def test_stock_reads_what_we_write() -> None:
    compute = ComputeTask(
        **{"key": ("x", 1), "run_id": 3, "priority": (0, 1, 2.5), "stimulus_id": "s"},
        **{"who_has": {("d", 0): ("tcp://a:1",)}, "nbytes": {("d", 0): 28}},
        run_spec=pickled_payload(b"\x80\x05K\x07."),
        annotations={"span": {"ids": ("a",)}, "workers": {"w"}},
    )
    (read,) = stock_reads(Codec().encode([compute]))
    assert read == {
        **{"op": "compute-task", "key": ("x", 1), "run_id": 3, "priority": (0, 1, 2.5)},
        **{"stimulus_id": "s", "who_has": {("d", 0): ("tcp://a:1",)}, "nbytes": {("d", 0): 28}},
        **{"run_spec": 7, "resource_restrictions": None, "actor": False, "span_id": None},
        "annotations": {"span": {"ids": ("a",)}, "workers": {"w"}},
    }


def test_fields_that_stock_omits_are_omitted() -> None:
    messages = [KeyInMemory(key="x"), StreamStart(), TaskErredReport(key="y")]
    assert stock_reads(Codec().encode(messages)) == (
        {"op": "key-in-memory", "key": "x"},
        {"op": "stream-start"},
        {"op": "task-erred", "key": "y"},
    )


def test_keys_may_be_appended_until_it_is_encoded() -> None:
    message = FreeKeys(keys=["a"], stimulus_id="s")
    message.keys.append(("b", 1))
    assert stock_reads(Codec().encode([message]))[0]["keys"] == ("a", ("b", 1))


def test_sets_in_untyped_fields_stay_sets() -> None:
    event = Event(topic="t", event=(1.5, {"who": {"a", "b"}, "deep": [{frozenset((1,)): {2}}]}))
    (read,) = stock_reads(Codec().encode([KeyInMemory(key=1), event]))[1:]
    assert read["event"] == (1.5, {"who": {"a", "b"}, "deep": ({(1,): {2}},)})


def test_sets_in_one_batch_with_shared_values() -> None:
    """Values that messages share are checked once, empty ones and arrays, too."""
    shared, with_set = {"a": [1]}, {"b": {1}}
    events: list[Any] = [shared, shared, with_set, set(), with_set, shared, {"n": {}}]
    frames = Codec().encode([Event(topic="t", event=event) for event in events])
    assert [message["event"] for message in loads(frames)] == [
        {"a": (1,)}, {"a": (1,)}, {"b": {1}}, set(), {"b": {1}}, {"a": (1,)}, {"n": {}},
    ]  # fmt: skip


def test_values() -> None:
    value = {
        "status": "OK",
        "data": {("x", 1): serialized_payload({"serializer": "x"}, [b"1", b""])},
    }
    frames = Codec().encode(value)
    assert Codec().decode_value(frames) == value
    read = stock_reads(frames, deserialize=False)["data"]["x", 1]
    assert type(read) is Serialized
    assert list(map(bytes, read.frames)) == [b"1", b""]
    for plain in (None, "OK", 5, [1, [2]], {"a": {1, 2}}, b"pong", np.float64(1.5), np.int64(3)):
        assert stock_reads(Codec().encode(plain)) == stock_reads(stock_frames(plain))


def test_messages_of_plugins_go_with_ours() -> None:
    batch = [KeepAlive(), {"op": "mine", "x": {1}, "p": pickled_payload(b"\x80\x05K\x07.")}]
    assert stock_reads(Codec().encode(batch)) == (
        {"op": "keep-alive"},
        {"op": "mine", "x": {1}, "p": 7},
    )


def test_values_that_cannot_be_encoded() -> None:
    for value in (object(), {"a": [object()]}, 2**70, lambda: 1):
        with pytest.raises(LocalProtocolError):
            Codec().encode(value)
        with pytest.raises(LocalProtocolError):
            Codec().encode([LogEvent(topic="t", msg=value)])
    closing = Codec(serialize_value=lambda value: pickled_payload(b"\x80\x05K\x07."))
    assert stock_reads(closing.encode({"a": [object()]})) == {"a": (7,)}
    assert stock_reads(closing.encode([LogEvent(topic="t", msg=object())]))[0]["msg"] == 7


def test_typed_replies() -> None:
    class Reply(msgspec.Struct):
        status: str
        data: dict[Any, Payload]

    frames = stock_frames({"status": "OK", "data": {"x": to_serialize(1)}})
    assert Codec().decode_value(frames, Reply).status == "OK"
    with pytest.raises(RemoteProtocolError):
        Codec().decode_value(stock_frames({"status": 5}), Reply)


# ------------------------------------------------------------------ forwarding


def relayed(message: Any) -> Any:
    """A stock worker's ``task-erred``, decoded and forwarded, is read by a stock client."""
    frames = dumps(message, context={"compression": "zlib"}, frame_split_size=1000)
    (received,) = Codec().decode_batch([bytes(f) for f in frames], UP)
    assert type(received) is TaskErred and received.exception is not None
    report = TaskErredReport(key="y", exception=received.exception)
    again = Codec().encode([KeyInMemory(key="z", type=b"t"), report, report])
    for index in (1, 1 + len(received.exception.frames) + 1):
        assert again[index] == frames[1]
        assert list(again[index + 1 : index + 1 + len(received.exception.frames)]) == frames[2:]
    return stock_reads(again)[1]["exception"]


def test_serialized_values_are_forwarded_unchanged() -> None:
    """Compressed, in shards, with out-of-band buffers, with frames of no length."""
    large = np.zeros(20_000, dtype="u1")
    values = [b"", b"x", large, large[:0], {"a": large, "b": [large, "c"]}, 1j, ("x" * 50_000,)]
    for value in values:
        erred = {"op": "task-erred", "key": "x", "exception": to_serialize(value)}
        assert repr(relayed([erred])) == repr(value)


def test_pickled_values_with_buffers_pass_through() -> None:
    arrays = [np.arange(50_000), np.zeros(0)]
    compute = {"op": "compute-task", "key": "x", "run_id": 1, "priority": [0], "stimulus_id": "s"}
    compute |= {"who_has": {}, "nbytes": {}, "run_spec": ToPickle(arrays)}
    frames = [bytes(f) for f in dumps([compute], context={"compression": "zlib"})]
    (message,) = Codec().decode_batch(frames, "scheduler_to_worker")
    assert len(message.run_spec.frames) == 2
    again = Codec().encode([message])
    assert again[1:] == frames[1:]
    read = stock_reads(again)[0]["run_spec"]
    assert (read[0] == arrays[0]).all() and read[1].size == 0
    pickled = stock_reads(Codec().encode([message]), deserialize=False)  # unpickled in any case
    assert not isinstance(pickled[0]["run_spec"], Pickled)


def test_graphs_arrive_with_all_serialized_values() -> None:
    graph = {
        "op": "update-graph",
        "expr_ser": to_serialize({"x": 1}),
        "keys": {"x"},
        "actors": None,
    }
    graph |= {
        "code": ToPickle(("a",)),
        "annotations": ToPickle({}),
        "internal_priority": {("x", 0): 1},
    }
    (message,) = batch(graph, direction="client_to_scheduler")
    assert type(message) is UpdateGraph
    assert message.code.kind == message.annotations.kind == "pickled"
    assert message.internal_priority == {("x", 0): 1}


def test_other_messages() -> None:
    assert batch({"op": "steal-response", "key": ("a", 1), "state": None, "stimulus_id": "s"}) == [
        StealResponse(key=("a", 1), state=None, stimulus_id="s")
    ]
    release = {"op": "client-releases-keys", "keys": [("a", 1)], "client": "c"}
    assert batch(release, direction="client_to_scheduler") == [
        ClientReleasesKeys(keys=[("a", 1)], client="c")
    ]


@pytest.mark.parametrize("codec", (Codec(), Codec(Agreement(encoding="in-place"))))
def test_keys_of_tasks_in_a_reply_are_not_interned(codec: Codec) -> None:
    """The interpreter's table of interned strings would grow with them."""
    data = {f"not-interned-{n}": (n, {"inner": [n]}) for n in range(3)}
    value = codec.decode_value([msgpack.packb({"status": "OK", "data": data})])
    assert value["data"] == {key: (n, {"inner": (n,)}) for key, (n, _) in data.items()}
    for key in value["data"]:
        again = "".join(list(key))
        assert sys.intern(again) is again
