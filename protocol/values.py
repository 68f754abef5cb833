"""Untyped values and frames: msgpack with the extra conventions of stock Dask.

Read as the stock scheduler would read it: arrays are tuples, ``__Set__`` is a set, and what the stock scheduler leaves closed
is a ``Payload`` in its place. Enums stay the dicts that they are on the wire: naming a class is nothing to import for.

Must not know: messages, connections.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import msgpack
import msgspec

from .compression import Buffer
from .errors import LocalProtocolError, RemoteProtocolError
from .flat_map import FlatMap
from .payload import Kind, Payload, count_frames

#: Given a payload, the number in it, or the payload itself when it holds something else.
ScalarReader = Callable[[Payload], Any]
#: Given a value that msgpack cannot say, a payload that holds it.
ValueCloser = Callable[[Any], Payload]

#: A pickled number is not longer than this, bytes; longer ones are not shown to the scalar reader.
SCALAR_MAX_NBYTES = 512

#: How a map begins whose first name is "op".
_OP = b"\xa2op"
#: msgpack interns the names in maps, and the interpreter's table of interned names never shrinks again; msgspec does not.
_PLAIN = msgspec.msgpack.Decoder()

#: What reading untrusted msgpack may raise.
READ_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    RecursionError,
    OverflowError,
    msgspec.MsgspecError,
    msgpack.UnpackException,
)


def payload_at(kind: Kind, index: Any, frames: Sequence[Buffer]) -> Payload:
    """The payload whose header is frame ``index``.

    Raises:
        RemoteProtocolError: there is none.
    """
    if type(index) is not int or not 0 < index < len(frames):
        raise RemoteProtocolError(f"a placeholder points to frame {index!r} of {len(frames)}")
    header = bytes(frames[index])
    count = count_frames(header)
    if not count:
        return Payload(kind, header)
    start = index + 1
    if count > len(frames) - start:
        raise RemoteProtocolError(
            f"a payload claims {count} frames after frame {index} of {len(frames)}"
        )
    return Payload(kind, header, tuple(frames[start : start + count]))


class ValueReader:
    """Opens the placeholders of one message.

    Args:
        frames: of the message.
        read_scalar: reads numbers that came as ``__Pickled__``; None to leave them closed.
    """

    __slots__ = ("_frames", "_read_scalar")

    def __init__(self, frames: Sequence[Buffer], read_scalar: ScalarReader | None = None) -> None:
        self._frames = frames
        self._read_scalar = read_scalar

    def read(self, data: Buffer) -> Any:
        """The value that ``data`` (msgpack) is.

        Raises:
            RemoteProtocolError: it is no msgpack, or one of its placeholders points nowhere.
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
        """As ``read``. What names no op is a reply, whose maps have keys of tasks for names: none of them is interned.

        Raises:
            RemoteProtocolError: as there.
        """
        if memoryview(data)[1:4] == _OP:
            return self.read(data)
        try:
            return self.finish(_PLAIN.decode(data))
        except READ_ERRORS as error:
            raise RemoteProtocolError(f"a reply cannot be read: {error}") from error

    def convert(self, value: dict[Any, Any]) -> Any:
        """What a map stands for: mostly itself."""
        if len(value) == 1:
            (name,) = value
            if name == "__Serialized__":
                return payload_at("serialized", value[name], self._frames)
            if name == "__Pickled__":
                payload = payload_at("pickled", value[name], self._frames)
                read_scalar = self._read_scalar
                if (
                    read_scalar is not None
                    and not payload.frames
                    and len(payload.header) <= SCALAR_MAX_NBYTES
                ):
                    return read_scalar(payload)
                return payload
        elif len(value) == 2 and "__Set__" in value and "as-list" in value:
            return set(value["as-list"])
        return value

    def finish(self, value: Any) -> Any:
        """A value decoded by msgspec as it should be: lists to tuples, placeholders opened.

        Raises:
            RemoteProtocolError: a placeholder points nowhere.
            TypeError: a set of what cannot be in one.
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
    """Writes one message: frame 0, and the payloads' frames behind it.

    Args:
        close_value: closes what msgpack cannot say; None where that is an error.

    Attributes:
        frames: of the message; frame 0 is filled in at the end.
    """

    __slots__ = ("_close_value", "frames")

    def __init__(self, close_value: ValueCloser | None = None) -> None:
        self.frames: list[Buffer] = [b""]
        self._close_value = close_value

    def pack(self, value: Any) -> bytes:
        """The value as msgpack; payloads go to ``frames``.

        Raises:
            LocalProtocolError: msgpack cannot say it.
        """
        try:
            packed: bytes = msgpack.packb(value, default=self._convert_whole, use_bin_type=True)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise LocalProtocolError(f"a value cannot be sent: {error}") from error
        return packed

    def _convert_whole(self, value: Any) -> Any:
        """As ``convert``, where nothing ready-made can be written."""
        return value.as_dict() if type(value) is FlatMap else self.convert(value)

    def convert(self, value: Any) -> Any:
        """What msgspec says instead of ``value``."""
        if isinstance(value, Payload):
            frames = self.frames
            index = len(frames)
            frames.append(value.header)
            if value.frames:
                frames.extend(value.frames)
            return {_PLACEHOLDERS[value.kind]: index}
        if isinstance(value, set | frozenset):
            return {"__Set__": True, "as-list": list(value)}
        if type(value) is FlatMap:
            return msgspec.Raw(value.packed())
        if isinstance(value, msgspec.Struct):
            return struct_to_dict(value)
        if isinstance(value, Enum):
            kind = type(value)
            return {
                "__Enum__": True,
                "name": value.name,
                "__module__": kind.__module__,
                "__name__": kind.__name__,
            }
        for base in _PLAIN_TYPES:  # subclasses, e.g. numpy.float64
            if isinstance(value, base):
                return base(value)
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        try:
            return operator.index(value)  # numpy.int64 and the like
        except TypeError:
            pass
        if self._close_value is not None:
            return self.convert(self._close_value(value))
        raise LocalProtocolError(f"a value of type {type(value).__name__} cannot be sent")


_PLAIN_TYPES: tuple[Any, ...] = (str, int, float, dict, tuple)
_PLACEHOLDERS: dict[Kind, str] = {"serialized": "__Serialized__", "pickled": "__Pickled__"}


def struct_to_dict(value: msgspec.Struct) -> dict[str, Any]:
    """A message as the map that it is on the wire; its values as they are."""
    config = value.__struct_config__
    result: dict[str, Any] = {}
    if config.tag is not None and config.tag_field is not None:
        result[config.tag_field] = config.tag
    if not config.omit_defaults:
        for name, encoded in zip(
            value.__struct_fields__, value.__struct_encode_fields__, strict=True
        ):
            result[encoded] = getattr(value, name)
        return result
    for field in msgspec.structs.fields(type(value)):  # slow: it reads the annotations each time
        x = getattr(value, field.name)
        if not (x is field.default or x == field.default):
            result[field.encode_name] = x
    return result


def has_set(value: Any) -> bool:
    """Whether there is a set in the value, which msgspec would write as an array."""
    kind = type(value)
    if kind is dict:
        value = value.values()
    elif kind is not list and kind is not tuple:
        return kind is set or kind is frozenset
    for x in value:  # noqa: SIM110 - a generator would cost more than the loop
        if type(x) in SET_HOLDERS and has_set(x):
            return True
    return False


SET_HOLDERS = frozenset((dict, list, tuple, set, frozenset))


def without_sets(value: Any) -> Any:
    """The value with each set as the map that stands for it on the wire."""
    kind = type(value)
    if kind is dict:
        return {key: without_sets(x) for key, x in value.items()}
    if kind is list or kind is tuple:
        return [without_sets(x) for x in value]
    if isinstance(value, set | frozenset):
        return {"__Set__": True, "as-list": list(value)}
    return value
