"""Queued tasks by share group, and within a group by where they can be sent."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, TypeAlias

from paceline.scheduler.core.state.containers import PriorityQueue
from paceline.scheduler.core.state.model import TaskPrefix, TaskState, WorkerState

from .accounts import ShareGroup, Shares

#: Restrictions of a task as a key: workers, hosts, resources, whether they are loose, workers that
#: a retry avoids, and the name of its prefix if a worker ends too soon for it, or "".
Restrictions: TypeAlias = tuple[Any, Any, Any, bool, Any, str]
#: What a held task waits for: a slot of the worker that has its data, a slot of a worker that
#: satisfies its restrictions, or any slot (None).
Place: TypeAlias = WorkerState | Restrictions | None


class ShareQueue:
    """The queued tasks of one share group.

    Attributes:
        share: the share group.
        roots: root-ish tasks that are queued as without share groups, and in no batch.
        batches: worker -> root-ish tasks that follow their siblings on this worker: see
            ``policy.coassignment``.
        places: held task -> its Place.
        anywhere: held tasks that any worker can run equally well.
        near: worker -> held tasks most of whose data it has.
        restricted: restrictions -> held tasks with these.
    """

    def __init__(self, share: ShareGroup) -> None:
        self.share = share
        self.roots: PriorityQueue[TaskState] = PriorityQueue()
        self.batches: dict[WorkerState, PriorityQueue[TaskState]] = {}
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
            _add(self.near, place, ts)
        else:
            _add(self.restricted, place, ts)

    def unhold(self, ts: TaskState) -> Place:
        """Remove `ts`, which is held. Return what it waited for."""
        place = self.places[ts]
        del self.places[ts]
        if place is None:
            self.anywhere.discard(ts)
        elif isinstance(place, WorkerState):
            _discard(self.near, place, ts)
        else:
            _discard(self.restricted, place, ts)
        return place

    def enter_batch(self, ts: TaskState, ws: WorkerState) -> None:
        """Add `ts` to the batch of `ws`, or move it there from the roots."""
        self.roots.discard(ts)
        _add(self.batches, ws, ts)

    def leave_batch(self, ts: TaskState, ws: WorkerState | None) -> bool:
        """Remove `ts` from the batch of `ws`. Return whether it was there."""
        return ws is not None and ws in self.batches and _discard(self.batches, ws, ts)

    def has_only_near(self) -> bool:
        """Return whether all tasks wait for slots of the workers that have their data."""
        return not (self.roots.members or self.anywhere.members or self.batches or self.restricted)

    def queues(self) -> list[PriorityQueue[TaskState]]:
        """Return all queues of the group, in a fixed order."""
        by_place = (self.batches, self.near, self.restricted)
        return [self.roots, self.anywhere, *(q for queues in by_place for q in queues.values())]

    def __iter__(self) -> Iterator[TaskState]:
        """Iterate in order of priority."""
        if not self.places and not self.batches:
            return iter(self.roots)
        return heapq.merge(*self.queues(), key=_priority)


def _add(queues: dict[Any, PriorityQueue[TaskState]], place: Any, ts: TaskState) -> None:
    """Add `ts` to the one of `queues` for `place`."""
    queue = queues.get(place)
    if queue is None:
        queue = queues[place] = PriorityQueue()
    queue.add(ts)


def _discard(queues: dict[Any, PriorityQueue[TaskState]], place: Any, ts: TaskState) -> bool:
    """Remove `ts` from the one of `queues` for `place`. Return whether it was there."""
    queue = queues[place]
    found = queue.discard(ts)
    if not queue.members:
        del queues[place]
    return found


def _priority(ts: TaskState) -> Any:
    return ts.priority


class FairQueue:
    """Tasks in state queued.

    Attributes:
        queues: share group -> ShareQueue.
        waiting: those that are not empty, as ``in_turn`` sorted them last, later ones at the end.
        near: worker -> number of held tasks of all groups most of whose data it has.
        early: worker -> number of tasks that were sent to it without being held since a queued task
            was last sent there; empty if no task is queued.
        claims: root-ish task that is queued or not ready yet -> worker that runs its siblings.
        may_move: whether tasks near their data may be sent to other workers now.
        move_timer: number of the timer that sets `may_move`; 0 if there is none.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self.queues: dict[ShareGroup, ShareQueue] = {}
        self.waiting: list[ShareQueue] = []
        self.near: dict[WorkerState, int] = {}
        self.early: dict[WorkerState, int] = {}
        self.claims: dict[TaskState, WorkerState] = {}
        self.may_move = False
        self.move_timer = 0

    def _enter(self, ts: TaskState) -> ShareQueue:
        share = ts.account.share
        queue = self.queues.get(share)
        if queue is None:
            queue = self.queues[share] = ShareQueue(share)
        if not share.n_queued:
            self.waiting.append(queue)
        self._shares.queue_task(share)
        return queue

    def add(self, ts: TaskState) -> None:
        """Add the root-ish task `ts`, which is not present."""
        queue = self._enter(ts)
        ws = self.claims.get(ts)
        if ws is None:
            queue.roots.add(ts)
        else:
            queue.enter_batch(ts, ws)

    def claim(self, ts: TaskState, ws: WorkerState) -> None:
        """Let `ts`, which is not claimed, follow its siblings on `ws` unless it has a place."""
        queue = self.queues.get(ts.account.share)
        if queue is not None and ts in queue.places:
            if queue.places[ts] is None:
                self._unhold(queue, ts)
                self._hold(queue, ts, ws)
            return
        if queue is not None and ts in queue.roots.members:
            queue.enter_batch(ts, ws)
        self.claims[ts] = ws

    def disband(self, ws: WorkerState) -> None:
        """End the batch of `ws`, which accepts no tasks any more."""
        for queue in self.waiting:
            batch = queue.batches.pop(ws, None)
            for ts in batch or ():
                queue.roots.add(ts)
        for ts in [ts for ts, claimed in self.claims.items() if claimed is ws]:
            del self.claims[ts]
        self.early.pop(ws, None)

    def hold(self, ts: TaskState, place: Place) -> None:
        """Add `ts`, which is not present and is held until it is its turn at `place`."""
        self._hold(self._enter(ts), ts, place)
        ts.account.share.n_held += 1

    def _hold(self, queue: ShareQueue, ts: TaskState, place: Place) -> None:
        queue.hold(ts, place)
        if isinstance(place, WorkerState):
            self.near[place] = self.near.get(place, 0) + 1

    def _unhold(self, queue: ShareQueue, ts: TaskState) -> None:
        place = queue.unhold(ts)
        if isinstance(place, WorkerState):
            n = self.near[place] - 1
            if n:
                self.near[place] = n
            else:
                del self.near[place]

    def count_early(self, ws: WorkerState) -> None:
        """Count a task that is sent to `ws` without being held."""
        if self.waiting:
            self.early[ws] = self.early.get(ws, 0) + 1

    def sent(self, ts: TaskState, ws: WorkerState) -> None:
        """Remove `ts`, which is sent to `ws`."""
        if ws in self.early:
            del self.early[ws]
        self.discard(ts)

    def discard(self, ts: TaskState) -> None:
        """Remove `ts` if present."""
        share = ts.account.share
        queue = self.queues.get(share)
        ws = self.claims.pop(ts, None) if self.claims else None
        if queue is None:
            return
        if ts in queue.places:
            self._unhold(queue, ts)
            share.n_held -= 1
            if not share.n_held:
                share.is_draining = False
        elif not queue.leave_batch(ts, ws) and not queue.roots.discard(ts):
            return
        self._shares.unqueue_task(share)
        if not share.n_queued:
            self.waiting.remove(queue)
            if not self.waiting:
                self.early.clear()

    def forget_group(self, share: ShareGroup) -> None:
        """Drop the empty queue of `share`, which was dropped."""
        self.queues.pop(share, None)

    def in_turn(self) -> list[ShareQueue]:
        """Sort `waiting` by the turns of the groups, the next one first, and return it.

        Equal groups keep their order. Insertion sort, because usages change little between two
        calls.
        """
        queues = self.waiting
        for i in range(1, len(queues)):
            queue = queues[i]
            place = i
            while place and queue.share.goes_before(queues[place - 1].share):
                queues[place] = queues[place - 1]
                place -= 1
            if place < i:
                queues[place] = queue
        return queues

    def has_task_for(self, workers: dict[WorkerState, float]) -> bool:
        """Return whether any task may go to one of `workers`; restrictions are not examined."""
        if not self.near.keys().isdisjoint(workers.keys()):  # iterates over the smaller one
            return True
        return not all(queue.has_only_near() for queue in self.waiting)

    def is_held(self, ts: TaskState) -> bool:
        """Return whether `ts` is queued because of its share group."""
        queue = self.queues.get(ts.account.share)
        return queue is not None and ts in queue.places

    def held_of(self, prefix: TaskPrefix) -> list[TaskState]:
        """Return the held tasks of `prefix`."""
        return [ts for queue in self.waiting for ts in queue.places if ts.group.prefix is prefix]

    def is_first_for(self, ws: WorkerState, ts: TaskState) -> bool:
        """Return whether no task of the group of `ts` would be sent to `ws` before `ts`."""
        share = ts.account.share
        if not share.n_queued:
            return True
        queue = self.queues[share]
        if queue.batches or queue.restricted:
            return False
        for heap in (queue.roots, queue.anywhere, queue.near.get(ws)):
            first = None if heap is None else heap.peek()
            if first is not None and _priority(first) < ts.priority:
                return False
        return True

    def is_unclaimed(self, ts: TaskState) -> bool:
        """Return whether `ts` is queued, and neither in a batch nor waiting for a place."""
        queue = self.queues.get(ts.account.share)
        return queue is not None and (ts in queue.roots.members or ts in queue.anywhere.members)

    def place(self, ts: TaskState) -> Place:
        """Return what the held task `ts` waits for; None for any slot and if it is not held."""
        queue = self.queues.get(ts.account.share)
        return None if queue is None else queue.places.get(ts)

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, TaskState):
            return False
        queue = self.queues.get(item.account.share)
        if queue is None:
            return False
        if item in queue.roots.members or item in queue.places:
            return True
        ws = self.claims.get(item) if self.claims else None
        return ws is not None and ws in queue.batches and item in queue.batches[ws].members

    def __iter__(self) -> Iterator[TaskState]:
        """Iterate by group, in each in order of priority."""
        for queue in self.waiting:
            yield from queue

    def __len__(self) -> int:
        return sum([queue.share.n_queued for queue in self.waiting])

    def __bool__(self) -> bool:
        return bool(self.waiting)
