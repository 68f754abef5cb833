"""Containers of the core, compared with simple and slow implementations."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random

import pytest
from paceline.scheduler.core.state.containers import (
    TUPLE_MAX,
    LoadBuckets,
    PriorityQueue,
    SmallSet,
    take,
    with_item,
    without_item,
)


def test_take() -> None:
    queue = deque([1, 2, 3])
    assert take(queue, 0) == take(queue, -1) == []
    assert take(queue, 2) == [1, 2]
    assert take(queue, 2) == [3]
    assert take(queue, 2) == []


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
        below = list(found.below(1.5, 2))
        assert [loads[item] for item in below] == [
            load for load in (0.0, 0.5, 1.0) for _ in range(min(2, [*loads.values()].count(load)))
        ]
        assert set(found) == loads.keys() and len(found) == len(loads)


def test_least_prefers_the_item_added_first() -> None:
    found: LoadBuckets[str] = LoadBuckets()
    for name in "abc":
        found.put(name, 1.0)
    assert found.least() == "a"
    found.put("a", 2.0)
    found.put("a", 1.0)
    assert found.least() == "b"
    assert list(found.below(2.0, 2)) == ["a", "c"]


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
    # removed items are dropped from the heap
    assert len(queue._heap) + len(queue._run) <= max(64, 2 * len(members) + 1)


@pytest.mark.parametrize("reverse", [False, True])
def test_members_discarded_in_order_leave_a_priority_queue_at_once(reverse: bool) -> None:
    queue: PriorityQueue[Item] = PriorityQueue()
    members = [Item((n,)) for n in range(1000)]
    for item in members:
        queue.add(item)
    for n_left, item in zip(range(999, -1, -1), members[:: -1 if reverse else 1], strict=True):
        queue.discard(item)
        assert len(queue) == len(queue._run) == n_left


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
