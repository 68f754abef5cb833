"""Requests that wait for their reply: first-in-first-out queues with deadlines."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from paceline.scheduler.core.extension import ExtensionError
from paceline.scheduler.core.turn import Turn

#: Maximum number of waiters of one extension. Each occupies an open connection of a peer, and a
#: process opens a few thousand.
WAITERS_MAX = 100_000

Want = TypeVar("Want")


@dataclass(slots=True, eq=False)
class Waiter(Generic[Want]):
    """A request that waits for its reply.

    Attributes:
        request_id: identifies the request in the reply; 0 if none is requested.
        queue: name of the queue.
        want: what the request waits for, in a form that the extension chooses.
        since: time of arrival, seconds since the epoch.
        deadline: end of the wait, seconds since the epoch; None for no limit.
        timer_id: timer of the deadline, or 0.
    """

    request_id: int
    queue: Hashable
    want: Want
    since: float
    deadline: float | None = None
    timer_id: int = 0


class WaitQueues(Generic[Want]):
    """The waiters of one extension, in named queues.

    Invariants: no queue is empty; a waiter with a deadline has a timer.

    Args:
        on_timeout: called with a waiter that was removed because its deadline has passed.
    """

    def __init__(self, on_timeout: Callable[[Turn, Waiter[Want]], None]) -> None:
        self._on_timeout = on_timeout
        self._n_waiters = 0
        self._by_request: dict[int, Waiter[Want]] = {}
        self._queues: dict[Hashable, dict[Waiter[Want], None]] = {}

    def __len__(self) -> int:
        return self._n_waiters

    def enter(
        self, turn: Turn, queue: Hashable, request_id: int, deadline: float | None, want: Want
    ) -> Waiter[Want]:
        """Append a request to `queue` and return its waiter.

        Raises:
            ExtensionError: RuntimeError, if the maximum number of requests is waiting.
        """
        if self._n_waiters >= WAITERS_MAX:
            raise ExtensionError("RuntimeError", f"More than {WAITERS_MAX} requests wait already")
        waiter = Waiter(request_id, queue, want, turn.now, deadline)
        if deadline is not None:
            waiter.timer_id = turn.call_at(deadline, partial(self._time_out, waiter=waiter))
        self._n_waiters += 1
        if request_id:
            self._by_request[request_id] = waiter
        self._queues.setdefault(queue, {})[waiter] = None
        return waiter

    def _time_out(self, turn: Turn, waiter: Waiter[Want]) -> None:
        self.leave(turn, waiter)
        self._on_timeout(turn, waiter)

    def _dequeue(self, waiter: Waiter[Want]) -> None:
        queue = self._queues[waiter.queue]
        del queue[waiter]
        if not queue:
            del self._queues[waiter.queue]

    def leave(self, turn: Turn, waiter: Waiter[Want]) -> None:
        """Remove `waiter` and cancel its timer."""
        self._n_waiters -= 1
        self._by_request.pop(waiter.request_id, None)
        self._dequeue(waiter)
        turn.cancel_timer(waiter.timer_id)

    def leave_by_request(self, turn: Turn, request_id: int) -> Waiter[Want] | None:
        """Remove and return the waiter of a closed connection; None if there is none."""
        waiter = self._by_request.get(request_id)
        if waiter is not None:
            self.leave(turn, waiter)
        return waiter

    def move(self, waiter: Waiter[Want], queue: Hashable) -> None:
        """Move `waiter` to the end of `queue`, which may be its own."""
        self._dequeue(waiter)
        waiter.queue = queue
        self._queues.setdefault(queue, {})[waiter] = None

    def first(self, queue: Hashable) -> Waiter[Want] | None:
        """Return the first waiter in `queue`, or None."""
        return next(iter(self._queues.get(queue, ())), None)

    def waiters(self, queue: Hashable) -> list[Waiter[Want]]:
        """Return the waiters in `queue`, in order."""
        return list(self._queues.get(queue, ()))

    def count(self, queue: Hashable) -> int:
        """Return the number of waiters in `queue`."""
        return len(self._queues.get(queue, ()))
