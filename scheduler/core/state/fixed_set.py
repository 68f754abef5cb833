"""A set that iterates in insertion order. mypyc does not compile subclasses of built-in sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class FixedSet(frozenset[T]):
    """A frozenset that iterates in insertion order.

    Serialized output then does not depend on the hash seed.
    """

    _order: tuple[T, ...]

    def __new__(cls, items: Iterable[T]) -> FixedSet[T]:
        """Create a set of `items`, which may contain duplicates."""
        order = tuple(dict.fromkeys(items))
        made = super().__new__(cls, order)
        made._order = order
        return made

    def __iter__(self) -> Iterator[T]:
        return iter(self._order)

    def __reduce__(self) -> tuple[type[frozenset[T]], tuple[tuple[T, ...]]]:
        return frozenset, (self._order,)
