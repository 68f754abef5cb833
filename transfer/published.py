"""Values that a worker has stored in backends, by key.

Each value is stored once and freed with its key.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from .backend import Backend, Ref
from .encoding import Layout

#: Values of one worker that are kept in backends; the least recently used are dropped first.
HELD_MAX = 65_536


@dataclass(eq=False)
class PublishedValue:
    """A value stored in a backend, under `ref`.

    Attributes:
        value_id: ``id`` of the worker's object; another object under the same key is another value.
        owned: whether this worker has to delete it; values fetched from others are only passed on.
        users: replies that name it and are not acknowledged yet; it is kept until they are.
        is_dropped: whether the key was freed, so that the value ends with its last user.
        watch: weak reference to the mapping that backs the worker's own object, if any; the value
            ends with the mapping.
    """

    backend: Backend
    ref: Ref
    layout: Layout
    value_id: int
    owned: bool = True
    users: int = 0
    is_dropped: bool = False
    watch: Any = None

    def stub(self) -> dict[str, Any]:
        """Return what the receiver needs to fetch and decode the value."""
        return {
            "by": self.backend.name,
            "ref": self.ref,
            "size": self.layout.size_nbytes,
            "pickle": self.layout.pickle_nbytes,
            "buffers": list(self.layout.buffer_sizes),
        }


class PublishedValues:
    """Published values by backend and key. Used from the event loop.

    ``end`` is called with each value that is to be deleted, from the thread in which it ended.
    """

    def __init__(self, end: Callable[[PublishedValue], None]) -> None:
        self._end = end
        self._held: OrderedDict[tuple[str, Hashable], PublishedValue] = OrderedDict()
        self._names: dict[str, None] = {}
        # a mapping may be garbage collected in any thread, while this object is being changed
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._held)

    def find(self, name: str, key: Hashable, value: Any) -> PublishedValue | None:
        """Return the published form of ``value`` in backend ``name``, or None."""
        with self._lock:
            published_value = self._held.get((name, key))
            if published_value is None:
                return None
            if published_value.value_id != id(value):
                self._drop((name, key))
                return None
            self._held.move_to_end((name, key))
            return published_value

    def keep(self, key: Hashable, published_value: PublishedValue, mapping: Any = None) -> None:
        """Keep ``published_value`` until ``key`` is freed or ``mapping`` is garbage collected."""
        place = (published_value.backend.name, key)
        with self._lock:
            self._drop(place)
            self._held[place] = published_value
            self._names[published_value.backend.name] = None
            if mapping is not None:
                mine = weakref.ref(self)

                def mapping_freed(_: Any) -> None:
                    if (self := mine()) is not None:
                        with self._lock:
                            if self._held.get(place) is published_value:
                                self._drop(place)

                published_value.watch = weakref.ref(mapping, mapping_freed)
            while len(self._held) > HELD_MAX:
                self._drop(next(iter(self._held)))

    def drop(self, key: Hashable) -> None:
        if not self._held:
            return
        with self._lock:
            for name in self._names:
                self._drop((name, key))

    def least_recent(self, name: str) -> PublishedValue | None:
        """Remove and return the least recently used value of ``name``; the caller deletes it."""
        with self._lock:
            for place, published_value in self._held.items():
                if place[0] == name and published_value.owned and not published_value.users:
                    return self._remove(place)
        return None

    def add_user(self, published_value: PublishedValue) -> None:
        with self._lock:
            published_value.users += 1

    def remove_user(self, published_value: PublishedValue) -> None:
        """Remove a user: its reply was acknowledged, or never will be."""
        with self._lock:
            published_value.users -= 1
            ends = published_value.is_dropped and published_value.users == 0
        if ends:
            self._end(published_value)

    def clear(self) -> None:
        with self._lock:
            for place in list(self._held):
                self._drop(place)

    def _remove(self, place: tuple[str, Hashable]) -> PublishedValue | None:
        published_value = self._held.pop(place, None)
        if published_value is not None:
            published_value.is_dropped = True
            published_value.watch = None
        return published_value

    def _drop(self, place: tuple[str, Hashable]) -> None:
        published_value = self._remove(place)
        if published_value is not None and not published_value.users:
            self._end(published_value)
