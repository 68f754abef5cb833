"""Frames to typed messages and back.

A stream's batch is decoded by one call to msgspec, into the classes of its direction; what msgspec cannot be told (keys are
hashable at any depth, closed values are ``Payload`` objects, arrays in untyped values are tuples) is made right
afterwards, message by message, as cheaply as possible. A batch of which that call fails is read again, one message at a time
and leniently, so that one odd message costs only itself.

Must not know: sockets, phases, what messages mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, Union

import msgspec
from msgspec.structs import force_setattr

from .catalogue import STREAM_DIRECTIONS, TABLES, Direction, Op
from .compression import Buffer
from .errors import LocalProtocolError, RemoteProtocolError
from .framing import Frames
from .handshake import Agreement
from .keys import normalize_key
from .messages.base import Message, OddMessage, Request, UnknownMessage
from .payload import Payload
from .values import (
    READ_ERRORS,
    SET_HOLDERS,
    ScalarReader,
    ValueCloser,
    ValueReader,
    ValueWriter,
    has_set,
    payload_at,
    struct_to_dict,
    without_sets,
)

__all__ = ["Codec", "OddMessage", "Received", "UnknownMessage"]

T = TypeVar("T")
#: Of more keys than this, all are looked at together.
MANY_KEYS = 32
#: What reading a message may give.
Received = Message | UnknownMessage | OddMessage


class _Placeholder(Payload):
    """Stands for a payload between msgspec's decoding and the step after it.

    Attributes:
        index: of its header frame.
    """

    __slots__ = ("index",)
    index: Any


def _open_placeholder(kind: type, value: Any) -> Any:
    """msgspec's ``dec_hook``: it cannot see the frames, so that decoders can be shared by all connections."""
    if kind is not Payload:
        raise TypeError(f"unexpected type {kind!r}")
    if type(value) is dict and len(value) == 1:
        ((name, index),) = value.items()
        if name == "__Serialized__" or name == "__Pickled__":
            placeholder = _Placeholder("serialized" if name == "__Serialized__" else "pickled", b"")
            placeholder.index = index
            return placeholder
    raise ValueError("expected a closed value")


def _keep_payload(kind: type, value: Any) -> Any:
    """``dec_hook`` for values whose placeholders have been opened already."""
    if kind is Payload and isinstance(value, Payload):
        return value
    raise ValueError("expected a closed value")


class _Plan:
    """What is left to do for a message of a class after msgspec has decoded it.

    Attributes:
        key_field: name of the field that holds a key, or None.
        untyped_fields, keys_fields: names, as in the class.
        payload_fields: names of fields that hold a ``Payload`` or None.
        is_heavy: there are fields of the last two kinds.
    """

    __slots__ = ("is_heavy", "key_field", "keys_fields", "payload_fields", "untyped_fields")

    def __init__(self, cls: type[Message]) -> None:
        if len(cls.KEY_FIELDS) > 1:
            raise ValueError(f"{cls.__name__} has more than one key")
        self.key_field = cls.KEY_FIELDS[0] if cls.KEY_FIELDS else None
        self.untyped_fields = cls.UNTYPED_FIELDS
        self.keys_fields = cls.KEYS_FIELDS
        self.payload_fields = tuple(
            field.name
            for field in msgspec.structs.fields(cls)
            if field.type is Payload or field.type == Payload | None
        )
        self.is_heavy = bool(self.keys_fields or self.payload_fields)


def _batch_decoder(table: Mapping[str, Op]) -> msgspec.msgpack.Decoder[list[Any]]:
    classes = tuple(op.cls for op in table.values())
    batch: Any = list.__class_getitem__(Union[classes])  # noqa: UP007 - made at run time
    return msgspec.msgpack.Decoder(batch, dec_hook=_open_placeholder)


