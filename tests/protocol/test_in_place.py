"""The in-place encoding: its format, when it is used, and that it preserves every value.

Round trips of all messages in both encodings are in ``test_roundtrip.py``.
"""

from __future__ import annotations

import asyncio
import pickle
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest
from distributed.comm import connect
from distributed.protocol import dumps
from distributed.protocol.compression import compressions
from distributed.protocol.serialize import to_serialize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paceline.protocol.codec import Codec
from paceline.protocol.compression import MODULES
from paceline.protocol.connection import Batch, Connection, HandshakeDone, RequestReceived, Value
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.handshake import Agreement, local_offer, negotiate
from paceline.protocol.message_fields import field_places
from paceline.protocol.messages import (
    ComputeTask,
    GatherReply,
    Identity,
    TaskErred,
    TaskFinished,
    UpdateGraph,
)
from paceline.protocol.payload import (
    Payload,
    payload_header,
    payload_pickle,
    pickled_payload,
    serialized_payload,
)

OFFER = local_offer(in_place=True)

frames = st.lists(st.binary(max_size=20), max_size=4)
payloads = st.one_of(
    st.builds(pickled_payload, st.binary(max_size=40), frames),
    st.builds(
        lambda name, parts: serialized_payload({"serializer": name}, parts),
        st.text(max_size=5),
        frames,
    ),
)
#: payloads at any depth of lists and maps
nested = st.recursive(
    payloads,
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(
            st.text("abc", max_size=3) | st.tuples(st.integers(0, 9)), inner, max_size=4
        )
    ),
    max_leaves=20,
)


def connected(offers: tuple[Any, Any], kind: Any = None) -> tuple[Connection, Connection]:
    """Both ends of a connection in memory, after their handshakes."""
    listener, connector = Connection("listener", offers[0]), Connection("connector", offers[1])
    hello, answer = listener.start(), connector.start()
    connector.receive_frames(hello)
    listener.receive_frames(answer)
    if kind is not None:
        listener.become_stream(kind)
        connector.become_stream(kind)
    return listener, connector


def test_format() -> None:
    one, two = pickled_payload(b"p", [b"x", b""]), serialized_payload({"serializer": "s"}, [b"y"])
    empty = pickled_payload(b"e")
    encoded = Codec(Agreement(encoding="in-place")).encode({"a": [one, empty], "b": {"c": two}})
    assert encoded[1:] == [b"x", b"", b"y"]
    assert msgpack.unpackb(encoded[0]) == {
        "a": [{"__Pickled__": [one.header, 1, 2]}, {"__Pickled__": [empty.header, 0, 0]}],
        "b": {"c": {"__Serialized__": [two.header, 3, 1]}},
    }
    stock = Codec().encode({"a": [one, empty], "b": {"c": two}})
    assert len(stock) == len(encoded) + 3, "a frame for each header"


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(nested)
def test_values_at_any_depth_are_equal_in_both(value: Any) -> None:
    for codec in (Codec(), Codec(Agreement(encoding="in-place"))):
        (received,) = FrameReader().feed(b"".join(pack_frames(codec.encode(value))))
        assert codec.decode_value(received) == value


@given(
    st.lists(st.binary(max_size=30), max_size=5),
    st.booleans(),
    st.integers(0, 3),
)
def test_typed_fields(parts: list[bytes], in_a_list: bool, depth: int) -> None:
    payload: Any = pickled_payload(b"spec", parts)
    annotations: Any = payload
    for _ in range(depth):
        annotations = (annotations,) if in_a_list else {"deeper": annotations}
    message = ComputeTask(
        key=("x", 1), run_id=1, priority=(1,), stimulus_id="s", who_has={}, nbytes={},
        run_spec=payload, annotations=annotations,
    )  # fmt: skip
    again = TaskErred(key="y", exception=payload, traceback=payload)
    for codec in (Codec(), Codec(Agreement(encoding="in-place"))):
        assert codec.decode_batch(codec.encode([message]), "scheduler_to_worker") == [message]
        assert codec.decode_batch(codec.encode([again, again]), "worker_to_scheduler") == [
            again,
            again,
        ]


@pytest.mark.parametrize("name", [name for name in MODULES if name in compressions])
@settings(deadline=None, max_examples=20)
@given(
    sizes=st.lists(st.integers(0, 120_000), min_size=1, max_size=3), shard=st.integers(5000, 60_000)
)
def test_compressed_and_sharded_values(name: str, sizes: list[int], shard: int) -> None:
    """Payloads sharded and compressed by stock are forwarded unchanged and can be deserialized."""
    arrays = [np.zeros(size, "u1") for size in sizes]
    sent = dumps(
        {"v": to_serialize(SimpleNamespace(arrays=arrays))},
        context={"compression": name},
        frame_split_size=shard,
        serializers=["pickle"],
    )
    value = Codec().decode_value([bytes(frame) for frame in sent])
    header = payload_header(value["v"])
    if max(sizes) > 3 * shard:
        assert max(header["split-num-sub-frames"]) > 1
    codec = Codec(Agreement(encoding="in-place"))
    again = codec.decode_value(codec.encode({"deep": [value]}))["deep"][0]
    assert again == value
    pickled, buffers = payload_pickle(again["v"])
    opened_arrays = pickle.loads(pickled, buffers=buffers).arrays
    for array, opened in zip(arrays, opened_arrays, strict=True):
        assert (array == opened).all()


