"""A bounded history that uses little memory: all but its latest members are stored compressed.

Histories grow for hours by a few small objects at a time, allocated between those of running
tasks. Uncompressed they take ten times the memory and keep whole arenas of Python's allocator from
being returned.
"""

from __future__ import annotations

import marshal
import zlib
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Members compressed together.
PART_LENGTH = 128
#: Compression level of ``zlib``: the fastest. Logged values are similar and shrink to a tenth.
LEVEL = 1
#: Values nested deeper, or recursively, are not compressed.
DEPTH_MAX = 32

_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))
_ROWS = frozenset((tuple, list, set, frozenset))


class History(Generic[T]):
    """The latest members in order of arrival; a full history drops the oldest.

    Plain values (numbers, strings, bytes, and containers of them) come back equal, not identical.
    Other values keep their part of the history uncompressed.
    """

    __slots__ = ("_latest", "_left_out", "_length", "_maxlen", "_parts")

    def __init__(self, maxlen: int | None = None) -> None:
        """Keep `maxlen` members, or all if None."""
        self._maxlen = maxlen
        self._parts: deque[bytes | list[T]] = deque()
        self._left_out = 0  # members dropped from the oldest part
        self._latest: list[T] = []
        self._length = 0

    def append(self, member: T) -> None:
        """Append `member`; drop the oldest if the history is full."""
        self._latest.append(member)
        self._length += 1
        if self._maxlen is not None and self._length > self._maxlen:
            self._drop_oldest()
        if len(self._latest) == PART_LENGTH:
            self._parts.append(_packed(self._latest))
            self._latest = []

    def latest(self, count: int) -> list[T]:
        """Return the last members, at most `count`, oldest first."""
        members = list(islice(reversed(self), max(0, count)))
        members.reverse()
        return members

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        left_out = self._left_out
        for part in list(self._parts):
            yield from _unpacked(part)[left_out:]
            left_out = 0
        yield from list(self._latest)

    def __reversed__(self) -> Iterator[T]:
        left_out, parts = self._left_out, list(self._parts)
        yield from self._latest[::-1]
        while parts:
            members = _unpacked(parts.pop())
            yield from reversed(members if parts else members[left_out:])

    def _drop_oldest(self) -> None:
        self._length -= 1
        if not self._parts:
            del self._latest[0]
            return
        self._left_out += 1
        if self._left_out == PART_LENGTH:
            self._parts.popleft()
            self._left_out = 0


def _packed(part: list[T]) -> bytes | list[T]:
    return zlib.compress(marshal.dumps(part), LEVEL) if _is_plain(part) else part


def _unpacked(part: bytes | list[T]) -> list[T]:
    if isinstance(part, list):
        return part
    members: list[T] = marshal.loads(zlib.decompress(part))
    return members


def _is_plain(value: Any, depth: int = DEPTH_MAX) -> bool:
    """Return whether ``marshal`` restores `value` equal.

    It turns any object with a buffer into bytes.
    """
    kind = type(value)
    if kind in _ATOMS:
        return True
    if not depth:
        return False
    if kind in _ROWS:
        return all(_is_plain(member, depth - 1) for member in value)
    if kind is not dict:
        return False
    return all(_is_plain(k, depth - 1) and _is_plain(v, depth - 1) for k, v in value.items())
