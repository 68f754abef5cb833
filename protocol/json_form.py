"""Lossless JSON form of messages.

``paceline decode`` prints it, ``paceline encode`` reads it, and ``docs/vectors/`` contains it.
Null, booleans, numbers, strings and arrays are themselves (on the wire, a tuple is the same as a
list). Everything else is an object with one key that begins with ``$``:

- ``{"$bytes": "00ff"}``: bytes, in hex.
- ``{"$map": [[key, value], ...]}``: a map, in order, with a key that is not a string or begins
  with ``$``.
- ``{"$set": [...]}``: a set, in order (``{"__Set__": true, "as-list": [...]}`` on the wire).
- ``{"$serialized": {"header": {...}, "frames": [...]}}``: a value that was
  ``{"__Serialized__": k}``: its decoded header, and its frames in hex as received (compressed,
  sharded).
- ``{"$pickled": {"header": {...}, "frames": [...]}}``: the same for ``{"__Pickled__": k}``; the
  pickle is in its header.
- ``{"$int": "9007199254740993"}``: an integer beyond 2**53, which not every JSON reader preserves.
- ``{"$float": "nan"}``: ``nan``, ``inf`` or ``-inf``.
- ``{"$ext": [code, "00ff"]}``: a msgpack extension type; Dask uses none.

A whole number that is a float on the wire keeps its point (``3.0``); a JSON reader that does not
distinguish it from ``3`` has to compare numbers. If a header's msgpack differs from what
msgpack-python would encode, "header_hex" is added to "header" and takes precedence. Enums stay the
maps that they are on the wire.

Encoding a form gives the original bytes if the sender used the shortest msgpack (both libraries
that Dask peers use do) and put its frames in the order of their placeholders.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import msgspec

from .compression import Buffer
from .errors import LocalProtocolError, RemoteProtocolError
from .framing import Frames
from .handshake import Encoding
from .payload import Payload, payload_header
from .sniffing import real_nbytes
from .values import ValueReader, ValueWriter, struct_to_dict

#: Every JSON reader preserves integers up to this one.
SAFE_INTEGER_MAX = 2**53
#: Depth of nested values. Python's own JSON reader fails near its recursion limit.
DEPTH_MAX = 200

_SCALARS = (int, float, str, bytes, bytearray, memoryview)
_MARKS = frozenset(("$bytes", "$map", "$set", "$serialized", "$pickled", "$int", "$float", "$ext"))


@dataclass(frozen=True, slots=True)
class _WireSet:
    """The elements of a set, in the order of the wire."""

    elements: Sequence[Any]


class _WireReader(ValueReader):
    """A ``ValueReader`` that preserves the order of sets."""

    __slots__ = ()

    def convert(self, value: dict[Any, Any]) -> Any:
        """See ``ValueReader.convert``."""
        if len(value) == 1:
            return super().convert(value)
        if len(value) == 2 and value.get("__Set__") is True and "as-list" in value:
            if isinstance(value["as-list"], tuple):
                return _WireSet(value["as-list"])
        return value


# ------------------------------------------------------------------ whole messages


def frames_to_json(frames: Sequence[Buffer], encoding: Encoding = "stock") -> Any:
    """Return the JSON form of a message, which is the same in both encodings.

    Raises:
        RemoteProtocolError: the message cannot be decoded.
    """
    if not frames:
        raise RemoteProtocolError("a message without frames")
    return to_json(_WireReader(frames, encoding).read(frames[0]))


def json_to_frames(form: Any, encoding: Encoding = "stock") -> Frames:
    """Return the frames of the message with the JSON form `form`.

    Raises:
        LocalProtocolError: `form` is not valid.
    """
    writer = ValueWriter(encoding)
    writer.frames[0] = writer.pack(_read(form, wire=True, depth=0))
    return writer.frames


def dumps(form: Any, indent: int | None = None) -> str:
    """Return `form` as text, on one line if `indent` is None."""
    separators = (",", ":") if indent is None else None
    return json.dumps(
        form, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )


def documents(text: str) -> Iterator[Any]:
    """Yield the forms in `text`, any number of JSON documents one after the other (such as lines).

    Raises:
        LocalProtocolError: `text` is not JSON.
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
            raise LocalProtocolError(f"invalid JSON: {error}") from error
        yield form


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# ------------------------------------------------------------------ values to JSON


def to_json(value: Any, max_nbytes: float = math.inf) -> Any:
    """Return the JSON form of a decoded value, which may contain sets, payloads and messages.

    Args:
        value: the value.
        max_nbytes: longer bytes (and frames) become ``{"$omitted": length}``, which cannot be
            converted back.

    Raises:
        RemoteProtocolError: the value is nested too deeply, or the header of a payload is corrupt.
        LocalProtocolError: the value cannot be sent.
    """
    return _form(value, max_nbytes, 0)


