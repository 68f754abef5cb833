"""Ordered sets in little memory: a tuple while small, a dict when grown.

Most tasks have one or two dependents, one replica and one client: a tuple of 48 bytes is enough
where a set takes 216. Both forms iterate in insertion order and support ``in``, ``len`` and truth,
so only the two functions here distinguish them. Members compare by identity.
"""

from __future__ import annotations

from typing import Final, TypeVar

T = TypeVar("T")

#: Largest set stored as a tuple, which is rebuilt on each change.
TUPLE_MAX: Final = 4

SmallSet = tuple[T, ...] | dict[T, None]


def with_item(items: SmallSet[T], item: T) -> SmallSet[T]:
    """Return `items` with `item` added.

    The result replaces `items`, which may be changed in place.
    """
    if type(items) is dict:
        items[item] = None
        return items
    if item in items:
        return items
    if len(items) < TUPLE_MAX:
        return (*items, item)
    grown = dict.fromkeys(items)
    grown[item] = None
    return grown


def without_item(items: SmallSet[T], item: T) -> SmallSet[T]:
    """Return `items` with `item` removed.

    The result replaces `items`, which may be changed in place.
    """
    if type(items) is dict:
        items.pop(item, None)
        return items or ()
    if len(items) == 1:
        return () if items[0] is item else items  # type: ignore[index]
    if len(items) == 2:
        first, second = items
        if first is item:
            return (second,)
        return (first,) if second is item else items
    return tuple([x for x in items if x is not item])
