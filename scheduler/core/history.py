"""A history of bounded length that takes little room: all but its latest members are kept packed.

Histories fill up for hours, a few small objects at a time, between those of the work that goes on: unpacked they take ten times the
room, and keep whole arenas of Python's allocator from being given back.

Must not know: what its members are.
"""

from __future__ import annotations

import marshal
import zlib
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: So many members are packed together.
PART_LENGTH = 128
#: Of ``zlib``: the fastest. What is logged is much alike, and shrinks to a tenth.
LEVEL = 1
#: What is nested deeper, or within itself, stays as it is.
DEPTH_MAX = 32

_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))
_ROWS = frozenset((tuple, list, set, frozenset))


class History(Generic[T]):
    """Members in the order they came; the oldest leave when it is full.

    Members that are plain values (numbers, texts, bytes, and containers of them) come back equal, not identical; any
    other keeps its part of the history as it is.
    """

    __slots__ = ("_latest", "_left_out", "_length", "_maxlen", "_parts")

    def __init__(self, maxlen: int | None = None) -> None:
        """``maxlen``: members kept; None for all."""
        self._maxlen = maxlen
        self._parts: deque[bytes | list[T]] = deque()
        self._left_out = 0  # of the oldest part, so many have left
        self._latest: list[T] = []
        self._length = 0

    def append(self, member: T) -> None:
        """One more; of a full history the oldest leaves."""
        self._latest.append(member)
        self._length += 1
        if self._maxlen is not None and self._length > self._maxlen:
            self._drop_oldest()
        if len(self._latest) == PART_LENGTH:
            self._parts.append(_packed(self._latest))
            self._latest = []

    def latest(self, count: int) -> list[T]:
        """The last ``count`` members, oldest first; fewer where there are not so many."""
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
    """Whether ``marshal`` gives back the same: it takes whatever has a buffer for bytes."""
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
