"""Ordered sets that cost what they hold: a tuple while small, a dict when grown.

Most tasks have one or two dependents, one replica, one client: a tuple of 48 bytes serves where a set takes 216.
Both forms iterate in insertion order, answer ``in``, ``len`` and truth alike, so that only the two
functions here need to know which it is. Members compare by identity.

Must not know: what the members are.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

#: Up to here a tuple is rebuilt on change; beyond, a dict is kept.
TUPLE_MAX = 4

SmallSet = tuple[T, ...] | dict[T, None]


def with_item(items: SmallSet[T], item: T) -> SmallSet[T]:
    """``items`` and ``item``; the result replaces ``items``, which may have been changed in place."""
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
    """``items`` less ``item``; the result replaces ``items``, which may have been changed in place."""
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
