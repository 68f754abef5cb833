"""Messages as JSON, without loss: what ``paceline decode`` prints, ``paceline encode`` reads and ``docs/vectors/`` holds.

What JSON has is itself: null, booleans, numbers, strings, arrays (a tuple and a list are one thing on the wire). The rest is
an object with one key that begins with ``$``:

=====================================================  ==============================================================
``{"$bytes": "00ff"}``                                 bytes, in hex
``{"$map": [[key, value], ...]}``                      a map of which some key is no string, or begins with ``$``; in order
``{"$set": [...]}``                                    a set (``{"__Set__": true, "as-list": [...]}`` on the wire), in order
``{"$serialized": {"header": {...}, "frames": [...]}}``  a value that was ``{"__Serialized__": k}``: its header, opened, and its
                                                       frames in hex, as they came (compressed, sharded)
``{"$pickled": {"header": {...}, "frames": [...]}}``   likewise ``{"__Pickled__": k}``; the pickle is in its header
``{"$int": "9007199254740993"}``                       an integer beyond 2**53, which not every reader of JSON keeps
``{"$float": "nan"}``                                  ``nan``, ``inf`` or ``-inf``
``{"$ext": [code, "00ff"]}``                           an extension type of msgpack; Dask has none
=====================================================  ==============================================================

A whole number that is a float on the wire keeps its point (``3.0``); who reads JSON without telling it from ``3`` compares numbers.
Where a header's msgpack is not what msgpack-python would write for it, "header_hex" stands beside "header" and counts.
Enums stay the maps that they are on the wire.

The way back gives the same bytes, given that the sender wrote its msgpack as short as can be (both libraries that Dask
peers use do) and put its frames in the order of their placeholders.

Must not know: sockets, phases, what messages mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack
import msgspec

from .compression import Buffer
from .errors import LocalProtocolError, RemoteProtocolError
from .framing import Frames
from .handshake import IN_PLACE, Encoding
from .in_place import InPlaceReader, InPlaceWriter
from .payload import Payload, payload_header
from .skimming import real_nbytes
from .values import ValueReader, ValueWriter, struct_to_dict

#: Integers up to here are kept by every reader of JSON.
SAFE_INTEGER_MAX = 2**53
#: How deep values may be nested. Python's own JSON reader ends near its recursion limit.
DEPTH_MAX = 200

_MARKS = frozenset(("$bytes", "$map", "$set", "$serialized", "$pickled", "$int", "$float", "$ext"))


class _WireSet(tuple[Any, ...]):
    """The elements of a set, in the order of the wire."""

    __slots__ = ()


class _WireReader(ValueReader):
    """Opens placeholders, keeps the order of sets."""

    __slots__ = ()

    def convert(self, value: dict[Any, Any]) -> Any:
        """What a map stands for."""
        return super().convert(value) if len(value) == 1 else _with_order(value)


class _InPlaceWireReader(InPlaceReader):
    """The same in the second encoding."""

    __slots__ = ()

    def convert(self, value: dict[Any, Any]) -> Any:
        """What a map stands for."""
        return super().convert(value) if len(value) == 1 else _with_order(value)


def _with_order(value: dict[Any, Any]) -> Any:
    """A set as what keeps its order; anything else is itself."""
    if len(value) == 2 and value.get("__Set__") is True and "as-list" in value:
        if isinstance(value["as-list"], tuple):
            return _WireSet(value["as-list"])
    return value


# ------------------------------------------------------------------ whole messages


def frames_to_json(frames: Sequence[Buffer], encoding: Encoding = "stock") -> Any:
    """One message of the wire. The form is the same in both encodings.

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    if not frames:
        raise RemoteProtocolError("a message without frames")
    reader = _InPlaceWireReader(frames) if encoding == IN_PLACE else _WireReader(frames)
    return to_json(reader.read(frames[0]))


def json_to_frames(form: Any, encoding: Encoding = "stock") -> Frames:
    """The frames of the message.

    Raises:
        LocalProtocolError: this is no such form.
    """
    writer = InPlaceWriter() if encoding == IN_PLACE else ValueWriter()
    writer.frames[0] = writer.pack(_read(form, wire=True, depth=0))
    return writer.frames


def dumps(form: Any, indent: int | None = None) -> str:
    """The form as text; one line when there is no indent."""
    separators = (",", ":") if indent is None else None
    return json.dumps(
        form, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )


def documents(text: str) -> Iterator[Any]:
    """The forms in a text of any number of JSON documents, one after the other (lines, say).

    Raises:
        LocalProtocolError: it is no JSON.
    """
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    position = 0
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        if position == len(text):
            return
        try:
            form, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise LocalProtocolError(f"this is no JSON: {error}") from error
        yield form


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


# ------------------------------------------------------------------ values to JSON


def to_json(value: Any, max_nbytes: int | None = None) -> Any:
    """A value as the codec gives it: tuples, sets, ``Payload`` objects and messages in it, too.

    Args:
        max_nbytes: bytes longer than that (frames, too) become ``{"$omitted": length}``, from which there is no way back.

    Raises:
        RemoteProtocolError: it is nested too deeply, or the header of a payload is broken.
        LocalProtocolError: the wire cannot say it.
    """
    return _Former(max_nbytes).form(value, 0)


