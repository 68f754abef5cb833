"""Requests that wait for their reply: first-in-first-out queues with deadlines."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import ExtensionError

if TYPE_CHECKING:
    from paceline.scheduler.core.turn import Turn

#: Maximum number of waiters of one extension. Each occupies an open connection of a peer, and a
#: process opens a few thousand.
WAITERS_MAX = 100_000

Want = TypeVar("Want")


@dataclass(slots=True, eq=False)
class Waiter(Generic[Want]):
    """A request that waits for its reply.

    Attributes:
        number: unique among the waiters of an extension, never reused.
        request_id: identifies the request in the reply; 0 if it wants none.
        queue: name of the queue.
        want: what the request waits for, in a form that the extension chooses.
        since: time of arrival, seconds since the epoch.
        deadline: end of the wait, seconds since the epoch; None for no limit.
        timer_id: timer of the deadline, or 0.
    """

    number: int
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
        timeout_message: returns the timer message that ends the wait of the waiter with a number.
        waiters_max: maximum number of waiters in all queues.
    """

    __slots__ = ("_by_request", "_next", "_queues", "_timeout_message", "_waiters", "_waiters_max")

    def __init__(
        self, timeout_message: Callable[[int], Any], waiters_max: int = WAITERS_MAX
    ) -> None:
        self._timeout_message = timeout_message
        self._waiters_max = waiters_max
        self._next = 1
        self._waiters: dict[int, Waiter[Want]] = {}
        self._by_request: dict[int, Waiter[Want]] = {}
        self._queues: dict[Hashable, dict[int, Waiter[Want]]] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def enter(
        self, turn: Turn, queue: Hashable, request_id: int, deadline: float | None, want: Want
    ) -> Waiter[Want]:
        """Append a request to `queue` and return its waiter.

        Raises:
            ExtensionError: RuntimeError, if the maximum number of requests is waiting.
        """
        if len(self._waiters) >= self._waiters_max:
            raise ExtensionError(
                "RuntimeError", f"More than {self._waiters_max} requests wait already"
            )
        waiter = Waiter(self._next, request_id, queue, want, turn.now, deadline)
        self._next += 1
        if deadline is not None:
            waiter.timer_id = turn.call_at(deadline, self._timeout_message(waiter.number))
        self._waiters[waiter.number] = waiter
        if request_id:
            self._by_request[request_id] = waiter
        self._queues.setdefault(queue, {})[waiter.number] = waiter
        return waiter

    def _dequeue(self, waiter: Waiter[Want]) -> None:
        queue = self._queues[waiter.queue]
        del queue[waiter.number]
        if not queue:
            del self._queues[waiter.queue]

    def leave(self, turn: Turn, waiter: Waiter[Want]) -> None:
        """Remove `waiter` and cancel its timer."""
        del self._waiters[waiter.number]
        self._by_request.pop(waiter.request_id, None)
        self._dequeue(waiter)
        if waiter.timer_id:
            turn.cancel_timer(waiter.timer_id)

    def leave_by_number(self, turn: Turn, number: int) -> Waiter[Want] | None:
        """Remove and return the waiter `number`, whose deadline has passed; None if it is gone."""
        waiter = self._waiters.get(number)
        if waiter is not None:
            self.leave(turn, waiter)
        return waiter

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
        self._queues.setdefault(queue, {})[waiter.number] = waiter

    def first(self, queue: Hashable) -> Waiter[Want] | None:
        """Return the first waiter in `queue`, or None."""
        waiters = self._queues.get(queue)
        return next(iter(waiters.values())) if waiters else None

    def waiters(self, queue: Hashable) -> list[Waiter[Want]]:
        """Return the waiters in `queue`, in order."""
        return list(self._queues.get(queue, {}).values())

    def count(self, queue: Hashable) -> int:
        """Return the number of waiters in `queue`."""
        return len(self._queues.get(queue, ()))
