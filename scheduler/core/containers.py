"""Containers of the core: constant or logarithmic cost per change, iteration in a fixed order.

Must not know: what they hold.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class FixedSet(frozenset[T]):
    """A set for others to read, iterated in the order in which it was made: what is written of it is the same in any process."""

    _order: tuple[T, ...]

    def __new__(cls, items: Iterable[T]) -> FixedSet[T]:
        order = tuple(dict.fromkeys(items))
        made = super().__new__(cls, order)
        made._order = order
        return made

    def __iter__(self) -> Iterator[T]:
        return iter(self._order)

    def __reduce__(self) -> tuple[type[frozenset[T]], tuple[tuple[T, ...]]]:
        return frozenset, (self._order,)


class IndexedSet(Generic[T]):
    """A set with O(1) add, discard and access by index. Its order depends on the history alone."""

    __slots__ = ("_items", "_where")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._where: dict[T, int] = {}

    def add(self, item: T) -> None:
        if item not in self._where:
            self._where[item] = len(self._items)
            self._items.append(item)

    def discard(self, item: T) -> None:
        at = self._where.pop(item, None)
        if at is None:
            return
        last = self._items.pop()
        if at < len(self._items):
            self._items[at] = last
            self._where[last] = at

    def __contains__(self, item: object) -> bool:
        return item in self._where

    def __getitem__(self, index: int) -> T:
        return self._items[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class LoadBuckets(Generic[T]):
    """Members by load; the least loaded is found without looking at the others.

    There are as many buckets as distinct loads (tasks per thread below saturation): a handful.

    Attributes:
        loads: member -> load.
    """

    __slots__ = ("_buckets", "loads")

    def __init__(self) -> None:
        self._buckets: dict[float, dict[T, None]] = {}
        self.loads: dict[T, float] = {}

    def put(self, item: T, load: float) -> None:
        """Add a member, or change its load."""
        old = self.loads.get(item)
        if old is not None:
            if old == load:
                return
            self._take_out(item, old)
        self.loads[item] = load
        bucket = self._buckets.get(load)
        if bucket is None:
            self._buckets[load] = bucket = {}
        bucket[item] = None

    def discard(self, item: T) -> None:
        old = self.loads.pop(item, None)
        if old is not None:
            self._take_out(item, old)

    def _take_out(self, item: T, load: float) -> None:
        bucket = self._buckets[load]
        del bucket[item]
        if not bucket:
            del self._buckets[load]

    def least(self) -> T | None:
        """The member with the least load that has had it longest, or None."""
        if not self._buckets:
            return None
        return next(iter(self._buckets[min(self._buckets)]))

    def __contains__(self, item: object) -> bool:
        return item in self.loads

    def __iter__(self) -> Iterator[T]:
        return iter(self.loads)

    def __len__(self) -> int:
        return len(self.loads)


class PriorityQueue(Generic[T]):
    """Members by ``priority`` (an attribute of theirs), ties by arrival; O(log n) to add, pop and remove, O(1) for those
    that are added in order.

    Those stand in a run of their own, the others in a heap. Removal marks; marked entries are swept when they are more
    than half.

    Attributes:
        members: member -> number of its arrival; whether there are any is asked after each turn.
    """

    __slots__ = ("_counter", "_heap", "_run", "members")

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, T]] = []
        self._run: deque[tuple[Any, int, T]] = deque()
        self.members: dict[T, int] = {}
        self._counter = 0

    def add(self, item: T) -> None:
        if item in self.members:
            return
        self._counter += 1
        self.members[item] = self._counter
        entry = (item.priority, self._counter, item)  # type: ignore[attr-defined]
        run = self._run
        if not run or run[-1][0] <= entry[0]:
            run.append(entry)
        else:
            heapq.heappush(self._heap, entry)

    def discard(self, item: T) -> None:
        if self.members.pop(item, None) is None:
            return
        n_entries = len(self._heap) + len(self._run)
        if n_entries > 64 and n_entries > 2 * len(self.members):
            self._run = deque([e for e in self._run if self._is_live(e)])
            self._heap = [e for e in self._heap if self._is_live(e)]
            heapq.heapify(self._heap)

    def _is_live(self, entry: tuple[Any, int, T]) -> bool:
        return self.members.get(entry[2]) == entry[1]

    def peek(self) -> T | None:
        """The first member, or None."""
        run, heap = self._run, self._heap
        members = self.members
        while run and members.get(run[0][2]) != run[0][1]:  # as _is_live; asked for each task that leaves
            run.popleft()
        while heap and not self._is_live(heap[0]):
            heapq.heappop(heap)
        if run and heap:
            return min(run[0], heap[0])[2]
        if run:
            return run[0][2]
        return heap[0][2] if heap else None

    def __contains__(self, item: object) -> bool:
        return item in self.members

    def __iter__(self) -> Iterator[T]:
        """In order of priority."""
        for entry in sorted([*self._run, *self._heap], key=lambda e: e[:2]):
            if self._is_live(entry):
                yield entry[2]

    def __len__(self) -> int:
        return len(self.members)


class Trail(Generic[T]):
    """Sequences to be walked to their end, some members at a time; the first that came goes first.

    What has been walked is let go of at once, so that it is not freed all together in the end.
    """

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: deque[list[T]] = deque()  # each from its last member to its first

    def add(self, members: Sequence[T]) -> None:
        """More to walk, after what is there."""
        if members:
            self._parts.append(list(reversed(members)))

    def take(self, count: int) -> list[T]:
        """The next members, at most ``count``, of one sequence."""
        if not self._parts or count <= 0:
            return []
        members = self._parts[0]
        taken = members[-count:]
        taken.reverse()
        del members[-count:]
        if not members:
            self._parts.popleft()
        return taken

    def clear(self) -> None:
        self._parts.clear()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __iter__(self) -> Iterator[T]:
        """What is still to be walked."""
        for members in self._parts:
            yield from reversed(members)


class Timers:
    """What is to come back when: numbers and their messages. The driver keeps the clock."""

    __slots__ = ("_next", "_pending")

    def __init__(self) -> None:
        self._next = 1
        self._pending: dict[int, Any] = {}

    def add(self, message: Any) -> int:
        number = self._next
        self._next += 1
        self._pending[number] = message
        return number

    def cancel(self, number: int) -> None:
        self._pending.pop(number, None)

    def take(self, number: int) -> Any:
        """The message of a timer that is due; None where it was cancelled."""
        return self._pending.pop(number, None)

    def __len__(self) -> int:
        return len(self._pending)