class _Former:
    """Makes forms.

    Args:
        max_nbytes: see ``to_json``.
    """

    __slots__ = ("_max_nbytes",)

    def __init__(self, max_nbytes: int | None) -> None:
        self._max_nbytes = max_nbytes

    def form(self, value: Any, depth: int) -> Any:
        """What stands for a value that is so deep in another."""
        if value is None or value is True or value is False or type(value) is str:
            return value
        if depth > DEPTH_MAX:
            raise RemoteProtocolError(f"a value is nested more than {DEPTH_MAX} deep")
        if isinstance(value, int):
            number = int(value)
            return number if abs(number) <= SAFE_INTEGER_MAX else {"$int": str(number)}
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
        if isinstance(value, str):
            return str(value)
        if isinstance(value, bytes | bytearray | memoryview):
            if self._is_long(value):
                return {"$omitted": real_nbytes(value)}
            return {"$bytes": bytes(value).hex()}
        depth += 1
        if isinstance(value, _WireSet):
            return {"$set": [self.form(x, depth) for x in value]}
        if isinstance(value, list | tuple) and not isinstance(value, msgpack.ExtType):
            return [self.form(x, depth) for x in value]
        if isinstance(value, Mapping):
            return self._map(value, depth)
        if isinstance(value, Payload):
            return self._payload(value, depth)
        if isinstance(value, set | frozenset):
            return {"$set": [self.form(x, depth) for x in sorted(value, key=repr)]}
        if isinstance(value, msgspec.Struct):
            fields = struct_to_dict(value)
            extra = getattr(value, "EXTRA_FIELD", None)
            if extra is not None:
                fields.update(fields.pop(extra))
            return self._map(fields, depth)
        if isinstance(value, msgpack.ExtType):
            return {"$ext": [value.code, value.data.hex()]}
        if isinstance(value, msgpack.Timestamp):
            return {"$ext": [-1, value.to_bytes().hex()]}
        raise LocalProtocolError(f"a value of type {type(value).__name__} has no JSON form")

    def _map(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {str(key): self.form(x, depth) for key, x in value.items()}
        return {"$map": [[self.form(k, depth), self.form(x, depth)] for k, x in value.items()]}

    def _payload(self, payload: Payload, depth: int) -> dict[str, Any]:
        if self._is_long(payload.header):
            return {f"${payload.kind}": {"$omitted": payload.nbytes}}
        header = payload_header(payload)
        body: dict[str, Any] = {"header": self.form(header, depth)}
        try:
            is_plain = msgpack.packb(header, use_bin_type=True) == payload.header
        except (ValueError, TypeError, OverflowError):
            is_plain = False
        if not is_plain:
            body["header_hex"] = bytes(payload.header).hex()
        body["frames"] = [
            {"$omitted": real_nbytes(frame)} if self._is_long(frame) else bytes(frame).hex()
            for frame in payload.frames
        ]
        return {f"${payload.kind}": body}

    def _is_long(self, data: Buffer) -> bool:
        return self._max_nbytes is not None and real_nbytes(data) > self._max_nbytes


# ------------------------------------------------------------------ and back


def from_json(form: Any) -> Any:
    """The value: tuples for arrays, sets, ``Payload`` objects.

    Raises:
        LocalProtocolError: this is no such form.
    """
    return _read(form, wire=False, depth=0)


def _read(form: Any, wire: bool, depth: int) -> Any:
    """The value, or (``wire``) what stands for it on the wire, where a set has an order."""
    if isinstance(form, list):
        if depth > DEPTH_MAX:
            raise LocalProtocolError(f"a value is nested more than {DEPTH_MAX} deep")
        return tuple([_read(x, wire, depth + 1) for x in form])
    if not isinstance(form, dict):
        if isinstance(form, float) and not math.isfinite(form):
            raise LocalProtocolError(f"{form!r} is no JSON")
        return form
    if depth > DEPTH_MAX:
        raise LocalProtocolError(f"a value is nested more than {DEPTH_MAX} deep")
    if len(form) == 1:
        ((mark, body),) = form.items()
        if mark.startswith("$"):
            try:
                return _read_marked(mark, body, wire, depth)
            except (TypeError, ValueError, KeyError, OverflowError) as error:
                raise LocalProtocolError(f"what stands under {mark} is none: {error!r}") from error
    for name in form:
        if name.startswith("$"):
            raise LocalProtocolError(f"{name} stands alone in its object, or in a $map")
    return {name: _read(x, wire, depth + 1) for name, x in form.items()}


def _read_marked(mark: str, body: Any, wire: bool, depth: int) -> Any:
    """What an object with a mark is.

    Raises:
        TypeError, ValueError, KeyError, OverflowError: it is none.
        LocalProtocolError: likewise.
    """
    if mark == "$bytes":
        return bytes.fromhex(body)
    if mark == "$map":
        pairs = [(_read(key, wire, depth + 1), _read(x, wire, depth + 1)) for key, x in body]
        return dict(pairs)
    if mark == "$set":
        if not isinstance(body, list):
            raise TypeError("expected an array")
        elements = _read(body, wire, depth)
        return {"__Set__": True, "as-list": elements} if wire else set(elements)
    if mark == "$serialized" or mark == "$pickled":
        if "header_hex" in body:
            header = bytes.fromhex(body["header_hex"])
        else:
            header = msgpack.packb(_read(body["header"], True, depth + 1), use_bin_type=True)
        frames = tuple(bytes.fromhex(frame) for frame in body["frames"])
        return Payload("serialized" if mark == "$serialized" else "pickled", header, frames)
    if mark == "$int":
        return int(body)
    if mark == "$float":
        return float(body)
    if mark == "$ext":
        code, data = body
        return msgpack.ExtType(code, bytes.fromhex(data))
    raise LocalProtocolError(f"nothing is called {mark}; there are {', '.join(sorted(_MARKS))}")