_DECODERS: Mapping[Direction, msgspec.msgpack.Decoder[list[Any]]] = MappingProxyType(
    {direction: _batch_decoder(TABLES[direction]) for direction in STREAM_DIRECTIONS}
)
_PLANS: Mapping[type, _Plan] = MappingProxyType(
    {op.cls: _Plan(op.cls) for direction in STREAM_DIRECTIONS for op in TABLES[direction].values()}
)
_FIELDS: Mapping[type, frozenset[str]] = MappingProxyType(
    {
        op.cls: frozenset(field.encode_name for field in msgspec.structs.fields(op.cls))
        for table in TABLES.values()
        for op in table.values()
    }
)
#: Classes with fields whose values msgspec could write otherwise than stock reads them.
_UNTYPED: Mapping[type, tuple[str, ...]] = MappingProxyType(
    {
        op.cls: op.cls.UNTYPED_FIELDS
        for t in TABLES.values()
        for op in t.values()
        if op.cls.UNTYPED_FIELDS
    }
)
_RAW_LIST = msgspec.msgpack.Decoder(list[msgspec.Raw])


class _OpOnly(msgspec.Struct, gc=False):
    op: str = ""


_OP_ONLY = msgspec.msgpack.Decoder(_OpOnly)


class Codec:
    """Frames to messages and back, for one connection. It keeps nothing between messages.

    Args:
        agreement: what both sides can. What is sent is never compressed here, so nothing in it matters yet.
        read_scalar: reads a number that came pickled (stock sends ``np.int64`` so); given a ``Payload``, it returns the
            number, or the payload itself when it holds something else. Must not unpickle freely.
        close_value: closes values of replies that msgpack cannot say; None makes them a ``LocalProtocolError``.
    """

    __slots__ = ("_close_value", "_encoder", "_read_scalar", "_writer", "agreement")

    WRITER: ClassVar[type[ValueWriter]] = ValueWriter

    def __init__(
        self,
        agreement: Agreement | None = None,
        *,
        read_scalar: ScalarReader | None = None,
        close_value: ValueCloser | None = None,
    ) -> None:
        self.agreement = agreement or Agreement()
        self._read_scalar = read_scalar
        self._close_value = close_value
        self._writer = self.WRITER(close_value)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._writer.convert)

    # ------------------------------------------------------------------ reading

    def decode_batch(self, frames: Sequence[Buffer], direction: Direction) -> list[Any]:
        """The messages of one batch of a stream: of the direction's classes, ``UnknownMessage`` or ``OddMessage``.

        Raises:
            RemoteProtocolError: frame 0 is no msgpack.
        """
        if not frames:
            raise RemoteProtocolError("a message without frames")
        try:
            messages = _DECODERS[direction].decode(frames[0])
            plans = _PLANS
            for message in messages:
                plan = plans[type(message)]
                name = plan.key_field
                if name is not None:
                    key = getattr(message, name)
                    if type(key) in _NO_KEYS:
                        force_setattr(message, name, _plain_key(key))
                for name in plan.untyped_fields:
                    value = getattr(message, name)
                    if type(value) in _NO_KEYS and (value or type(value) is list):
                        reader = ValueReader(frames, self._read_scalar)
                        force_setattr(message, name, reader.finish(value))
                if plan.is_heavy:
                    _open_fields(message, plan, frames)
            return messages
        except (*READ_ERRORS, RemoteProtocolError):
            return self._decode_leniently(frames, direction)

    def decode_value(self, frames: Sequence[Buffer], type: type[T] | None = None) -> Any:
        """A message that is no batch, as it stands: tuples for arrays, ``Payload`` objects in place.

        Args:
            type: of what it should be, to have it checked.

        Raises:
            RemoteProtocolError: it cannot be read, or is not of that type.
        """
        if not frames:
            raise RemoteProtocolError("a message without frames")
        value = ValueReader(frames, self._read_scalar).read_message(frames[0])
        if type is None:
            return value
        try:
            return msgspec.convert(value, type, strict=False, dec_hook=_keep_payload)
        except READ_ERRORS as error:
            raise RemoteProtocolError(f"not what was expected: {error}") from error

    def decode_rpc(
        self, frames: Sequence[Buffer], direction: Direction = "scheduler_rpc"
    ) -> Received:
        """A request.

        Raises:
            RemoteProtocolError: it cannot be read, or is not a map with an op.
        """
        value = self.decode_value(frames)
        if not isinstance(value, dict) or not isinstance(value.get("op"), str):
            raise RemoteProtocolError("a request is a map with an op")
        return self.as_message(value, direction)

    def as_message(self, raw: dict[str, Any], direction: Direction) -> Received:
        """The typed message that an opened map is. Arguments that its class does not name make it odd."""
        op = raw.get("op")
        if not isinstance(op, str):
            return UnknownMessage("", raw)
        entry = TABLES[direction].get(op)
        if entry is None:
            return UnknownMessage(op, raw)
        cls = entry.cls
        fields = raw
        if direction not in STREAM_DIRECTIONS:
            extra = [name for name in raw if name not in _FIELDS[cls] and name != "op"]
            if extra:
                if cls.EXTRA_FIELD is None:
                    name = extra[0]
                    return OddMessage(
                        op, f"$.{name}", f"got an unexpected keyword argument {name!r}", raw, cls
                    )
                fields = {name: x for name, x in raw.items() if name not in extra}
                fields[cls.EXTRA_FIELD] = {name: raw[name] for name in extra}
        try:
            message = msgspec.convert(fields, cls, strict=False, dec_hook=_keep_payload)
        except READ_ERRORS as error:
            path, text = _split_error(error)
            return OddMessage(op, path, text, raw, cls)
        return self._with_keys(message, raw)

    def _decode_leniently(self, frames: Sequence[Buffer], direction: Direction) -> list[Any]:
        """A batch, message by message."""
        try:
            raws: list[Any] = _RAW_LIST.decode(frames[0])
            in_a_list = True
        except READ_ERRORS:
            raws = [frames[0]]  # one message that is not in a list, or no msgpack at all
            in_a_list = False
        messages: list[Any] = []
        for raw in raws:
            try:
                value = ValueReader(frames, self._read_scalar).read(raw)
            except RemoteProtocolError as error:
                if not in_a_list:
                    raise
                op = _op_of(raw)
                messages.append(OddMessage(op, "$", str(error), {"op": op}))
                continue
            if isinstance(value, dict):
                messages.append(self.as_message(value, direction))
            else:
                messages.append(OddMessage("", "$", "expected a map", {"message": value}))
        return messages

    def _with_keys(self, message: Message, raw: dict[str, Any]) -> Received:
        """A leniently read message whose lists of keys are lists, and whose keys are keys."""
        for name in message.KEYS_FIELDS:
            keys = getattr(message, name)
            if type(keys) is not list:
                if not isinstance(keys, set | tuple):
                    return OddMessage(
                        message.op(), f"$.{name}", "expected keys", raw, type(message)
                    )
                keys = sorted(keys, key=repr) if isinstance(keys, set) else list(keys)
                force_setattr(message, name, keys)
        for name in message.KEY_FIELDS:
            try:
                hash(getattr(message, name))
                bad = isinstance(getattr(message, name), Payload)
            except TypeError:
                bad = True
            if bad:
                return OddMessage(message.op(), f"$.{name}", "expected a key", raw, type(message))
        return message

    # ------------------------------------------------------------------ writing

    def encode(self, value: Any) -> Frames:
        """One message on the wire: a list of messages is a batch; a message is a map; anything else is itself.

        Raises:
            LocalProtocolError: it cannot be said.
        """
        if type(value) is list and value:
            kinds = set(map(type, value))
            if all(issubclass(kind, Message) for kind in kinds):
                return self.encode_batch(value, kinds)
        elif isinstance(value, Message) and not isinstance(value, Request):
            (value,) = _with_sets_said([value])
            return self._pack(value)
        writer = self.WRITER(self._close_value)
        writer.frames[0] = writer.pack(_messages_to_dicts(value))
        return writer.frames

    def encode_batch(self, messages: list[Any], kinds: Set[type]) -> Frames:
        """A batch.

        Args:
            messages: ``Message`` objects.
            kinds: their classes.

        Raises:
            LocalProtocolError: it cannot be said.
        """
        if not kinds.isdisjoint(_UNTYPED):
            messages = _with_sets_said(messages)
        return self._pack(messages)

    def _pack(self, value: Any) -> Frames:
        """Messages as msgpack, and the frames behind them."""
        writer = self._writer
        frames = writer.frames = [b""]
        try:
            frames[0] = self._encoder.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise LocalProtocolError(f"a message cannot be sent: {error}") from error
        finally:
            writer.frames = []  # those are the caller's
        return frames


