"""Values of a journal: stimuli and outputs as bytes that do not depend on the process.

Messages and dataclasses are written as class name and fields, so the format version changes when
classes or their modules are renamed. Tuples remain tuples. Bytes longer than ``BYTES_MAX_NBYTES``
(payload frames, buffers) are written as hash and length and are read as ``StubBytes``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
from collections.abc import Mapping
from typing import Any

import msgpack
import msgspec
from paceline.protocol.payload import Payload

#: Longer byte strings are written as hash and length, because the core never reads their content.
BYTES_MAX_NBYTES = 4096
#: Numbers of msgpack extension types.
EXT_TUPLE = 1
EXT_SET = 2
EXT_OBJECT = 3
EXT_PAYLOAD = 4
EXT_STUB = 5
EXT_BIG_INT = 6
EXT_OTHER = 7
EXT_FLAT = 8

#: Extension types are nested up to this depth; each level takes about 32 kB of the C stack when it
#: is read.
EXT_DEPTH_MAX = 16
#: Kinds of nodes in a flat value.
_LEAF, _LIST, _TUPLE, _DICT = range(4)

#: Modules whose classes a journal may name.
MODULES = (
    "paceline.protocol.messages",
    "paceline.scheduler.core.stimuli",
    "paceline.scheduler.core.task_policy",
    "paceline.scheduler.extensions",
)


class JournalError(Exception):
    """A file is not a journal of this format."""


class StubBytes(bytes):
    """Replaces bytes that were too long for the journal: contains their hash and length."""

    @classmethod
    def of(cls, data: Any) -> StubBytes:
        """Return the stub for ``data``."""
        digest = hashlib.blake2b(data, digest_size=16).digest()
        return cls(b"journal-stub:" + digest + len(data).to_bytes(8, "little"))


def _field_names(cls: type) -> tuple[str, ...]:
    """Return the names of the fields of a message class or dataclass, in order."""
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return tuple(getattr(cls, "__struct_fields__", ()))


class ValueCodec:
    """Packs stimuli and outputs to bytes that do not depend on the process, and unpacks them."""

    def __init__(self) -> None:
        self._ext_depth = 0

    def pack(self, value: Any) -> bytes:
        """Return the bytes of ``value``, made of plain values, messages, dataclasses and payloads.

        Values may be nested to any depth.
        """
        if self._ext_depth < EXT_DEPTH_MAX:
            self._ext_depth += 1
            try:
                return self._packed(value)
            except (RecursionError, ValueError):  # nested too deeply for msgpack
                pass
            finally:
                self._ext_depth -= 1
        return self._packed(msgpack.ExtType(EXT_FLAT, self._packed(flatten(value))))

    def unpack(self, data: bytes) -> Any:
        """Return the value of which ``pack`` returned ``data``.

        Raises:
            ValueError: ``data`` was not made by ``pack``.
        """
        return msgpack.unpackb(
            data, ext_hook=self._ext, use_list=True, raw=False, strict_map_key=False
        )

    def _default(self, value: Any) -> Any:
        kind = type(value)
        if kind is tuple:
            return msgpack.ExtType(EXT_TUPLE, self.pack(list(value)))
        if kind is Payload:
            frames = [_shorten(frame) for frame in value.frames]
            return msgpack.ExtType(
                EXT_PAYLOAD, self.pack([value.kind, _shorten(value.header), frames])
            )
        if isinstance(value, StubBytes):
            return msgpack.ExtType(EXT_STUB, bytes(value))
        if kind is memoryview or kind is bytearray:
            return _shorten(value)
        if isinstance(value, set | frozenset):
            return msgpack.ExtType(EXT_SET, self.pack(sorted(value, key=repr)))
        if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(kind):
            name = f"{kind.__module__}:{kind.__qualname__}"
            fields = [_shorten_field(getattr(value, n)) for n in _field_names(kind)]
            return msgpack.ExtType(EXT_OBJECT, self.pack([name, fields]))
        if isinstance(value, int):
            return msgpack.ExtType(EXT_BIG_INT, str(int(value)).encode())
        if isinstance(value, str):
            return str(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, Mapping):
            return dict(value.items())
        if isinstance(value, list | tuple):
            return list(value)
        return msgpack.ExtType(EXT_OTHER, f"{kind.__module__}.{kind.__qualname__}".encode())

    def _packed(self, value: Any) -> bytes:
        packed: bytes = msgpack.packb(
            value, default=self._default, strict_types=True, use_bin_type=True
        )
        return packed

    def _ext(self, code: int, data: bytes) -> Any:
        if code == EXT_TUPLE:
            return tuple(self.unpack(data))
        if code == EXT_SET:
            return set(self.unpack(data))
        if code == EXT_PAYLOAD:
            kind, header, frames = self.unpack(data)
            return Payload(kind, header, tuple(frames))
        if code == EXT_OBJECT:
            name, values = self.unpack(data)
            cls = _find_class(name)
            return cls(**dict(zip(_field_names(cls), values)))
        if code == EXT_STUB:
            return StubBytes(data)
        if code == EXT_BIG_INT:
            return int(data)
        if code == EXT_FLAT:
            return unflatten(self.unpack(data))
        return f"<{data.decode()}>"


def flatten(value: Any) -> list[Any]:
    """Return lists, tuples and dicts within `value` as one flat list, without recursion.

    The list has two items per node: its kind, and the leaf or the number of children. Children
    precede their parent.
    """
    flat: list[Any] = []
    pending = [value]
    while pending:
        node = pending.pop()
        kind = type(node)
        if kind is list or kind is tuple:
            flat += (len(node), _LIST if kind is list else _TUPLE)
            pending += node
        elif kind is dict:
            flat += (len(node), _DICT)
            for item in node.items():
                pending += item
        else:
            flat += (node, _LEAF)
    flat.reverse()
    return flat


def unflatten(flat: list[Any]) -> Any:
    """Return the value that ``flatten`` was called with."""
    done: list[Any] = []
    for kind, what in zip(flat[::2], flat[1::2], strict=True):
        if kind == _LEAF:
            done.append(what)
            continue
        start = len(done) - (2 * what if kind == _DICT else what)
        children = done[start:]
        del done[start:]
        if kind == _DICT:
            done.append(dict(zip(children[::2], children[1::2], strict=True)))
        else:
            done.append(tuple(children) if kind == _TUPLE else children)
    (value,) = done
    return value


def _shorten(data: Any) -> Any:
    """Return ``data`` as bytes, or a stub if it is long."""
    if isinstance(data, StubBytes):
        return data
    if len(data) > BYTES_MAX_NBYTES:
        return StubBytes.of(data)
    return bytes(data)


def _shorten_field(value: Any) -> Any:
    if type(value) is bytes and len(value) > BYTES_MAX_NBYTES:
        return StubBytes.of(value)
    if type(value) is list and value and type(value[0]) is bytes:
        return [_shorten(v) if isinstance(v, bytes | memoryview) else v for v in value]
    return value


def _find_class(name: str) -> type:
    module_name, _, class_name = name.partition(":")
    if not module_name.startswith(MODULES) or "." in class_name:
        raise JournalError(f"the class {name!r} is not allowed in a journal")
    found = getattr(importlib.import_module(module_name), class_name, None)
    if not isinstance(found, type):
        raise JournalError(f"this release has no class {name!r}")
    return found
