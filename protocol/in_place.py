"""The second encoding: a placeholder carries its value's header, and says where its frames are.

Stock's placeholder is the number of a header frame, which must be read to learn how many frames follow it. Here it is
everything at once, so a reader in a static language needs one pass, and no frame is spent on a header::

    {"__Serialized__": [header, first, count]}        {"__Pickled__": [header, first, count]}

``header`` is the header as bytes (msgpack ``bin``, the same that stock puts in a frame); ``first`` is the index of the value's
first frame in the message, ``count`` how many there are. A value without frames is ``[header, 0, 0]``. Everything else is as in
the stock encoding: frame 0, sets, enums, headers with their compression and shards; ``count`` equals the header's "num-sub-frames".

It is spoken only where both ends have said ``"encodings": ["in-place"]`` in their handshakes (``handshake.py``); stock peers never say so.
Both codecs read and write the same typed messages. ``fields_of`` says of each attribute of a message whether it is inline or offloaded.

Must not know: sockets, phases, what messages mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec.structs import force_setattr

from .catalogue import Direction
from .codec import (
    _DECODERS,
    _NO_KEYS,
    _PLANS,
    _RAW_LIST,
    Codec,
    _keep_payload,
    _op_of,
    _plain_key,
)
from .compression import Buffer
from .errors import RemoteProtocolError
from .messages.base import OddMessage
from .payload import Kind, Payload, count_frames
from .values import _PLACEHOLDERS, READ_ERRORS, SCALAR_MAX_NBYTES, ValueReader, ValueWriter

#: Where an attribute's value is: in frame 0; in frames of its own behind a placeholder; or anything, so that what is in it may be either.
Place = Literal["inline", "offloaded", "either"]

_KINDS: Mapping[str, Kind] = {name: kind for kind, name in _PLACEHOLDERS.items()}


@dataclass(frozen=True, slots=True)
class Attribute:
    """One field of a message, as an encoding sees it.

    Attributes:
        name: on the wire.
        place: of its value.
        optional: it may also be None, inline.
    """

    name: str
    place: Place
    optional: bool = False


def fields_of(cls: type[msgspec.Struct]) -> tuple[Attribute, ...]:
    """Each field of a message or a reply, and where its value is. Both encodings place alike."""
    return tuple(
        Attribute(field.encode_name, *_place(field.type)) for field in msgspec.structs.fields(cls)
    )


def _place(hint: Any) -> tuple[Place, bool]:
    if hint is Payload:
        return "offloaded", False
    if hint == Payload | None:
        return "offloaded", True
    return ("either", False) if _holds_anything(hint) else ("inline", False)


def _holds_anything(hint: Any) -> bool:
    """Whether a payload may stand somewhere in a value of this type."""
    if hint is Any or hint is Payload:
        return True
    args = getattr(hint, "__args__", ())
    if getattr(hint, "__origin__", None) is dict:  # keys are never closed
        args = args[1:]
    return any(_holds_anything(x) for x in args)


def payload_in_place(kind: Kind, place: Any, frames: Sequence[Buffer]) -> Payload:
    """The payload that a placeholder of this encoding stands for.

    Raises:
        RemoteProtocolError: it is none, or its frames are not there.
    """
    if not isinstance(place, list | tuple) or len(place) != 3:
        raise RemoteProtocolError("a placeholder is no [header, first, count]")
    header, first, count = place
    if type(header) is not bytes or type(first) is not int or type(count) is not int:
        raise RemoteProtocolError("a placeholder is no [header, first, count]")
    if count != count_frames(header):
        raise RemoteProtocolError(f"a placeholder claims {count} frames, its header another number")
    if not count:
        return Payload(kind, header)
    if not 0 < first <= len(frames) - count:
        raise RemoteProtocolError(
            f"a placeholder points to {count} frames from {first} on, of {len(frames)}"
        )
    return Payload(kind, header, tuple(frames[first : first + count]))


class InPlaceReader(ValueReader):
    """Opens the placeholders of one message in this encoding."""

    __slots__ = ()

    def convert(self, value: dict[Any, Any]) -> Any:
        """What a map stands for: mostly itself."""
        if len(value) != 1:
            return super().convert(value)
        (name,) = value
        kind = _KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            return value
        payload = payload_in_place(kind, value[name], self._frames)
        read_scalar = self._read_scalar
        if (
            read_scalar is not None
            and kind == "pickled"
            and not payload.frames
            and len(payload.header) <= SCALAR_MAX_NBYTES
        ):
            return read_scalar(payload)
        return payload


class InPlaceWriter(ValueWriter):
    """Writes one message in this encoding."""

    __slots__ = ()

    def convert(self, value: Any) -> Any:
        """What msgpack says instead of ``value``."""
        if not isinstance(value, Payload):
            return super().convert(value)
        count = len(value.frames)
        first = len(self.frames) if count else 0
        self.frames.extend(value.frames)
        return {_PLACEHOLDERS[value.kind]: (value.header, first, count)}


class InPlaceCodec(Codec):
    """As ``Codec``, in this encoding: same methods, same messages, same errors."""

    __slots__ = ()

    WRITER = InPlaceWriter

    def decode_batch(self, frames: Sequence[Buffer], direction: Direction) -> list[Any]:
        """See ``Codec.decode_batch``."""
        if not frames:
            raise RemoteProtocolError("a message without frames")
        try:
            messages = _DECODERS[direction].decode(frames[0])
            for message in messages:
                self._finish(message, frames)
            return messages
        except (*READ_ERRORS, RemoteProtocolError):
            return self._decode_leniently(frames, direction)

    def decode_value(self, frames: Sequence[Buffer], type: Any = None) -> Any:
        """See ``Codec.decode_value``."""
        if not frames:
            raise RemoteProtocolError("a message without frames")
        value = InPlaceReader(frames, self._read_scalar).read_message(frames[0])
        if type is None:
            return value
        try:
            return msgspec.convert(value, type, strict=False, dec_hook=_keep_payload)
        except READ_ERRORS as error:
            raise RemoteProtocolError(f"not what was expected: {error}") from error

    def _finish(self, message: Any, frames: Sequence[Buffer]) -> None:
        """What msgspec cannot be told: keys, untyped values, placeholders.

        Raises:
            RemoteProtocolError, TypeError, KeyError: something in it is odd.
        """
        plan = _PLANS[type(message)]
        if plan.key_field is not None:
            key = getattr(message, plan.key_field)
            if type(key) in _NO_KEYS:
                force_setattr(message, plan.key_field, _plain_key(key))
        for name in plan.untyped_fields:
            value = getattr(message, name)
            if type(value) in _NO_KEYS:
                reader = InPlaceReader(frames, self._read_scalar)
                force_setattr(message, name, reader.finish(value))
        for name in plan.keys_fields:
            keys = getattr(message, name)
            if type(keys) is not list:  # a set
                keys = keys["as-list"]
                if type(keys) is not list:
                    raise TypeError("expected keys")
                force_setattr(message, name, keys)
            keys[:] = [_plain_key(key) if type(key) in _NO_KEYS else key for key in keys]
        for name in plan.payload_fields:
            placeholder = getattr(message, name)
            if placeholder is not None:
                payload = payload_in_place(placeholder.kind, placeholder.index, frames)
                force_setattr(message, name, payload)

    def _decode_leniently(self, frames: Sequence[Buffer], direction: Direction) -> list[Any]:
        """A batch, message by message."""
        try:
            raws: list[Any] = _RAW_LIST.decode(frames[0])
            in_a_list = True
        except READ_ERRORS:
            raws, in_a_list = [frames[0]], False
        messages: list[Any] = []
        for raw in raws:
            try:
                value = InPlaceReader(frames, self._read_scalar).read(raw)
            except RemoteProtocolError as error:
                if not in_a_list:
                    raise
                op, found = _op_of(raw), {}
                found["op"] = op
                messages.append(OddMessage(op, "$", str(error), found))
                continue
            if isinstance(value, dict):
                messages.append(self.as_message(value, direction))
            else:
                messages.append(OddMessage("", "$", "expected a map", {"message": value}))
        return messages
