"""Containers of the core, against plain ones that do the same slowly."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from random import Random

from paceline.scheduler.core.state.containers import (
    ChunkedQueue,
    IndexedSet,
    LoadBuckets,
    PriorityQueue,
)
from paceline.scheduler.core.state.small_set import TUPLE_MAX, SmallSet, with_item, without_item


def test_a_trail_is_walked_in_order_and_lets_go_of_what_is_behind() -> None:
    trail: ChunkedQueue[object] = ChunkedQueue()
    assert not trail and trail.take(3) == []
    trail.add((1, 2, 3, 4, 5))
    trail.add(())
    trail.add([6])
    assert list(trail) == [1, 2, 3, 4, 5, 6]
    assert trail.take(2) == [1, 2]
    assert trail.take(0) == trail.take(-1) == []
    assert list(trail) == [3, 4, 5, 6]
    assert trail.take(10) == [3, 4, 5]
    assert trail.take(10) == [6]
    assert not trail and list(trail) == []

    class Thing:
        pass

    things = [Thing(), Thing()]
    first = weakref.ref(things[0])
    trail.add(things)
    del things
    trail.take(1)
    assert first() is None
    trail.clear()
    assert not trail


def test_indexed_set() -> None:
    rng = Random(1)
    found: IndexedSet[int] = IndexedSet()
    expected: set[int] = set()
    for _ in range(2000):
        item = rng.randrange(40)
        if rng.random() < 0.5:
            found.add(item)
            expected.add(item)
        else:
            found.discard(item)
            expected.discard(item)
        assert set(found) == expected
        assert len(found) == len(expected)
        assert (item in found) == (item in expected)
        assert {found[i] for i in range(len(found))} == expected


def test_load_buckets() -> None:
    rng = Random(2)
    found: LoadBuckets[int] = LoadBuckets()
    loads: dict[int, float] = {}
    assert found.least() is None
    for _ in range(2000):
        item = rng.randrange(12)
        if rng.random() < 0.7:
            load = rng.randrange(5) / 2
            found.put(item, load)
            loads[item] = load
        else:
            found.discard(item)
            loads.pop(item, None)
        least = found.least()
        assert (least is None) == (not loads)
        if least is not None:
            assert loads[least] == min(loads.values())
        assert set(found) == loads.keys() and len(found) == len(loads)


def test_the_least_loaded_who_has_been_so_longest() -> None:
    found: LoadBuckets[str] = LoadBuckets()
    for name in "abc":
        found.put(name, 1.0)
    assert found.least() == "a"
    found.put("a", 2.0)
    found.put("a", 1.0)
    assert found.least() == "b"


@dataclass(eq=False)
class Item:
    priority: tuple[int, ...]


def test_priority_queue() -> None:
    rng = Random(3)
    queue: PriorityQueue[Item] = PriorityQueue()
    members: list[Item] = []
    for _ in range(3000):
        if rng.random() < 0.55 or not members:
            item = Item((rng.randrange(5),))
            queue.add(item)
            queue.add(item)
            members.append(item)
        else:
            item = members.pop(rng.randrange(len(members)))
            queue.discard(item)
            queue.discard(item)
        first = min(members, key=lambda item: item.priority, default=None)
        found = queue.peek()
        assert (found is None) == (first is None)
        if found is not None and first is not None:
            assert found.priority == first.priority
            assert found is next(m for m in members if m.priority == first.priority)
        assert len(queue) == len(members)
    assert [item.priority for item in queue] == sorted(item.priority for item in members)
    # what was removed is swept
    assert len(queue._heap) + len(queue._run) <= max(64, 2 * len(members) + 1)


def test_small_set() -> None:
    rng = Random(4)
    found: SmallSet[int] = ()
    expected: dict[int, None] = {}
    for _ in range(2000):
        item = rng.randrange(2 * TUPLE_MAX)
        if rng.random() < 0.5:
            found = with_item(found, item)
            expected.setdefault(item)
        else:
            found = without_item(found, item)
            expected.pop(item, None)
        assert list(found) == list(expected)
        assert bool(found) == bool(expected) and len(found) == len(expected)