#: Types that msgspec gives to what may have been a key, or a value with more to do in it.
_NO_KEYS = frozenset((list, dict))


def _plain_key(key: Any) -> Any:
    """The key that msgspec has decoded to a list.

    Raises:
        TypeError: it holds what is no key.
    """
    if type(key) is not list:
        raise TypeError("a map is no key")
    flat = tuple(key)
    try:
        hash(flat)
    except TypeError:  # there are lists in it
        flat = normalize_key(key)
        hash(flat)
    return flat


def _open_fields(message: Any, plan: _Plan, frames: Sequence[Buffer]) -> None:
    """Lists of keys, and closed values.

    Raises:
        RemoteProtocolError, TypeError, KeyError: something in it is odd.
    """
    for name in plan.keys_fields:
        keys = getattr(message, name)
        if type(keys) is not list:  # a set; its elements stay in the order of the wire
            keys = keys["as-list"]
            if type(keys) is not list:
                raise TypeError("expected keys")
            force_setattr(message, name, keys)
        if len(keys) > MANY_KEYS:
            keys[:] = _many_keys(keys)
            continue
        for position, key in enumerate(keys):
            if type(key) in _NO_KEYS:
                keys[position] = _plain_key(key)
    for name in plan.payload_fields:
        payload = getattr(message, name)
        if payload is not None:
            force_setattr(message, name, payload_at(payload.kind, payload.index, frames))


