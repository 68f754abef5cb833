"""Encode and decode untyped values: msgpack with the extra conventions of stock Dask.

Two encodings differ in their placeholders (``payload_at``, ``payload_in_place``) and are the same
otherwise: sets, enums, and headers with their compression and shards. The in-place encoding is used
if both ends offer it in their handshakes, which stock peers never do.

Values are decoded as in the stock scheduler: arrays are tuples, ``__Set__`` is a set, and a value
that the stock scheduler does not deserialize is a ``Payload``. Enums stay the dicts that they are
on the wire, because a class named in a message must not be imported.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import msgpack
import msgspec

from .compression import Buffer
from .errors import LocalProtocolError, RemoteProtocolError
from .flat_map import FlatMap
from .handshake import IN_PLACE, Encoding
from .payload import FrameClaims, Payload, PayloadKind, count_frames

#: Returns the number in a payload, or the payload itself if it holds something else.
ScalarReader = Callable[[Payload], Any]
#: Serializes a value that msgpack cannot encode.
ValueSerializer = Callable[[Any], Payload]

#: Longer pickles, in bytes, are not passed to the scalar reader.
SCALAR_MAX_NBYTES = 512

#: Start of a map whose first name is "op", after its length byte.
_OP = b"\xa2op"
#: Unlike msgpack-python, msgspec does not intern the names in maps. Python's table of interned
#: names never shrinks.
_PLAIN = msgspec.msgpack.Decoder()

#: Kind of payload -> the name in its placeholder.
PLACEHOLDERS: Mapping[PayloadKind, str] = MappingProxyType(
    {"serialized": "__Serialized__", "pickled": "__Pickled__"}
)
PAYLOAD_KINDS: Mapping[str, PayloadKind] = MappingProxyType(
    {name: kind for kind, name in PLACEHOLDERS.items()}
)

#: What reading untrusted msgpack may raise.
READ_ERRORS: Final = (
    ValueError,
    TypeError,
    KeyError,
    RecursionError,
    OverflowError,
    msgspec.MsgspecError,
    msgpack.UnpackException,
)


def payload_at(
    kind: PayloadKind, place: Any, frames: Sequence[Buffer], claims: FrameClaims
) -> Payload:
    """Return the payload whose header is frame `place`.

    Raises:
        RemoteProtocolError: there is no such frame, or its frames are missing.
    """
    if type(place) is not int or not 0 < place < len(frames):
        raise RemoteProtocolError(f"a placeholder points to frame {place!r} of {len(frames)}")
    claims.claim(place, place + 1)
    header = bytes(frames[place])
    count = count_frames(header)
    if not count:
        return Payload(kind, header)
    start = place + 1
    if count > len(frames) - start:
        raise RemoteProtocolError(
            f"a payload claims {count} frames after frame {place} of {len(frames)}"
        )
    claims.claim(start, start + count)
    return Payload(kind, header, tuple(frames[start : start + count]))


def payload_in_place(
    kind: PayloadKind, place: Any, frames: Sequence[Buffer], claims: FrameClaims
) -> Payload:
    """Return the payload of a placeholder in the in-place encoding.

    It contains all that a header frame is needed for in the stock encoding, so that a reader in a
    static language needs one pass: ``[header, first, count]``. ``header`` is the header as bytes,
    ``first`` the index of the value's first frame, ``count`` the number of its frames, as in the
    header. A value without frames is ``[header, 0, 0]``.

    Raises:
        RemoteProtocolError: the placeholder is invalid, or its frames are missing.
    """
    if not isinstance(place, list | tuple) or len(place) != 3:
        raise RemoteProtocolError("a placeholder is not [header, first, count]")
    header, first, count = place
    if type(header) is not bytes or type(first) is not int or type(count) is not int:
        raise RemoteProtocolError("a placeholder is not [header, first, count]")
    if count != count_frames(header):
        raise RemoteProtocolError(
            f"a placeholder claims {count} frames, but its header claims another number"
        )
    if not count:
        return Payload(kind, header)
    if not 0 < first <= len(frames) - count:
        raise RemoteProtocolError(
            f"a placeholder points to {count} frames from {first} on, of {len(frames)}"
        )
    claims.claim(first, first + count)
    return Payload(kind, header, tuple(frames[first : first + count]))


#: Encoding -> the function that finds the payload of a placeholder.
PAYLOAD_READERS: Final[Mapping[Encoding, Callable[..., Payload]]] = MappingProxyType(
    {"stock": payload_at, IN_PLACE: payload_in_place}
)


def keep_payload(kind: type, value: Any) -> Any:
    """Accept a ``Payload`` (``dec_hook`` for values whose placeholders are already decoded)."""
    if kind is Payload and isinstance(value, Payload):
        return value
    raise ValueError(f"expected a serialized value, got {type(value).__name__}")


class ValueReader:
    """Decodes the values of one message.

    Args:
        frames: frames of the message.
        encoding: of its placeholders.
        read_scalar: reads numbers in ``__Pickled__`` placeholders; None to keep them serialized.
        claims: frames already claimed by other parts of the message.

    Attributes:
        has_scalars: whether ``read_scalar`` has returned a number.
    """

    __slots__ = ("_claims", "_frames", "_payload_of", "_read_scalar", "has_scalars")

    def __init__(
        self,
        frames: Sequence[Buffer],
        encoding: Encoding = "stock",
        read_scalar: ScalarReader | None = None,
        claims: FrameClaims | None = None,
    ) -> None:
        self._frames = frames
        self._payload_of = PAYLOAD_READERS[encoding]
        self._read_scalar = read_scalar
        self.has_scalars = False
        self._claims = FrameClaims(len(frames)) if claims is None else claims

    def read(self, data: Buffer) -> Any:
        """Return the value encoded in `data` (msgpack).

        Raises:
            RemoteProtocolError: it is not msgpack, or a placeholder refers to a missing frame.
        """
        try:
            return msgpack.unpackb(
                data, object_hook=self.convert, use_list=False, strict_map_key=False, raw=False
            )
        except READ_ERRORS as error:
            raise RemoteProtocolError(
                f"a message cannot be read: {str(error) or type(error).__name__}"
            ) from error

    def read_message(self, data: Buffer) -> Any:
        """Return the value encoded in `data`, interning no names unless it is a request.

        The maps of a reply have task keys for names, and interned names are never freed.

        Raises:
            RemoteProtocolError: as ``read``.
        """
        if memoryview(data)[1:4] == _OP:
            return self.read(data)
        try:
            return self.finish(_PLAIN.decode(data))
        except READ_ERRORS as error:
            raise RemoteProtocolError(f"a reply cannot be read: {error}") from error

    def convert(self, value: dict[Any, Any]) -> Any:
        """Return what a decoded map represents: a payload, a scalar, a set, or the map itself."""
        if len(value) == 1:
            (name,) = value
            kind = PAYLOAD_KINDS.get(name)
            if kind is None:
                return value
            payload = self._payload_of(kind, value[name], self._frames, self._claims)
            read_scalar = self._read_scalar
            if (
                read_scalar is not None
                and kind == "pickled"
                and not payload.frames
                and len(payload.header) <= SCALAR_MAX_NBYTES
            ):
                scalar = read_scalar(payload)
                self.has_scalars = self.has_scalars or scalar is not payload
                return scalar
            return payload
        if len(value) == 2 and "__Set__" in value and "as-list" in value:
            return set(value["as-list"])
        return value

    def finish(self, value: Any) -> Any:
        """Convert a value decoded by msgspec: lists to tuples, and maps as ``convert`` does.

        Raises:
            RemoteProtocolError: a placeholder refers to a missing frame.
            TypeError: a set has an element that is not hashable.
        """
        kind = type(value)
        if kind is list:
            return tuple([self.finish(x) if type(x) in _NESTED else x for x in value])
        if kind is dict:
            for key, x in value.items():
                if type(x) in _NESTED:
                    value[key] = self.finish(x)
            return self.convert(value)
        return value


_NESTED = frozenset((list, dict))


class ValueWriter:
    """Encodes one message: frame 0, and the frames of its payloads.

    Args:
        encoding: of its placeholders.
        serialize_value: serializes values that msgpack cannot encode; None to raise.

    Attributes:
        frames: frames of the message; the caller fills in frame 0 at the end.
    """

    __slots__ = ("_is_in_place", "_serialize_value", "frames")

    def __init__(
        self, encoding: Encoding = "stock", serialize_value: ValueSerializer | None = None
    ) -> None:
        self._is_in_place = encoding == IN_PLACE
        self.frames: list[Buffer] = [b""]
        self._serialize_value = serialize_value

    def pack(self, value: Any) -> bytes:
        """Return `value` as msgpack, and append the frames of its payloads to ``frames``.

        Raises:
            LocalProtocolError: msgpack cannot encode it.
        """
        try:
            packed: bytes = msgpack.packb(value, default=self._convert_whole, use_bin_type=True)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise LocalProtocolError(f"a value cannot be sent: {error}") from error
        return packed

    def _convert_whole(self, value: Any) -> Any:
        """Convert `value` for msgpack-python, which cannot embed encoded bytes."""
        return value.as_dict() if type(value) is FlatMap else self.convert(value)

    def convert(self, value: Any) -> Any:
        """Return what to encode in place of `value`, which msgspec does not know."""
        if isinstance(value, Payload):
            frames = self.frames
            index = len(frames)
            if self._is_in_place:
                count = len(value.frames)
                frames.extend(value.frames)
                return {PLACEHOLDERS[value.kind]: (value.header, index if count else 0, count)}
            frames.append(value.header)
            if value.frames:
                frames.extend(value.frames)
            return {PLACEHOLDERS[value.kind]: index}
        if isinstance(value, set | frozenset):
            return {"__Set__": True, "as-list": list(value)}
        if type(value) is FlatMap:
            return msgspec.Raw(value.packed())
        if isinstance(value, msgspec.Struct):
            return struct_to_dict(value)
        if isinstance(value, Enum):
            return _enum_to_dict(value)
        return self._convert_other(value)

    def _convert_other(self, value: Any) -> Any:
        if type(value) is int and self._serialize_value is not None:  # more than 64 bits
            return self.convert(self._serialize_value(value))
        for base in _PLAIN_TYPES:  # subclasses, e.g. numpy.float64
            if isinstance(value, base):
                return base(value)
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        try:
            return operator.index(value)  # numpy.int64 and the like
        except TypeError:
            pass
        if self._serialize_value is not None:
            return self.convert(self._serialize_value(value))
        raise LocalProtocolError(f"a value of type {type(value).__name__} cannot be sent")


_PLAIN_TYPES: tuple[Any, ...] = (str, int, float, dict, tuple)


def _enum_to_dict(value: Enum) -> dict[str, Any]:
    kind = type(value)
    return {
        "__Enum__": True,
        "name": value.name,
        "__module__": kind.__module__,
        "__name__": kind.__name__,
    }


def struct_to_dict(value: msgspec.Struct) -> dict[str, Any]:
    """Return a message as the map that it is on the wire, with its values unchanged."""
    config = value.__struct_config__
    result: dict[str, Any] = {}
    if config.tag is not None and config.tag_field is not None:
        result[config.tag_field] = config.tag
    if not config.omit_defaults:
        for name, encoded in zip(
            value.__struct_fields__, value.__struct_encode_fields__, strict=True
        ):
            result[encoded] = getattr(value, name)
        extra = getattr(value, "EXTRA_FIELD", None)
        if extra is not None:
            result.update(result.pop(extra))
        return result
    for field in msgspec.structs.fields(type(value)):  # slow: it reads the annotations each time
        x = getattr(value, field.name)
        if not (x is field.default or x == field.default):
            result[field.encode_name] = x
    return result


def has_set(value: Any) -> bool:
    """Return whether there is a set in `value`, which msgspec would encode as an array."""
    kind = type(value)
    if kind is dict:
        value = value.values()
    elif kind is not list and kind is not tuple:
        return kind is set or kind is frozenset
    for x in value:  # noqa: SIM110 - a generator would cost more than the loop
        if type(x) in SET_CONTAINERS and has_set(x):
            return True
    return False


SET_CONTAINERS: Final = frozenset((dict, list, tuple, set, frozenset))


def encode_sets(value: Any) -> Any:
    """Return `value` with each set replaced by its map on the wire."""
    kind = type(value)
    if kind is dict:
        return {key: encode_sets(x) for key, x in value.items()}
    if kind is list or kind is tuple:
        return [encode_sets(x) for x in value]
    if isinstance(value, set | frozenset):
        return {"__Set__": True, "as-list": list(value)}
    return value