def test_in_place_is_used_if_both_peers_offer_it() -> None:
    task = TaskErred(key="x", exception=pickled_payload(b"p", [b"1"]))
    for offers, encoding in (
        ((OFFER, OFFER), "in-place"),
        ((OFFER, None), "stock"),
        ((None, OFFER), "stock"),
        ((None, None), "stock"),
    ):
        listener, connector = connected(offers, "worker")
        assert listener.agreement is not None and listener.agreement.encoding == encoding
        assert connector.codec.agreement.encoding == listener.codec.agreement.encoding
        sent = connector.send([task])
        assert len(sent) == (2 if encoding == "in-place" else 3)
        assert listener.receive_frames(sent) == [Batch([task])]


def test_requests_and_replies() -> None:
    listener, connector = connected((OFFER, OFFER))
    (event,) = listener.receive_frames(connector.send(Identity()))
    assert event == RequestReceived(Identity(), True, False)
    data = {("x", 0): pickled_payload(b"v", [b"buffer"])}
    (reply,) = connector.receive_frames(listener.send({"status": "OK", "data": data}))
    assert isinstance(reply, Value) and reply.value == {"status": "OK", "data": data}
    typed = connector.codec.decode_value(
        listener.codec.encode(GatherReply(status="OK", data=data)), GatherReply
    )
    assert typed == GatherReply(status="OK", data=data)


@pytest.mark.parametrize("sent", [None, 1, "in-place", {}, ["other"], [1]])
def test_invalid_offers_select_the_stock_encoding(sent: Any) -> None:
    agreement = negotiate(OFFER, {**local_offer(), "encodings": sent})
    assert agreement.encoding == "stock"


async def test_a_stock_peer_ignores_the_offer() -> None:
    """A stock peer accepts the handshake that offers both, and the stock encoding is used with it."""
    agreed: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, frame_reader = Connection("listener", OFFER), FrameReader()
        writer.write(b"".join(pack_frames(connection.start())))
        while data := await reader.read(100_000):
            for received in frame_reader.feed(data):
                for event in connection.receive_frames(received):
                    if type(event) is HandshakeDone:
                        agreed.append(event.agreement.encoding)
                    elif type(event) is Value:
                        writer.write(
                            b"".join(map(bytes, pack_frames(connection.send(event.value))))
                        )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    comm = await connect(f"tcp://{host}:{port}")
    await comm.write({"x": to_serialize(np.arange(5))})
    answer = await asyncio.wait_for(comm.read(), 20)
    assert list(answer["x"]) == [0, 1, 2, 3, 4]
    assert agreed == ["stock"]
    await comm.close()
    server.close()


HEADER = pickled_payload(b"p").header
HEADER_OF_ONE = pickled_payload(b"p", [b""]).header


@pytest.mark.parametrize(
    "placeholder",
    [
        1, [], [HEADER], [HEADER, 0, 0, 0], [1, 0, 0], [HEADER, "0", 0], [HEADER, 0, None], [HEADER, 1, 1],
        [HEADER_OF_ONE, 0, 1], [HEADER_OF_ONE, -1, 1], [HEADER_OF_ONE, 3, 1], [HEADER_OF_ONE, 1, 0],
        [b"\xc1", 0, 0], [b"", 0, 0], {"header": HEADER},
    ],
)  # fmt: skip
def test_broken_placeholders(placeholder: Any) -> None:
    codec = Codec(Agreement(encoding="in-place"))
    sent = [msgpack.packb({"x": {"__Pickled__": placeholder}}), b"1", b"2"]
    with pytest.raises(RemoteProtocolError):
        codec.decode_value(sent)
    batch = [{"op": "task-finished", "key": "a"}, {"op": "task-erred", "key": "b", "exception": {"__Pickled__": placeholder}}]  # fmt: skip
    good, invalid = codec.decode_batch([msgpack.packb(batch), b"1", b"2"], "worker_to_scheduler")
    assert good == TaskFinished(key="a")
    assert invalid.op == "task-erred", "one invalid message affects no other"


def test_each_encoding_refuses_the_other() -> None:
    value = {"x": pickled_payload(b"p", [b"1"])}
    with pytest.raises(RemoteProtocolError):
        Codec().decode_value(Codec(Agreement(encoding="in-place")).encode(value))
    with pytest.raises(RemoteProtocolError):
        Codec(Agreement(encoding="in-place")).decode_value(Codec().encode(value))


def test_attributes_are_inline_or_offloaded() -> None:
    places = field_places(ComputeTask)
    assert places["run_spec"] == "offloaded"
    assert places["run_id"] == "inline"
    assert places["who_has"] == "inline"
    assert places["annotations"] == "either"
    assert field_places(UpdateGraph)["expr_ser"] == "offloaded"
    assert set(field_places(GatherReply).values()) == {"inline", "either"}


def test_payloads_are_forwarded_verbatim() -> None:
    """A header that is longer than necessary is forwarded unchanged."""
    payload = Payload("serialized", b"\x81\xd9\x0enum-sub-frames\x01", (b"frame",))
    codec = Codec(Agreement(encoding="in-place"))
    assert codec.decode_value(codec.encode([payload])) == (payload,)