def _many_keys(keys: list[Any]) -> list[Any]:
    """The same at less cost for each."""
    plain = [tuple(key) if type(key) is list else key for key in keys]
    try:
        deque(map(hash, plain), maxlen=0)
    except TypeError:  # there are lists in some, or they are no keys
        return [_plain_key(key) if type(key) in _NO_KEYS else key for key in keys]
    return plain


def _op_of(raw: Buffer) -> str:
    """The op of a message that cannot be read otherwise; "" if that neither."""
    try:
        return _OP_ONLY.decode(raw).op
    except READ_ERRORS:
        return ""


def _split_error(error: Exception) -> tuple[str, str]:
    """Path and text of msgspec's "text - at `path`"."""
    text, found, path = str(error).rpartition(" - at `")
    if not found:
        return "$", str(error)
    return path.rstrip("`"), text


def _with_sets_said(messages: list[Any]) -> list[Any]:
    """The messages, with the sets in untyped fields as stock says them."""
    changed = None
    plain: Any = None
    for position, message in enumerate(messages):
        for name in _UNTYPED.get(type(message), ()):
            value = getattr(message, name)
            if type(value) not in SET_HOLDERS or value is plain:
                continue
            if not has_set(value):
                plain = value  # tasks annotated alike share their annotations
                continue
            if changed is None:
                changed = list(messages)
            changed[position] = msgspec.structs.replace(
                changed[position], **{name: without_sets(value)}
            )
    return messages if changed is None else changed


def _messages_to_dicts(value: Any) -> Any:
    """Requests, and messages among dicts of plugins, as the maps that they are."""
    if isinstance(value, list):
        return [_messages_to_dicts(x) if isinstance(x, Message) else x for x in value]
    if isinstance(value, Message):
        fields = struct_to_dict(value)
        if value.EXTRA_FIELD is not None:
            fields.update(fields.pop(value.EXTRA_FIELD))
        return fields
    return value
