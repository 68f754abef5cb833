"""A mapping that is sent without being hashed: its keys and values in one list.

In msgpack, an array ``k, v, k, v, ...`` and a map of the same items differ only in their first
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

_ENCODER = msgspec.msgpack.Encoder()
#: First byte of a msgpack array -> offset of its first member; smaller arrays have one byte.
_HEADS = {0xDC: 3, 0xDD: 5}
_MAP32 = b"\xdf"


class FlatMap(Mapping[Any, Any]):
    """A mapping to be sent. Looking up a key builds a dict of all items.

    It is not a dataclass, because msgspec would encode its field instead of calling ``enc_hook``.

    Attributes:
        flat: key, value, key, value, ...; keys are unique.
    """

    __slots__ = ("flat",)

    def __init__(self, flat: list[Any]) -> None:
        self.flat = flat

    @classmethod
    def of(cls, keys: Sequence[Any], values: Sequence[Any]) -> FlatMap:
        """Return a map of `keys` to `values`, sequences of the same length."""
        flat: list[Any] = [None] * (2 * len(keys))
        flat[::2] = keys
        flat[1::2] = values
        return cls(flat)

    def packed(self) -> bytes:
        """Return the map as msgpack, or raise msgspec's error for a value that it cannot encode."""
        array = _ENCODER.encode(self.flat)
        members = memoryview(array)[_HEADS.get(array[0], 1) :]
        return b"".join((_MAP32, (len(self.flat) // 2).to_bytes(4, "big"), members))

    def as_dict(self) -> dict[Any, Any]:
        """Return the map as a dict."""
        return dict(zip(self.flat[::2], self.flat[1::2], strict=True))

    def items(self) -> Any:
        """Return the (key, value) pairs."""
        return self.as_dict().items()

    def values(self) -> Any:
        """Return the values, in order."""
        return self.flat[1::2]

    def __getitem__(self, key: Any) -> Any:
        return self.as_dict()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.flat[::2])

    def __len__(self) -> int:
        return len(self.flat) // 2

    def __repr__(self) -> str:
        return f"<FlatMap of {len(self)}>"
