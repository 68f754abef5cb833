"""Generate the JSON Schema of every message, in the form that ``paceline decode`` prints."""

from __future__ import annotations

import inspect
import json
from typing import Any

import msgspec
from classes import described
from paceline.protocol.catalogue import TABLES
from paceline.protocol.payload import Payload
from paceline.protocol.reply_values import VALUES


def schema() -> str:
    """Return the schema as text."""
    classes: dict[str, type[msgspec.Struct]] = {}
    ops: dict[str, Any] = {}
    replies: dict[str, Any] = {}
    for direction, table in TABLES.items():
        for op in table.values():
            classes[op.cls.__name__] = op.cls
            ops.setdefault(direction, {})[op.name] = {"$ref": f"#/$defs/{op.cls.__name__}"}
            if op.reply is not None:
                classes[op.reply.__name__] = op.reply
                replies.setdefault(direction, {})[op.name] = {
                    "$ref": f"#/$defs/{op.reply.__name__}"
                }
            elif op.cls in VALUES:
                replies.setdefault(direction, {})[op.name] = msgspec.json.schema(VALUES[op.cls])
    _, components = msgspec.json.schema_components(
        classes.values(), schema_hook=_hook, ref_template="#/$defs/{name}"
    )
    for component in components.values():
        if text := component.get("description"):
            component["description"] = inspect.cleandoc(text)  # Python 3.13 has done so
    for name, cls in classes.items():
        _describe(components[name], cls)
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Messages of Dask's protocol, distributed 2026.8.0",
        "description": "Generated from paceline.protocol.catalogue. Arrays that are keys, "
        "and values marked with $bytes, $map and similar names, are described in "
        "docs/protocol.md, 'Messages as JSON'.",
        "ops": ops,
        "replies": replies,
        "$defs": dict(sorted(components.items())),
    }
    return json.dumps(document, indent=1, default=_plain) + "\n"


def _hook(kind: type) -> dict[str, Any]:
    """Return the schema of a type that msgspec does not know.

    Raises:
        NotImplementedError: the type is unknown here too; msgspec expects this error from hooks.
    """
    if kind is Payload:
        return {"description": "A serialized value.", "type": "object"}
    raise NotImplementedError(f"no schema for {kind}")


def _describe(component: dict[str, Any], cls: type[msgspec.Struct]) -> None:
    about = described(cls)
    component["description"] = about.text
    for field in about.fields:
        if field.meaning and field.name in component.get("properties", {}):
            component["properties"][field.name]["description"] = field.meaning


def _plain(value: Any) -> Any:
    return {"$bytes": value.hex()} if isinstance(value, bytes) else repr(value)
