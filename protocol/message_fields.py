"""Which fields of a message class hold keys, payloads or untyped values, derived from their types.

The codec converts and checks fields accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec
from paceline.protocol.messages.base import Key, Keys, Message

from .catalogue import TABLES
from .payload import Payload

#: Where a field's value is: in frame 0, in separate frames that a placeholder refers to, or either
#: (an untyped value that may contain placeholders).
Place = Literal["inline", "offloaded", "either"]


class MessageFields:
    """The fields of one message class, by what they hold.

    Attributes:
        names: names of all fields on the wire.
        key_field: name of the field that holds a key, or None.
        needs_key: whether that field must not be None.
        keys_fields: fields that hold a list of keys.
        key_maps: fields that hold a dict with keys as its keys.
        untyped_fields: fields that hold any value. Arrays in it become tuples, serialized values
            become ``Payload`` objects.
        payload_fields: fields that hold a ``Payload`` or None.
        is_heavy: whether there are ``keys_fields`` or ``payload_fields``.
    """

    __slots__ = (
        "is_heavy", "key_field", "key_maps", "keys_fields", "names", "needs_key", "payload_fields",
        "untyped_fields",
    )  # fmt: skip

    def __init__(self, cls: type[Message]) -> None:
        fields = msgspec.structs.fields(cls)

        def with_type(*hints: Any) -> tuple[str, ...]:
            return tuple(field.name for field in fields if field.type in hints)

        self.names = frozenset(field.encode_name for field in fields)
        keys = with_type(Key)
        if len(keys) > 1:
            raise ValueError(f"{cls.__name__} has more than one key")
        self.key_field = keys[0] if keys else None
        self.needs_key = any(field.required for field in fields if field.name == self.key_field)
        self.keys_fields = with_type(list[Key], Keys)
        self.key_maps = tuple(field.name for field in fields if _is_key_map(field.type))
        self.untyped_fields = with_type(Any, dict[Any, Any] | None)
        self.payload_fields = with_type(Payload, Payload | None)
        self.is_heavy = bool(self.keys_fields or self.payload_fields)


def field_places(cls: type[msgspec.Struct]) -> dict[str, Place]:
    """Return where the value of each field of `cls` is, by its name on the wire."""
    return {field.encode_name: _place(field.type) for field in msgspec.structs.fields(cls)}


def _place(hint: Any) -> Place:
    if hint is Payload or hint == Payload | None:
        return "offloaded"
    return "either" if _holds_anything(hint) else "inline"


def _holds_anything(hint: Any) -> bool:
    """Return whether a value of type `hint` may contain a payload."""
    if hint is Any or hint is Payload:
        return True
    args = getattr(hint, "__args__", ())
    if getattr(hint, "__origin__", None) is dict:  # keys are never serialized values
        args = args[1:]
    return any(_holds_anything(x) for x in args)


def _is_key_map(hint: Any) -> bool:
    return getattr(hint, "__origin__", None) is dict and hint.__args__[0] == Key


#: Message class -> its fields.
MESSAGE_FIELDS: Final[Mapping[type, MessageFields]] = MappingProxyType(
    {op.cls: MessageFields(op.cls) for table in TABLES.values() for op in table.values()}
)
