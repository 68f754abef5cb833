"""Containers of the core: changes cost O(1) or O(log n), and iteration order is deterministic."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")

#: Priority and number of arrival of a member of a PriorityQueue, and the member.
Entry: TypeAlias = tuple[Any, ...]

#: An ordered set in little memory: a tuple while small, a dict when grown. Most tasks have one or
#: two dependents, one replica and one client: a tuple of 48 bytes is enough where a set takes 216.
#: Both forms iterate in insertion order and support ``in``, ``len`` and truth, so only
#: ``with_item`` and ``without_item`` distinguish them. Members compare by identity.
SmallSet = tuple[T, ...] | dict[T, None]
#: Largest set stored as a tuple, which is rebuilt on each change.
TUPLE_MAX: Final = 4


def add_up(sums: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    """Add the values of `more` to those of `sums`, key by key."""
    for key, value in more.items():
        sums[key] = sums.get(key, 0) + value


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


class LoadBuckets(Generic[T]):
    """Members by load; finding the least loaded costs as much as there are distinct loads.

    There are few distinct loads: tasks per thread below saturation.

    Attributes:
        loads: member -> load.
    """

    def __init__(self) -> None:
        self._buckets: dict[float, dict[T, None]] = {}
        self.loads: dict[T, float] = {}

    def put(self, item: T, load: float) -> None:
        """Add `item`, or change its load."""
        old = self.loads.get(item)
        if old is not None:
            if old == load:
                return
            self._take_out(item, old)
        self.loads[item] = load
        self._buckets.setdefault(load, {})[item] = None

    def discard(self, item: T) -> None:
        """Remove `item` if present."""
        old = self.loads.get(item)
        if old is not None:
            del self.loads[item]
            self._take_out(item, old)

    def _take_out(self, item: T, load: float) -> None:
        bucket = self._buckets[load]
        del bucket[item]
        if not bucket:
            del self._buckets[load]

    def least(self) -> T | None:
        """Return a member with the least load, the one that has had it longest, or None."""
        best: dict[T, None] = {}
        least = math.inf
        for load, bucket in self._buckets.items():
            if load < least:
                best, least = bucket, load
        for item in best:
            return item
        return None

    def below(self, limit: float, n: int) -> Iterator[T]:
        """Iterate over up to `n` members of each load below `limit`, the least load first.

        Of those with the same load, the one that has had it shortest is first.
        """
        for load in sorted([load for load in self._buckets if load < limit]):
            yield from islice(reversed(self._buckets[load]), n)

    def __contains__(self, item: object) -> bool:
        return item in self.loads

    def __iter__(self) -> Iterator[T]:
        return iter(self.loads)

    def __len__(self) -> int:
        return len(self.loads)


class PriorityQueue(Generic[T]):
    """Members ordered by their attribute ``priority``, ties by arrival.

    Adding, popping and removing cost O(log n), or O(1) for members added in order: those are kept
    in a deque, the others in a heap. Members removed in the order of the deque, or in its reverse,
    leave it at once. Others stay as stale entries until these are more than half.

    Attributes:
        members: member -> its entry; public because it is tested after each turn.
    """

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._run: deque[Entry] = deque()
        self.members: dict[T, Entry] = {}
        self._counter = 0

    def add(self, item: T) -> None:
        """Add `item` unless present."""
        if item in self.members:
            return
        self._counter += 1
        entry: Entry = (item.priority, self._counter, item)  # type: ignore[attr-defined]
        self.members[item] = entry
        run = self._run
        if not run or run[-1][0] <= entry[0]:
            run.append(entry)
        else:
            heapq.heappush(self._heap, entry)

    def discard(self, item: T) -> bool:
        """Remove `item` if present. Return whether it was."""
        entry = self.members.get(item)
        if entry is None:
            return False
        del self.members[item]
        run = self._run
        if run and run[0] is entry:
            run.popleft()
            while run and not self._is_live(run[0]):
                run.popleft()
        else:
            while run and not self._is_live(run[-1]):
                run.pop()
        n_entries = len(self._heap) + len(run)
        if n_entries > 64 and n_entries > 2 * len(self.members):
            self._run = deque([e for e in run if self._is_live(e)])
            self._heap = [e for e in self._heap if self._is_live(e)]
            heapq.heapify(self._heap)
        return True

    def _is_live(self, entry: Entry) -> bool:
        return self.members.get(entry[2]) is entry

    def peek(self) -> T | None:
        """Return the first member, or None."""
        run, heap = self._run, self._heap
        while run and not self._is_live(run[0]):
            run.popleft()
        while heap and not self._is_live(heap[0]):
            heapq.heappop(heap)
        if not run and not heap:
            return None
        if run and heap:
            first = min(run[0], heap[0])
        else:
            first = run[0] if run else heap[0]
        member: T = first[2]
        return member

    def first(self, n: int) -> list[T]:
        """Return up to `n` of the first members in order of priority, without sorting all."""
        found: list[Entry] = []
        for entry in self._run:
            if self._is_live(entry):
                found.append(entry)
                if len(found) >= n:
                    break
        heap = self._heap
        open_entries: list[tuple[Any, int, int]] = [(*heap[0][:2], 0)] if heap else []
        limit = len(found) + n
        while open_entries and len(found) < limit:
            i = heapq.heappop(open_entries)[2]
            if self._is_live(heap[i]):
                found.append(heap[i])
            for child in (2 * i + 1, 2 * i + 2):
                if child < len(heap):
                    heapq.heappush(open_entries, (heap[child][0], heap[child][1], child))
        return [entry[2] for entry in sorted(found)[:n]]

    def __contains__(self, item: object) -> bool:
        return item in self.members

    def __iter__(self) -> Iterator[T]:
        """Iterate in order of priority."""
        for entry in heapq.merge(self._run, sorted(self._heap)):  # the run may be very long
            if self._is_live(entry):
                yield entry[2]

    def __len__(self) -> int:
        return len(self.members)


def take(queue: deque[T], count: int) -> list[T]:
    """Remove and return the first members of `queue`, at most `count`."""
    return [queue.popleft() for _ in range(min(count, len(queue)))]
