"""Descriptions of operations as text, for ``paceline messages``."""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from paceline.protocol.catalogue import STREAM_DIRECTIONS, TABLES, Direction, Op
from paceline.protocol.message_fields import field_places
from paceline.protocol.messages.base import COMMON_FIELDS


def list_ops(direction: str | None = None) -> Iterator[str]:
    """Yield lines with each op and the first sentence of its description, by table."""
    for name, table in _tables(direction).items():
        kind = "stream" if name in STREAM_DIRECTIONS else "requests and their replies"
        yield f"{name} ({kind}, {len(table)} ops)"
        for op in sorted(table.values(), key=lambda op: op.name):
            yield f"  {op.name:<32} {_sentence(op.cls)}"
        yield ""


def describe_ops(pattern: str, direction: str | None = None) -> Iterator[str]:
    """Yield the description of each op that matches; raise LookupError if none does."""
    found = [
        op
        for table in _tables(direction).values()
        for op in table.values()
        if fnmatch.fnmatchcase(op.name, pattern)
    ]
    if not found:
        names = sorted({name for table in TABLES.values() for name in table})
        near = difflib.get_close_matches(pattern, names, 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise LookupError(f"There is no op {pattern!r}{hint}")
    for op in found:
        yield from _describe(op)


def _tables(direction: str | None) -> Mapping[Direction, Mapping[str, Op]]:
    """Return the table with the name `direction`, or all; raise LookupError if there is none."""
    found = {name: ops for name, ops in TABLES.items() if direction in (None, name)}
    if not found:
        raise LookupError(f"There is no table {direction!r}. The tables are {', '.join(TABLES)}")
    return found


def _describe(op: Op) -> Iterator[str]:
    yield f"{op.name}  ({op.direction}; class {op.cls.__name__})"
    for text in (inspect.getdoc(op.cls) or "").splitlines():
        yield f"    {text}".rstrip()
    yield ""
    yield from _fields(op.cls)
    if op.reply is not None:
        yield f"    Reply: {op.reply.__name__}"
        yield from _fields(op.reply)
    yield ""


def _fields(cls: type[msgspec.Struct]) -> Iterator[str]:
    places = field_places(cls)
    text = inspect.getdoc(cls) or ""
    for field in msgspec.structs.fields(cls):
        default = "required"
        if field.default is not msgspec.NODEFAULT:
            default = f"default {field.default!r}"
        elif field.default_factory is not msgspec.NODEFAULT:
            default = f"default {field.default_factory()!r}"
        name = field.encode_name
        about = "" if f"{name}:" in text else COMMON_FIELDS.get(name, "")
        kind = f"{type_name(field.type):<36} {default}, {places[name]}"
        yield f"    {name:<24} {kind}  {about}".rstrip()


def type_name(hint: Any) -> str:
    """Return a type as it is written in annotations."""
    if hint is Any:
        return "any"
    if hint is type(None):
        return "None"
    if hasattr(hint, "__metadata__"):  # Annotated
        return type_name(hint.__origin__)
    args = getattr(hint, "__args__", ())
    if isinstance(hint, types.UnionType) or str(getattr(hint, "__origin__", "")) == "typing.Union":
        return " | ".join(map(type_name, args))
    origin = getattr(hint, "__origin__", None)
    if origin is not None and args:
        inner = ", ".join("..." if x is Ellipsis else type_name(x) for x in args)
        return f"{origin.__name__}[{inner}]"
    return getattr(hint, "__name__", str(hint))


def _sentence(cls: type[msgspec.Struct]) -> str:
    first = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
    return first.split(". ")[0].rstrip(".") + "."
