"""Queued tasks by share group, and within a group by where they can be sent."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, TypeAlias

from .accounts import ShareGroup, Shares
from .containers import PriorityQueue
from .model import TaskState, WorkerState

#: Restrictions of a task as a key: workers, hosts, resources, whether they are loose, and the name
#: of its prefix if a worker ends too soon for it, or "".
Restrictions: TypeAlias = tuple[Any, Any, Any, bool, str]
#: What a held task waits for: a slot of the worker that has its data, a slot of a worker that
#: satisfies its restrictions, or any slot (None).
Place: TypeAlias = WorkerState | Restrictions | None


class ShareQueue:
    """The queued tasks of one share group.

    Attributes:
        share: the share group.
        roots: root-ish tasks that are queued as without share groups.
        places: held task -> its Place.
        anywhere: held tasks that any worker can run equally well.
        near: worker -> held tasks most of whose data it has.
        restricted: restrictions -> held tasks with these.
    """

    def __init__(self, share: ShareGroup) -> None:
        self.share = share
        self.roots: PriorityQueue[TaskState] = PriorityQueue()
        self.places: dict[TaskState, Place] = {}
        self.anywhere: PriorityQueue[TaskState] = PriorityQueue()
        self.near: dict[WorkerState, PriorityQueue[TaskState]] = {}
        self.restricted: dict[Restrictions, PriorityQueue[TaskState]] = {}

    def hold(self, ts: TaskState, place: Place) -> None:
        """Add `ts`, which waits for `place`."""
        self.places[ts] = place
        if place is None:
            self.anywhere.add(ts)
        elif isinstance(place, WorkerState):
            queue = self.near.get(place)
            if queue is None:
                queue = self.near[place] = PriorityQueue()
            queue.add(ts)
        else:
            queue = self.restricted.get(place)
            if queue is None:
                queue = self.restricted[place] = PriorityQueue()
            queue.add(ts)

    def unhold(self, ts: TaskState) -> None:
        """Remove `ts`, which is held."""
        place = self.places.pop(ts)
        if place is None:
            self.anywhere.discard(ts)
        elif isinstance(place, WorkerState):
            queue = self.near[place]
            queue.discard(ts)
            if not queue.members:
                del self.near[place]
        else:
            queue = self.restricted[place]
            queue.discard(ts)
            if not queue.members:
                del self.restricted[place]

    def queues(self) -> list[PriorityQueue[TaskState]]:
        """Return all queues of the group, in a fixed order."""
        return [self.roots, self.anywhere, *self.near.values(), *self.restricted.values()]

    def __iter__(self) -> Iterator[TaskState]:
        """Iterate in order of priority."""
        if not self.places:
            return iter(self.roots)
        return heapq.merge(*self.queues(), key=_priority)

    def __contains__(self, ts: object) -> bool:
        return ts in self.roots.members or ts in self.places


def _priority(ts: TaskState) -> Any:
    return ts.priority


class FairQueue:
    """Tasks in state queued.

    Attributes:
        queues: share group -> ShareQueue.
        waiting: those that are not empty, in the order in which they became so.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self.queues: dict[ShareGroup, ShareQueue] = {}
        self.waiting: dict[ShareGroup, ShareQueue] = {}

    def _enter(self, ts: TaskState) -> ShareQueue:
        share = ts.account.share
        queue = self.waiting.get(share)
        if queue is None:
            queue = self.queues.get(share)
            if queue is None:
                queue = self.queues[share] = ShareQueue(share)
            self.waiting[share] = queue
        self._shares.queue_task(share)
        return queue

    def add(self, ts: TaskState) -> None:
        """Add the root-ish task `ts` unless present."""
        if ts not in self:
            self._enter(ts).roots.add(ts)

    def hold(self, ts: TaskState, place: Place) -> None:
        """Add `ts`, which is held until it is its turn at `place`, unless present."""
        if ts not in self:
            self._enter(ts).hold(ts, place)
            ts.account.share.n_held += 1

    def discard(self, ts: TaskState) -> None:
        """Remove `ts` if present."""
        share = ts.account.share
        queue = self.waiting.get(share)
        if queue is None:
            return
        if ts in queue.places:
            queue.unhold(ts)
            share.n_held -= 1
        elif not queue.roots.discard(ts):
            return
        self._shares.unqueue_task(share)
        if not share.n_queued:
            del self.waiting[share]

    def forget_group(self, share: ShareGroup) -> None:
        """Drop the empty queue of `share`, which was dropped."""
        self.queues.pop(share, None)

    def peek(self) -> TaskState | None:
        """Return the first member of the first group, or None."""
        return next(iter(self), None)

    def is_held(self, ts: TaskState) -> bool:
        """Return whether `ts` is queued because of its share group."""
        queue = self.waiting.get(ts.account.share)
        return queue is not None and ts in queue.places

    def place(self, ts: TaskState) -> Place:
        """Return what the held task `ts` waits for; None for any slot and if it is not held."""
        queue = self.waiting.get(ts.account.share)
        return None if queue is None else queue.places.get(ts)

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, TaskState):
            return False
        queue = self.waiting.get(item.account.share)
        return queue is not None and item in queue

    def __iter__(self) -> Iterator[TaskState]:
        """Iterate by group, in each in order of priority."""
        for queue in self.waiting.values():
            yield from queue

    def __len__(self) -> int:
        return sum([share.n_queued for share in self.waiting])

    def __bool__(self) -> bool:
        return bool(self.waiting)
