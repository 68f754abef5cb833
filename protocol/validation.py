"""Validate a message against the catalogue: its op, the names of its fields, and their types.

This is stricter than the codec, which accepts what stock peers send. Here a field that the class
does not declare, a float for an ``int``, or a missing field is a violation, also in a stream. All
violations of a message are returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from paceline.protocol.messages.base import Message, StartStop
from paceline.protocol.messages.replies import ErrorReply

from .catalogue import TABLES, Direction, Op
from .message_fields import MESSAGE_FIELDS
from .payload import Payload
from .reply_values import VALUES
from .values import READ_ERRORS, keep_payload

#: What is wrong. "unreadable": invalid msgpack, a placeholder for a missing frame, or bytes that
#: are not messages. "out of place": the message is not allowed in this phase.
ViolationKind = Literal[
    "unknown op", "unknown field", "missing field", "wrong type", "unreadable", "out of place"
]

#: Statuses of a reply that reports a failure, for any request.
UNCAUGHT = "uncaught-error"
FAILURES = frozenset(("error", UNCAUGHT))

_BINARY = (bytes, bytearray, memoryview)
#: Types of keys, and of the items of tuples in keys.
_KEY_TYPES = (str, bytes, int, float)


@dataclass(frozen=True, slots=True)
class Violation:
    """A deviation of a message from the catalogue.

    Attributes:
        kind: what is wrong.
        op: op of the message; "identity (reply)" for the reply to one.
        path: path of the field, such as ``$.nbytes``.
        text: description.
    """

    kind: ViolationKind
    op: str
    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.op or 'no op'} {self.path}: {self.text}"


def _classes() -> Iterator[type[msgspec.Struct]]:
    yield from (ErrorReply, StartStop)
    for table in TABLES.values():
        for op in table.values():
            yield op.cls
            if op.reply is not None:
                yield op.reply


#: Class -> its fields, by name on the wire.
_FIELDS: Mapping[type[msgspec.Struct], Mapping[str, msgspec.structs.FieldInfo]] = MappingProxyType(
    {
        cls: {field.encode_name: field for field in msgspec.structs.fields(cls)}
        for cls in dict.fromkeys(_classes())
    }
)


def check_message(raw: Any, direction: Direction) -> list[Violation]:
    """Return the violations in a decoded message of a stream, or a request.

    Args:
        raw: as ``ValueReader`` returns it.
        direction: its table.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("op"), str):
        return [Violation("wrong type", "", "$", f"expected a map with an op, got {_kind(raw)}")]
    name = raw["op"]
    op = TABLES[direction].get(name)
    if op is None:
        return [Violation("unknown op", name, "$.op", f"not in the table {direction}")]
    fields = {key: value for key, value in raw.items() if key != "op"}
    found = list(_struct(fields, op.cls, name, "$"))
    if not found:
        found += _keys(raw, op.cls, name)
    return found


def check_reply(value: Any, op: Op) -> list[Violation]:
    """Return the violations in the reply to a request of `op`."""
    name = f"{op.name} (reply)"
    cls = op.reply
    if isinstance(value, dict) and value.get("status") in FAILURES and "exception" in value:
        if cls is None and value["status"] != UNCAUGHT:
            return []  # may also be a value that ``feed`` sends
        return list(_struct(value, ErrorReply, name, "$"))
    if cls is None:
        if op.cls not in VALUES or isinstance(
            value, Payload
        ):  # any value, or serialized as a whole
            return []
        return _of_type(value, VALUES[op.cls], name, "$")
    if not isinstance(value, dict):
        return [Violation("wrong type", name, "$", f"expected {cls.__name__}, got {_kind(value)}")]
    return list(_struct(value, cls, name, "$"))


def _of_type(value: Any, hint: Any, op: str, path: str) -> list[Violation]:
    """Return the violation if `value` is not of type `hint`, else an empty list."""
    try:
        msgspec.convert(value, hint, dec_hook=keep_payload, builtin_types=_BINARY)
    except READ_ERRORS as error:
        text, _, inner = str(error).partition(" - at `$")
        return [Violation("wrong type", op, path + inner.rstrip("`"), text or repr(error))]
    return []


def _struct(
    raw: dict[Any, Any], cls: type[msgspec.Struct], op: str, path: str
) -> Iterator[Violation]:
    """Yield violations in the fields of a message, a reply, or a struct in a list."""
    fields = _FIELDS[cls]
    extra = getattr(cls, "EXTRA_FIELD", None)
    for name, value in raw.items():
        field = fields.get(name) if isinstance(name, str) and name != extra else None
        where = f"{path}.{name}"
        if field is None:
            if extra is None:
                yield Violation("unknown field", op, where, _kind(value))
            continue
        yield from (mistyped := _of_type(value, field.type, op, where))
        inner: Any = next(iter(getattr(field.type, "__args__", ())), None)
        if inner in _FIELDS and not mistyped:
            for position, x in enumerate(value):
                yield from _struct(x, inner, op, f"{where}[{position}]")
    for name, field in fields.items():
        if field.required and name not in raw:
            yield Violation("missing field", op, f"{path}.{name}", "is required")


def _keys(raw: dict[str, Any], cls: type[Message], op: str) -> Iterator[Violation]:
    """Yield violations in fields that hold task keys."""
    fields = MESSAGE_FIELDS[cls]
    name = fields.key_field
    if name in raw and (raw[name] is not None or fields.needs_key) and not is_key(raw[name]):
        yield Violation("wrong type", op, f"$.{name}", f"{_kind(raw[name])} is not a key")
    for name in (*fields.keys_fields, *fields.key_maps):
        for key in raw.get(name) or ():
            if not is_key(key):
                yield Violation("wrong type", op, f"$.{name}[...]", f"{_kind(key)} is not a key")


def is_key(value: Any) -> bool:
    """Return whether `value` may be a task key."""
    if isinstance(value, tuple):
        return all(map(is_key, value))
    return isinstance(value, _KEY_TYPES)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