def _form(value: Any, max_nbytes: float, depth: int) -> Any:
    """Return the form of `value`, which is nested `depth` deep."""
    if value is None or value is True or value is False or type(value) is str:
        return value
    if depth > DEPTH_MAX:
        raise RemoteProtocolError(f"a value is nested more than {DEPTH_MAX} deep")
    if isinstance(value, _SCALARS):
        return _scalar(value, max_nbytes)
    depth += 1
    if isinstance(value, Mapping):
        return _map(value, max_nbytes, depth)
    if isinstance(value, Payload):
        return _payload(value, max_nbytes, depth)
    if isinstance(value, msgspec.Struct):
        return _map(struct_to_dict(value), max_nbytes, depth)
    if isinstance(value, msgpack.ExtType):
        return {"$ext": [value.code, value.data.hex()]}
    if isinstance(value, msgpack.Timestamp):
        return {"$ext": [-1, value.to_bytes().hex()]}
    if isinstance(value, set | frozenset):
        value = _WireSet(sorted(value, key=repr))
    elements = value.elements if isinstance(value, _WireSet) else value
    if not isinstance(elements, list | tuple):
        raise LocalProtocolError(f"a value of type {type(value).__name__} has no JSON form")
    forms = [_form(x, max_nbytes, depth) for x in elements]
    return {"$set": forms} if isinstance(value, _WireSet) else forms


def _scalar(value: Any, max_nbytes: float) -> Any:
    if isinstance(value, int):
        number = int(value)
        return number if abs(number) <= SAFE_INTEGER_MAX else {"$int": str(number)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, str):
        return str(value)
    if real_nbytes(value) > max_nbytes:
        return {"$omitted": real_nbytes(value)}
    return {"$bytes": bytes(value).hex()}


def _map(value: Mapping[Any, Any], max_nbytes: float, depth: int) -> dict[str, Any]:
    pairs = [(key, _form(x, max_nbytes, depth)) for key, x in value.items()]
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {str(key): form for key, form in pairs}
    return {"$map": [[_form(key, max_nbytes, depth), form] for key, form in pairs]}


def _payload(payload: Payload, max_nbytes: float, depth: int) -> dict[str, Any]:
    if real_nbytes(payload.header) > max_nbytes:
        return {f"${payload.kind}": {"$omitted": payload.nbytes}}
    header = payload_header(payload)
    body: dict[str, Any] = {"header": _form(header, max_nbytes, depth)}
    try:
        is_plain = msgpack.packb(header, use_bin_type=True) == payload.header
    except (ValueError, TypeError, OverflowError):
        is_plain = False
    if not is_plain:
        body["header_hex"] = bytes(payload.header).hex()
    body["frames"] = [
        {"$omitted": real_nbytes(frame)} if real_nbytes(frame) > max_nbytes else bytes(frame).hex()
        for frame in payload.frames
    ]
    return {f"${payload.kind}": body}


# ------------------------------------------------------------------ JSON to values


def from_json(form: Any) -> Any:
    """Return the value of `form`: tuples for arrays, sets, ``Payload`` objects.

    Raises:
        LocalProtocolError: `form` is not valid.
    """
    return _read(form, wire=False, depth=0)


def _read(form: Any, wire: bool, depth: int) -> Any:
    """Return the value of `form`; with `wire`, sets as maps, which have an order."""
    if isinstance(form, list | dict) and depth > DEPTH_MAX:
        raise LocalProtocolError(f"a value is nested more than {DEPTH_MAX} deep")
    if isinstance(form, list):
        return tuple([_read(x, wire, depth + 1) for x in form])
    if not isinstance(form, dict):
        if isinstance(form, float) and not math.isfinite(form):
            raise LocalProtocolError(f"{form!r} is not JSON")
        return form
    if len(form) == 1:
        ((mark, body),) = form.items()
        if mark.startswith("$"):
            try:
                return _read_marked(mark, body, wire, depth)
            except (TypeError, ValueError, KeyError, OverflowError) as error:
                raise LocalProtocolError(f"invalid value of {mark}: {error!r}") from error
    for name in form:
        if name.startswith("$"):
            raise LocalProtocolError(f"{name} must be the only key of its object, or in a $map")
    return {name: _read(x, wire, depth + 1) for name, x in form.items()}


def _read_marked(mark: str, body: Any, wire: bool, depth: int) -> Any:
    """Return the value of an object with a mark.

    Raises:
        TypeError, ValueError, KeyError, OverflowError, LocalProtocolError: `body` is not valid.
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
    if mark in ("$serialized", "$pickled"):
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
    raise LocalProtocolError(f"unknown mark {mark}; valid are {', '.join(sorted(_MARKS))}")
