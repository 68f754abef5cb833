"""What one worker has put into back ends, by key: so that a second asker gets what the first one got, and nothing outlives its key.

Must not know: what back ends do, messages.
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

HELD_MAX = 65_536
"""Values that one worker keeps in back ends; the ones asked for least recently go first."""


@dataclass(eq=False)
class Holding:
    """A value in a back end.

    Attributes:
        backend, ref, layout: where it lies, and how.
        value_id: of the value that the worker has: another object under the same key is another value.
        owned: whether ``delete`` is ours to call; what was got from others is passed on, not deleted.
        users: answers that name it and that are not acknowledged; it stays until they are.
        over: the key is gone, so that the last user ends it.
        watch: of the mapping that the worker's own value lies in; with it the holding ends.
    """

    backend: Backend
    ref: Ref
    layout: Layout
    value_id: int
    owned: bool = True
    users: int = 0
    over: bool = False
    watch: Any = None


class Holdings:
    """Holdings by back end and key. Called from the event loop; what is deleted is given to ``end``, which may take its time.

    Args:
        end: called with each holding that is over, from whatever thread a mapping died in.
    """

    def __init__(self, end: Callable[[Holding], None]) -> None:
        self._end = end
        self._held: OrderedDict[tuple[str, Hashable], Holding] = OrderedDict()
        self._names: dict[str, None] = {}
        # a mapping may die in any thread, while this one is being changed
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._held)

    def find(self, name: str, key: Hashable, value: Any) -> Holding | None:
        """The value's holding in a back end, if it is the same value still."""
        with self._lock:
            holding = self._held.get((name, key))
            if holding is None:
                return None
            if holding.value_id != id(value):
                self._over((name, key))
                return None
            self._held.move_to_end((name, key))
            return holding

    def keep(self, key: Hashable, holding: Holding, mapping: Any = None) -> None:
        """Remember a holding as long as the key lives, and no longer than a mapping that the worker's value lies in."""
        place = (holding.backend.name, key)
        with self._lock:
            self._over(place)
            self._held[place] = holding
            self._names[holding.backend.name] = None
            if mapping is not None:
                mine = weakref.ref(self)

                def died(_: Any) -> None:
                    if (self := mine()) is not None:
                        self._forget(place, holding)

                holding.watch = weakref.ref(mapping, died)
            while len(self._held) > HELD_MAX:
                self._over(next(iter(self._held)))

    def drop(self, key: Hashable) -> None:
        """The key is gone."""
        if not self._held:
            return
        with self._lock:
            for name in self._names:
                self._over((name, key))

    def drop_backend(self, name: str) -> None:
        """A back end broke: nothing in it is offered any more."""
        with self._lock:
            for place in [each for each in self._held if each[0] == name]:
                self._over(place)

    def least_recent(self, name: str) -> Holding | None:
        """What was asked for least recently in a back end that is full, for the caller to delete; held no more."""
        with self._lock:
            for place, holding in self._held.items():
                if place[0] == name and holding.owned and not holding.users:
                    del self._held[place]
                    holding.over = True
                    holding.watch = None
                    return holding
        return None

    def use(self, holding: Holding) -> None:
        with self._lock:
            holding.users += 1

    def used(self, holding: Holding) -> None:
        """An answer that named it was acknowledged, or will never be."""
        with self._lock:
            holding.users -= 1
            ends = holding.over and holding.users == 0
        if ends:
            self._end(holding)

    def clear(self) -> None:
        with self._lock:
            for place in list(self._held):
                self._over(place)

    def _forget(self, place: tuple[str, Hashable], holding: Holding) -> None:
        with self._lock:
            if self._held.get(place) is holding:
                self._over(place)

    def _over(self, place: tuple[str, Hashable]) -> None:
        holding = self._held.pop(place, None)
        if holding is not None:
            holding.over = True
            holding.watch = None
            if holding.users == 0:
                self._end(holding)
