"""Encode and decode messages: frames to typed messages and back.

A batch of a stream is decoded by one call of msgspec into the classes of its direction. A second
step, per message, does what msgspec cannot: it makes keys hashable at any depth, and turns
placeholders into ``Payload`` objects and arrays in untyped values into tuples.

If msgspec rejects a batch, its messages are decoded again one by one, so that an invalid message
affects no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar, Union

import msgspec
from msgspec.structs import force_setattr
from paceline.protocol.messages.base import InvalidMessage, Message, Request, UnknownMessage

from .catalogue import STREAM_DIRECTIONS, TABLES, Direction, Op
from .compression import Buffer
from .errors import LocalProtocolError, RemoteProtocolError
from .framing import Frames, frame_nbytes
from .handshake import Agreement
from .keys import KEY_NBYTES_MAX, check_key, key_nbytes, normalize_key
from .limits import drop_invalid_members, member_of
from .message_fields import MESSAGE_FIELDS, MessageFields
from .messages import UpdateGraph
from .payload import FrameClaims, Payload
from .values import (
    PAYLOAD_KINDS,
    PAYLOAD_READERS,
    READ_ERRORS,
    SET_CONTAINERS,
    ScalarReader,
    ValueReader,
    ValueSerializer,
    ValueWriter,
    encode_sets,
    has_set,
    keep_payload,
    struct_to_dict,
)

__all__ = ["Codec", "InvalidMessage", "Received", "UnknownMessage"]

T = TypeVar("T")
#: Longer lists of keys are checked all at once.
MANY_KEYS: Final = 32
#: What decoding a message may return.
Received = Message | UnknownMessage | InvalidMessage


class _Placeholder(Payload):
    """A placeholder between msgspec's decoding and the second step, which finds its frames.

    Attributes:
        place: what the placeholder refers to; in the stock encoding, the index of a header frame.
    """

    __slots__ = ("place",)
    place: Any


def _decode_placeholder(kind: type, value: Any) -> Any:
    """Decode a placeholder (msgspec's ``dec_hook``).

    It does not see the frames, so that all connections can share the decoders.
    """
    if kind is not Payload:
        raise TypeError(f"unexpected type {kind!r}")
    if type(value) is dict and len(value) == 1:
        ((name, place),) = value.items()
        if name in PAYLOAD_KINDS:
            placeholder = _Placeholder(PAYLOAD_KINDS[name], b"")
            placeholder.place = place
            return placeholder
    raise ValueError("expected a serialized value")


def _batch_decoder(table: Mapping[str, Op]) -> msgspec.msgpack.Decoder[list[Any]]:
    classes = tuple(op.cls for op in table.values())
    batch: Any = list.__class_getitem__(Union[classes])  # noqa: UP007 - made at run time
    return msgspec.msgpack.Decoder(batch, dec_hook=_decode_placeholder)


_DECODERS: Final[Mapping[Direction, msgspec.msgpack.Decoder[list[Any]]]] = MappingProxyType(
    {direction: _batch_decoder(TABLES[direction]) for direction in STREAM_DIRECTIONS}
)
#: Classes with untyped fields, in which msgspec would not encode sets as stock does.
_UNTYPED: Final = {
    cls: fields.untyped_fields for cls, fields in MESSAGE_FIELDS.items() if fields.untyped_fields
}
#: Fields with a value that the scheduler stores for clients; numbers in it are kept as they were
#: sent.
USER_VALUES: Final = frozenset(("data", "value"))
RAW_LIST = msgspec.msgpack.Decoder(list[msgspec.Raw])


# a class statement would lose its options when mypyc compiles it
_OpOnly: Any = msgspec.defstruct("_OpOnly", [("op", str, "")], gc=False)
_OP_ONLY: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_OpOnly)


class Codec:
    """Encodes and decodes the messages of one connection. It keeps no state between messages.

    Args:
        agreement: result of the handshake. Nothing that is sent is compressed here.
        read_scalar: called with the ``Payload`` of a short pickle; returns the number in it (stock
            pickles ``np.int64``), or the payload itself if it holds something else. It must not
            unpickle arbitrary objects.
        serialize_value: serializes values in replies that msgpack cannot encode; if None, they
            raise ``LocalProtocolError``.
    """

    def __init__(
        self,
        agreement: Agreement | None = None,
        *,
        read_scalar: ScalarReader | None = None,
        serialize_value: ValueSerializer | None = None,
    ) -> None:
        self.agreement = agreement or Agreement()
        self._read_scalar = read_scalar
        self._serialize_value = serialize_value
        self._writer = self._new_writer()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._writer.convert)

    def _reader(self, frames: Sequence[Buffer], claims: FrameClaims | None = None) -> ValueReader:
        return ValueReader(frames, self.agreement.encoding, self._read_scalar, claims)

    def _new_writer(self) -> ValueWriter:
        return ValueWriter(self.agreement.encoding, self._serialize_value)

    # ------------------------------------------------------------------ reading

    def decode_batch(
        self, frames: Sequence[Buffer], direction: Direction, claims: FrameClaims | None = None
    ) -> list[Any]:
        """Return the messages of one batch of a stream.

        Each is of one of the direction's classes, an ``UnknownMessage`` or an ``InvalidMessage``.

        Args:
            frames: frames of the message.
            direction: table of the stream.
            claims: frames already claimed by other parts of the same message.

        Raises:
            RemoteProtocolError: frame 0 is not msgpack.
        """
        if not frames:
            raise RemoteProtocolError("a message without frames")
        if claims is None:
            claims = FrameClaims(len(frames))
        n_claims = len(claims)
        try:
            messages = _DECODERS[direction].decode(frames[0])
            if frame_nbytes(frames[0]) > KEY_NBYTES_MAX:
                check_lengths(messages)
            all_fields = MESSAGE_FIELDS
            for message in messages:
                fields = all_fields[type(message)]
                name = fields.key_field
                if name is not None:
                    key = getattr(message, name)
                    if type(key) in _CHECKED_KEYS and (key is not None or fields.needs_key):
                        force_setattr(message, name, _plain_key(key))
                for name in fields.untyped_fields:
                    value = getattr(message, name)
                    if type(value) in _CONTAINERS and (value or type(value) is list):
                        reader = self._reader(frames, claims)
                        force_setattr(message, name, reader.finish(value))
                if fields.is_heavy:
                    self._decode_fields(message, fields, frames, claims)
            return messages
        except (*READ_ERRORS, RemoteProtocolError):
            claims.undo(n_claims)
            return self._decode_leniently(frames, direction, claims)

    def decode_value(self, frames: Sequence[Buffer], type: type[T] | None = None) -> Any:
        """Return a message that is not a batch: arrays as tuples, placeholders as ``Payload``.

        Pickled numbers are read, except in ``USER_VALUES``.

        Args:
            frames: frames of the message.
            type: convert the value to this type.

        Raises:
            RemoteProtocolError: the message cannot be decoded, or is not of that type.
        """
        if not frames:
            raise RemoteProtocolError("a message without frames")
        reader = self._reader(frames)
        value = reader.read_message(frames[0])
        if reader.has_scalars and isinstance(value, dict) and not USER_VALUES.isdisjoint(value):
            as_sent = ValueReader(frames, self.agreement.encoding).read_message(frames[0])
            value.update({name: as_sent[name] for name in USER_VALUES.intersection(value)})
        if type is None:
            return value
        try:
            return msgspec.convert(value, type, strict=False, dec_hook=keep_payload)
        except READ_ERRORS as error:
            raise RemoteProtocolError(f"unexpected value: {error}") from error

    def as_message(self, raw: dict[Any, Any], direction: Direction) -> Received:
        """Return the typed message for `raw`, a decoded map.

        A request with an argument that its class does not declare is an ``InvalidMessage``.
        """
        op = raw.get("op")
        if not isinstance(op, str):
            return UnknownMessage("", raw)
        entry = TABLES[direction].get(op)
        if entry is None:
            return UnknownMessage(op, raw)
        cls = entry.cls
        fields = raw
        if direction not in STREAM_DIRECTIONS:
            extra = [name for name in raw if name not in MESSAGE_FIELDS[cls].names and name != "op"]
            if extra:
                if cls.EXTRA_FIELD is None:
                    name = extra[0]
                    return InvalidMessage(
                        op, f"$.{name}", f"got an unexpected keyword argument {name!r}", raw, cls
                    )
                fields = {name: x for name, x in raw.items() if name not in extra}
                fields[cls.EXTRA_FIELD] = {name: raw[name] for name in extra}
        lenient = cls.LENIENT_FIELDS
        while True:
            try:
                message = msgspec.convert(fields, cls, strict=False, dec_hook=keep_payload)
                break
            except READ_ERRORS as error:
                name = member_of(error)
                if name not in lenient or name not in fields:
                    path, text = _split_error(error)
                    return InvalidMessage(op, path, text, raw, cls)
                fields = {field: value for field, value in fields.items() if field != name}
        for name, known in cls.OPEN_MAPS.items():
            value = getattr(message, name)
            if value:
                drop_invalid_members(value, known)
        return self._with_keys(message, raw)

    def _decode_fields(
        self, message: Any, fields: MessageFields, frames: Sequence[Buffer], claims: FrameClaims
    ) -> None:
        """Finish the lists of keys and the serialized values of `message`.

        Raises:
            RemoteProtocolError, TypeError, KeyError: one of them is invalid.
        """
        for name in fields.keys_fields:
            keys = getattr(message, name)
            if type(keys) is not list:  # a set; its elements stay in the order of the wire
                keys = keys["as-list"]
                if type(keys) is not list:
                    raise TypeError("expected keys")
                force_setattr(message, name, keys)
            if len(keys) > MANY_KEYS:
                keys[:] = _plain_keys(keys)
                continue
            for position, key in enumerate(keys):
                if type(key) in _CHECKED_KEYS:
                    keys[position] = _plain_key(key)
        payload_of = PAYLOAD_READERS[self.agreement.encoding]
        for name in fields.payload_fields:
            payload = getattr(message, name)
            if payload is not None:
                force_setattr(
                    message, name, payload_of(payload.kind, payload.place, frames, claims)
                )

    def _decode_leniently(
        self, frames: Sequence[Buffer], direction: Direction, claims: FrameClaims
    ) -> list[Any]:
        """Decode a batch message by message."""
        try:
            raws: list[Any] = RAW_LIST.decode(frames[0])
            is_list = True
        except READ_ERRORS:
            raws = [frames[0]]  # one message that is not in a list, or not msgpack at all
            is_list = False
        messages: list[Any] = []
        for raw in raws:
            try:
                value = self._reader(frames, claims).read(raw)
            except RemoteProtocolError as error:
                if not is_list:
                    raise
                op = _op_of(raw)
                messages.append(InvalidMessage(op, "$", str(error), {"op": op}))
                continue
            if isinstance(value, dict):
                messages.append(self.as_message(value, direction))
            else:
                messages.append(InvalidMessage("", "$", "expected a map", {"message": value}))
        return messages

    def _with_keys(self, message: Message, raw: dict[Any, Any]) -> Received:
        """Convert the lists of keys of a leniently decoded message to lists, and check its keys."""
        for name in MESSAGE_FIELDS[type(message)].keys_fields:
            keys = getattr(message, name)
            if type(keys) is not list:
                if not isinstance(keys, set | tuple):
                    return InvalidMessage(
                        message.op(), f"$.{name}", "expected keys", raw, type(message)
                    )
                keys = sorted(keys, key=repr) if isinstance(keys, set) else list(keys)
                force_setattr(message, name, keys)
        for name, key in keys_in(message):
            try:
                check_key(key)
            except (TypeError, ValueError) as error:
                return InvalidMessage(message.op(), f"$.{name}", str(error), raw, type(message))
        return message

    # ------------------------------------------------------------------ writing

    def encode(self, value: Any) -> Frames:
        """Return the frames of one message.

        A list of messages is encoded as a batch, a message as a map, and any other value as it is.

        Raises:
            LocalProtocolError: `value` cannot be encoded.
        """
        if type(value) is list and value:
            if all(isinstance(message, Message) for message in value):
                return self.encode_batch(value)
        elif isinstance(value, Message) and not isinstance(value, Request):
            (value,) = _with_sets_encoded([value])
            return self._pack(value)
        writer = self._new_writer()
        writer.frames[0] = writer.pack(_messages_to_dicts(value))
        return writer.frames

    def encode_batch(self, messages: list[Any]) -> Frames:
        """Return the frames of a batch of ``Message`` objects.

        Raises:
            LocalProtocolError: a message cannot be encoded.
        """
        return self._pack(_with_sets_encoded(messages))

    def _pack(self, value: Any) -> Frames:
        """Return frame 0, the msgpack of `value`, and the frames of its payloads."""
        writer = self._writer
        frames = writer.frames = [b""]
        try:
            frames[0] = self._encoder.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise LocalProtocolError(f"a message cannot be sent: {error}") from error
        finally:
            writer.frames = []  # `frames` now belongs to the caller
        return frames


#: Types of decoded values that need the second step.
_CONTAINERS: Final = frozenset((list, dict))
#: Types of decoded keys that need the second step, or are not valid keys.
_CHECKED_KEYS: Final = frozenset((list, dict, float, type(None)))


def _plain_key(key: Any) -> Any:
    """Return the key that msgspec decoded to `key`, whose type is one of ``_CHECKED_KEYS``.

    Raises:
        TypeError, ValueError: it is not a valid key.
    """
    if type(key) is not list:
        check_key(key)
        return key
    flat = tuple(key)
    try:
        hash(flat)
    except TypeError:  # it contains lists
        flat = normalize_key(key)
        hash(flat)
    return flat


def keys_in(message: Message) -> Iterator[tuple[str, Any]]:
    """Yield (field, key) for the keys in `message` that the codec checks.

    The graph compiler checks those of ``UpdateGraph`` and reports an invalid key to the client.
    """
    if type(message) is UpdateGraph:
        return
    fields = MESSAGE_FIELDS[type(message)]
    if fields.key_field is not None:
        key = getattr(message, fields.key_field)
        if key is not None or fields.needs_key:
            yield fields.key_field, key
    for name in (*fields.keys_fields, *fields.key_maps):
        for key in getattr(message, name):
            yield name, key


def check_lengths(messages: list[Message]) -> None:
    """Raise ValueError if a key in `messages`, as msgspec decoded them, is too long."""
    for message in messages:
        sizes = [key_nbytes(key) for _, key in keys_in(message)]
        if sizes and max(sizes) > KEY_NBYTES_MAX:
            raise ValueError("a key is too long")


def _plain_keys(keys: list[Any]) -> list[Any]:
    """Return the keys that msgspec decoded to `keys`, at less cost per key than ``_plain_key``."""
    plain = [tuple(key) if type(key) is list else key for key in keys]
    try:
        deque(map(hash, plain), maxlen=0)
    except TypeError:  # some contain lists, or are not keys
        return [_plain_key(key) if type(key) in _CHECKED_KEYS else key for key in keys]
    if not _CHECKED_KEYS.isdisjoint(map(type, plain)):
        deque(map(check_key, plain), maxlen=0)
    return plain


def _op_of(raw: Buffer) -> str:
    """Return the op of a message that cannot be decoded otherwise, or "" if it has none."""
    try:
        return str(_OP_ONLY.decode(raw).op)
    except READ_ERRORS:
        return ""


def _split_error(error: Exception) -> tuple[str, str]:
    """Split msgspec's "text - at `path`" into (path, text)."""
    text, found, path = str(error).rpartition(" - at `")
    if not found:
        return "$", str(error)
    return path.rstrip("`"), text


def _with_sets_encoded(messages: list[Any]) -> list[Any]:
    """Replace the sets in untyped fields of `messages` with stock's encoding of a set."""
    changed = None
    plain: Any = None
    for position, message in enumerate(messages):
        for name in _UNTYPED.get(type(message), ()):
            value = getattr(message, name)
            if type(value) not in SET_CONTAINERS or value is plain:
                continue
            if not has_set(value):
                plain = value  # tasks with equal annotations share one object
                continue
            if changed is None:
                changed = list(messages)
            changed[position] = msgspec.structs.replace(
                changed[position], **{name: encode_sets(value)}
            )
    return messages if changed is None else changed


def _messages_to_dicts(value: Any) -> Any:
    """Convert requests, and messages in a batch that also has dicts of plugins, to maps."""
    if isinstance(value, list):
        return [_messages_to_dicts(x) if isinstance(x, Message) else x for x in value]
    return struct_to_dict(value) if isinstance(value, Message) else value
