"""Any message survives a round trip in both encodings, in pieces of any size; stock decodes the same."""

from __future__ import annotations

import types
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
import pytest
from distributed.protocol import loads
from distributed.protocol.serialize import Serialized
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paceline.protocol.catalogue import RPC_DIRECTIONS, STREAM_DIRECTIONS, TABLES
from paceline.protocol.codec import Codec
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.handshake import Agreement
from paceline.protocol.message_fields import MESSAGE_FIELDS
from paceline.protocol.messages import Message
from paceline.protocol.messages.base import Key
from paceline.protocol.payload import Payload, serialized_payload
from paceline.protocol.values import struct_to_dict

from tests.protocol.requests import decode_rpc

SMALL_INT = st.integers(-(2**63), 2**64 - 1)
TEXT = st.text(max_size=8)
FLOAT = st.floats(allow_nan=False)
ATOM = st.one_of(st.none(), st.booleans(), SMALL_INT, FLOAT, TEXT, st.binary(max_size=8))
KEY = st.recursive(
    st.one_of(TEXT, st.binary(max_size=8), SMALL_INT, FLOAT),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
PAYLOAD = st.builds(
    lambda name, frames: serialized_payload({"serializer": name}, frames),
    TEXT,
    st.lists(st.binary(max_size=70), max_size=3),
)
#: Values as the reader returns them: tuples for arrays.
VALUE = st.recursive(
    st.one_of(ATOM, PAYLOAD, st.sets(KEY, max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(
            st.one_of(TEXT.filter(lambda s: not s.startswith("__")), KEY), inner, max_size=3
        ),
    ),
    max_leaves=8,
)


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a field's type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return limited(args[0], args[1])
    if origin is Literal:
        return st.sampled_from(args)
    if is_typeddict(hint):
        return st.just({})
    if origin in (Union, types.UnionType):
        return st.one_of(*map(strategy, args))
    if origin is list:
        return st.lists(strategy(args[0]), max_size=3)
    if origin is tuple:
        return st.lists(strategy(args[0]), max_size=3).map(tuple)
    if origin is dict:
        keys = KEY if args[0] in (Any, Key) else strategy(args[0])
        return st.dictionaries(keys, strategy(args[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return structs(hint)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        **{
            int: SMALL_INT,
            float: FLOAT,
            str: TEXT,
            bool: st.booleans(),
            bytes: st.binary(max_size=8),
        },
        **{type(None): st.none(), Payload: PAYLOAD, Any: VALUE},
    }
    return simple[hint]


def limited(kind: Any, limits: Any) -> st.SearchStrategy[Any]:
    """Return values of `kind` within msgspec's `limits`."""
    if kind is str:
        return st.text(max_size=min(limits.max_length, 8))
    least = -(2**63) if limits.ge is None else limits.ge
    return (st.integers if kind is int else st.floats)(least, limits.le)


def structs(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls, include_extras=True)
    fields: dict[str, st.SearchStrategy[Any]] = {}
    known = MESSAGE_FIELDS.get(cls)
    key = known and known.key_field
    lists_of_keys = known.keys_fields if known else ()
    extra = getattr(cls, "EXTRA_FIELD", None)
    for name in cls.__struct_fields__:
        if name == key:
            fields[name] = KEY
        elif name in lists_of_keys:
            fields[name] = st.lists(KEY, max_size=3)
        elif name == extra:
            fields[name] = st.dictionaries(st.sampled_from(["x1", "x2"]), VALUE, max_size=2)
        else:
            fields[name] = strategy(hints[name])
    return st.builds(cls, **fields)


STREAM_MESSAGES = {
    direction: st.one_of(*(structs(op.cls) for op in TABLES[direction].values()))
    for direction in STREAM_DIRECTIONS
}
RELAXED = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
both_codecs = pytest.mark.parametrize(
    "codec", [Codec(), Codec(Agreement(encoding="in-place"))], ids=["stock", "in-place"]
)


def over_the_wire(frames: list[Any], step: int = 13) -> list[Any]:
    data = b"".join(pack_frames(frames))
    reader = FrameReader()
    (received,) = [m for i in range(0, len(data), step) for m in reader.feed(data[i : i + step])]
    assert received == frames
    return list(received)


@both_codecs
@pytest.mark.parametrize("direction", STREAM_DIRECTIONS)
def test_any_batch(direction: Any, codec: Codec) -> None:
    @RELAXED
    @given(st.lists(STREAM_MESSAGES[direction], max_size=5), st.integers(1, 50))
    def check(messages: list[Message], step: int) -> None:
        frames = codec.encode(messages)
        received = codec.decode_batch(over_the_wire(frames, step), direction)
        assert received == messages
        assert [type(m) for m in received] == [type(m) for m in messages]
        for message in received:
            name = MESSAGE_FIELDS[type(message)].key_field
            if name is not None:
                hash(getattr(message, name))
        assert codec.decode_batch(codec.encode(received), direction) == messages

    check()


@both_codecs
@pytest.mark.parametrize("direction", STREAM_DIRECTIONS)
def test_lenient_decoding_gives_the_same(direction: Any, codec: Codec) -> None:
    @RELAXED
    @given(st.lists(STREAM_MESSAGES[direction], max_size=5))
    def check(messages: list[Message]) -> None:
        unknown: dict[str, Any] = {"op": "of-a-plugin", "value": (1,)}
        received = codec.decode_batch(codec.encode([*messages, unknown]), direction)
        assert received[:-1] == messages
        assert received[-1].raw == unknown

    check()


@both_codecs
@pytest.mark.parametrize("direction", RPC_DIRECTIONS)
def test_any_request(direction: Any, codec: Codec) -> None:
    @RELAXED
    @given(st.one_of(*(structs(op.cls) for op in TABLES[direction].values())), st.integers(1, 50))
    def check(message: Message, step: int) -> None:
        received = decode_rpc(codec, over_the_wire(codec.encode(message), step), direction)
        assert received == message

    check()


@both_codecs
def test_any_value(codec: Codec) -> None:
    @RELAXED
    @given(VALUE)
    def check(value: Any) -> None:
        assert codec.decode_value(over_the_wire(codec.encode(value))) == value

    check()


@pytest.mark.parametrize("direction", STREAM_DIRECTIONS)
def test_stock_decodes_any_batch_as_we_do(direction: Any) -> None:
    @RELAXED
    @given(st.lists(STREAM_MESSAGES[direction], max_size=4))
    def check(messages: list[Message]) -> None:
        frames = Codec().encode(messages)
        read = loads(frames, deserialize=False)
        assert stock_pickle(read) == stock_pickle([struct_to_dict(m) for m in messages])

    check()


def stock_pickle(value: Any) -> Any:
    """Convert both readers' values to a comparable form."""
    if isinstance(value, Payload | Serialized):
        return [bytes(frame) for frame in value.frames]
    if isinstance(value, msgspec.Struct):
        return stock_pickle(struct_to_dict(value))
    if isinstance(value, dict):
        return {as_stock_key(k): stock_pickle(x) for k, x in value.items()}
    if isinstance(value, list | tuple):
        return [stock_pickle(x) for x in value]
    return value


def as_stock_key(key: Any) -> Any:
    return tuple(map(as_stock_key, key)) if isinstance(key, list | tuple) else key
