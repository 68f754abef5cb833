"""Parse the docstrings of messages, and describe their fields and types."""

from __future__ import annotations

import inspect
import re
import types
from dataclasses import dataclass
from typing import Any

import msgspec
from paceline.protocol.message_fields import MESSAGE_FIELDS, MessageFields, field_places
from paceline.protocol.messages.base import COMMON_FIELDS, Message, Request
from paceline.protocol.payload import Payload


@dataclass(frozen=True)
class Field:
    """A field of a message.

    Attributes:
        name: the name in the message.
        type: the type, as text.
        default: the default as JSON-like text; None if the field is required.
        place: inline, offloaded or either.
        meaning: the description in the docstring, or in ``COMMON_FIELDS``.
    """

    name: str
    type: str
    default: str | None
    place: str
    meaning: str


@dataclass(frozen=True)
class Described:
    """The description of a class of messages or replies.

    Attributes:
        text: its purpose, without the parts below.
        returns: what a request returns, or "".
        fields: its fields, without those of every request.
    """

    text: str
    returns: str
    fields: tuple[Field, ...]


def described(cls: type[msgspec.Struct]) -> Described:
    """Return the description of `cls`."""
    text, _ = _split(inspect.getdoc(cls) or "")
    meanings = dict(COMMON_FIELDS)
    for base in reversed(cls.__mro__):
        meanings.update(_meanings(_split(inspect.cleandoc(base.__dict__.get("__doc__") or ""))[1]))
    text, _, returns = text.partition("Returns:")
    common = (
        {f.name for f in msgspec.structs.fields(Request)}
        if issubclass(cls, Request) and cls is not Request
        else set()
    )
    places = field_places(cls)
    fields = tuple(
        Field(
            f.encode_name, kind := type_in_words(cls, f), default_of(f), places[f.encode_name],
            _without_none(meanings.get(f.name, ""), kind),
        )
        for f in msgspec.structs.fields(cls)
        if f.name not in common
    )  # fmt: skip
    return Described(_joined(text), _joined(returns), fields)


def undocumented(cls: type[msgspec.Struct]) -> list[str]:
    """Return the names of the fields of `cls` without a description."""
    return [field.name for field in described(cls).fields if not field.meaning]


def _without_none(meaning: str, kind: str) -> str:
    """Remove what None means from `meaning` if the type `kind` does not include it."""
    text, found, _ = meaning.partition("; None for ")
    return text + "." if found and "nil" not in kind and kind != "any value" else meaning


def _split(doc: str) -> tuple[str, str]:
    text, _, attributes = doc.partition("\nAttributes:\n")
    return text, attributes


def _meanings(attributes: str) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    for line in attributes.splitlines():
        match = re.match(r"^ {4}([A-Za-z_][\w, ]*): (.*)$", line)
        if match:
            names = [name.strip() for name in match[1].split(",")]
            found.update(dict.fromkeys(names, match[2]))
        elif line.startswith(" " * 5):
            for name in names:
                found[name] += " " + line.strip()
    return found


def _joined(text: str) -> str:
    return "\n\n".join(
        " ".join(part.split()) for part in text.strip().split("\n\n") if part.strip()
    )


def default_of(field: Any) -> str | None:
    """Return the default of `field` as text, or None if the field is required."""
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return None
    if isinstance(value, msgspec.Struct):
        return type(value).__name__
    words = {None: "nil", True: "true", False: "false"}
    return (
        words[value] if value is None or isinstance(value, bool) else repr(value).replace("'", '"')
    )


def type_in_words(cls: Any, field: Any) -> str:
    """Return the type of `field` of `cls` as text."""
    if issubclass(cls, Message):
        fields = MESSAGE_FIELDS[cls] if cls in MESSAGE_FIELDS else MessageFields(cls)
        if field.name == fields.key_field:
            return "key"
        if field.name in fields.keys_fields:
            return "array of keys" + (" or nil" if "None" in str(field.type) else "")
        if field.name in fields.key_maps:
            inner = getattr(field.type, "__args__", (Any, Any))
            value = inner[1] if len(inner) > 1 and inner[1] is not type(None) else Any
            return f"map of key to {words(value)}"
    return words(field.type)


_NAMES = {
    "str": "string",
    "int": "integer",
    "float": "float",
    "bool": "boolean",
    "bytes": "bytes",
    "NoneType": "nil",
    "dict": "map",
    "list": "array",
    "tuple": "array",
    "set": "set",
    "frozenset": "set",
}


def words(hint: Any) -> str:
    """Return a type hint as text."""
    if hint is Any:
        return "any value"
    if hint is None:
        return "nil"
    if hint is Payload:
        return "serialized value"
    if hasattr(hint, "__metadata__"):  # Annotated
        return words(hint.__origin__)
    args = getattr(hint, "__args__", ())
    if isinstance(hint, types.UnionType) or str(getattr(hint, "__origin__", "")) == "typing.Union":
        return " or ".join(words(arg) for arg in args)
    origin = getattr(hint, "__origin__", None)
    if origin is not None and args:
        name = getattr(origin, "__name__", str(origin))
        if name == "dict":
            return f"map of {words(args[0])} to {words(args[1])}"
        if name == "Literal":
            return " or ".join(f'"{arg}"' for arg in args)
        return f"{_NAMES.get(name, name)} of " + ", ".join(
            words(a) for a in args if a is not Ellipsis
        )
    name = getattr(hint, "__name__", str(hint))
    return _NAMES.get(name, name)
