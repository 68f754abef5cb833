"""A map too large to be worth hashing: its keys and values one after the other, as they go out.

msgpack says an array of ``k, v, k, v, ...`` and a map of the same with the same bytes but for those in front.

Must not know: what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

_ENCODER = msgspec.msgpack.Encoder()
#: First byte of a msgpack array -> size of what is in front of its first member; smaller arrays have one byte.
_HEADS = {0xDC: 3, 0xDD: 5}
_MAP32 = b"\xdf"


class FlatMap(Mapping[Any, Any]):
    """A map to be sent. Whoever looks a key up in it pays for the whole of it.

    It is no dataclass on purpose: msgspec would write its field, and not ask what to write.

    Attributes:
        flat: key, value, key, value, ...; no key twice.
    """

    __slots__ = ("flat",)

    def __init__(self, flat: list[Any]) -> None:
        self.flat = flat

    @classmethod
    def of(cls, keys: Sequence[Any], values: Sequence[Any]) -> FlatMap:
        """From keys and their values, equally many."""
        flat: list[Any] = [None] * (2 * len(keys))
        flat[::2] = keys
        flat[1::2] = values
        return cls(flat)

    def packed(self) -> bytes:
        """As msgpack. Raises what msgspec raises for what it cannot say."""
        array = _ENCODER.encode(self.flat)
        members = memoryview(array)[_HEADS.get(array[0], 1) :]
        return b"".join((_MAP32, (len(self.flat) // 2).to_bytes(4, "big"), members))

    def as_dict(self) -> dict[Any, Any]:
        """The same to look things up in."""
        return dict(zip(self.flat[::2], self.flat[1::2], strict=True))

    def items(self) -> Any:
        """Pairs, at once."""
        return self.as_dict().items()

    def values(self) -> Any:
        """Values, in order."""
        return self.flat[1::2]

    def __getitem__(self, key: Any) -> Any:
        return self.as_dict()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.flat[::2])

    def __len__(self) -> int:
        return len(self.flat) // 2

    def __repr__(self) -> str:
        return f"<FlatMap of {len(self)}>"
