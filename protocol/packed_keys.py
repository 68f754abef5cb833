"""Lists of keys that are decoded when they are first iterated over.

The event loop needs the keys of a submitted graph only in rare cases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from .keys import Key, normalize_key

#: Start of a set as stock encodes it, up to the array of its elements.
_SET_START = b"\x82\xa7__Set__\xc3\xa7as-list"
#: First byte of an array with a length of 2 or 4 bytes -> number of these bytes.
_LENGTH_NBYTES = {0xDC: 2, 0xDD: 4}
_SET = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_ANY = msgspec.msgpack.Decoder()


def decode_or(raw: msgspec.Raw, default: Any) -> Any:
    """Return the decoded `raw`, or `default` if it cannot be decoded.

    A text may not be UTF-8, for example. No task has such a key.
    """
    try:
        return _ANY.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, RecursionError):
        return default


class PackedKeys(Collection[Key]):
    """Keys in msgpack, decoded once (see ``decode_or``). Their number is known without decoding.

    Args:
        raw: an array, or a set as stock encodes it.

    Attributes:
        raw: the array.

    Raises:
        KeyError, TypeError, ValueError, msgspec.MsgspecError: `raw` is neither.
    """

    __slots__ = ("_keys", "_n", "raw")

    def __init__(self, raw: msgspec.Raw) -> None:
        view = memoryview(raw)
        if view[: len(_SET_START)] == _SET_START:
            view = view[len(_SET_START) :]
        elif view[0] not in _LENGTH_NBYTES:
            view = memoryview(_SET.decode(raw)["as-list"])
        nbytes = _LENGTH_NBYTES.get(view[0])
        if nbytes is None:
            raise ValueError("not a long array")
        self.raw = msgspec.Raw(view)
        self._n = int.from_bytes(view[1 : 1 + nbytes], "big")
        self._keys: list[Key] | None = None

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Key]:
        if self._keys is None:
            self._keys = [normalize_key(key) for key in decode_or(self.raw, [])]
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return any(each == key for each in self)
