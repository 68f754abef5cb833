"""MultiLocks: acquire several named locks together (``distributed.MultiLock``).

Each lock has a queue of requests, and the first request holds the lock. A request is granted when
it holds the required number of locks; it then leaves the queues in which it is not first.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.protocol.messages import MultiLockAcquire, MultiLockRelease
from paceline.scheduler.core.extension import Extension, ExtensionError
from paceline.scheduler.core.turn import Turn

from .names import deadline_after, hashable_name, hashable_names
from .wait_queues import Waiter, WaitQueues

#: Maximum number of requests that hold or wait for locks, and of locks in one request. Requests of
#: a holder that died are never released, because their connection does not identify the holder.
REQUESTS_MAX = 1_000_000
LOCKS_PER_REQUEST_MAX = 100_000


@dataclass(slots=True, eq=False)
class LockRequest:
    """A call of ``MultiLock.acquire``.

    Attributes:
        user: ID from the client.
        locks: locks in whose queues the request is.
        missing: number of locks that the request still needs.
        waiter: its waiter, until it is granted.
    """

    user: Hashable
    locks: dict[Hashable, None] = field(default_factory=dict)
    missing: int = 0
    waiter: Waiter[LockRequest] | None = None


class MultiLocks(Extension):
    """Operations ``multi_lock_acquire`` and ``multi_lock_release``.

    Invariants: no queue is empty; a request that is not granted has a waiter.
    """

    name: ClassVar[str] = "multi_locks"

    def __init__(self) -> None:
        self._requests: dict[Hashable, LockRequest] = {}
        self._queues: dict[Hashable, dict[Hashable, LockRequest]] = {}
        self._waiting: WaitQueues[LockRequest] = WaitQueues(self._time_out)

    def handle_multi_lock_acquire(self, turn: Turn, message: MultiLockAcquire) -> None:
        """Reply True when enough locks are held, or False at the deadline, without holding any.

        Raises:
            ExtensionError: AssertionError, as in stock, for a user with an earlier request, or if
                more locks are required than named.
        """
        user = hashable_name(message.id)
        deadline = deadline_after(turn.now, message.timeout)
        request = self._new_request(user, message.locks, message.num_locks)
        self._requests[user] = request
        self._enqueue(request)
        if not request.missing:
            self._remove(request)
            turn.reply(turn.request_id, True)
        elif deadline is not None and deadline <= turn.now:
            self._drop(turn, request)
            turn.reply(turn.request_id, False)
        else:
            self._wait(turn, request, turn.request_id, deadline)

    def _new_request(self, user: Hashable, locks: Any, num_locks: Any) -> LockRequest:
        if user in self._requests:
            raise ExtensionError("AssertionError")
        names = hashable_names(locks)
        if not isinstance(num_locks, int) or not 0 < num_locks <= len(names):
            raise ExtensionError("AssertionError")
        if len(self._requests) >= REQUESTS_MAX or len(names) > LOCKS_PER_REQUEST_MAX:
            raise ExtensionError("RuntimeError", "Too many locks are held or waited for")
        unique = dict.fromkeys(names)
        return LockRequest(user, unique, min(num_locks, len(unique)))

    def _enqueue(self, request: LockRequest) -> None:
        """Join the queue of each lock, shortest first, until enough locks are held."""
        names = sorted(request.locks, key=lambda lock: len(self._queues.get(lock, ())))
        joined: dict[Hashable, None] = {}
        for lock in names:
            queue = self._queues.setdefault(lock, {})
            queue[request.user] = request
            joined[lock] = None
            if len(queue) == 1:
                request.missing -= 1
                if not request.missing:
                    break
        request.locks = joined

    def _wait(
        self, turn: Turn, request: LockRequest, request_id: int, deadline: float | None
    ) -> None:
        try:
            request.waiter = self._waiting.enter(turn, "", request_id, deadline, request)
        except ExtensionError:
            self._drop(turn, request)
            raise

    def _remove(self, request: LockRequest) -> None:
        """Remove a granted request from the queues in which it is not first."""
        for lock in list(request.locks):
            queue = self._queues[lock]
            if next(iter(queue)) != request.user:
                del queue[request.user]
                del request.locks[lock]

    def _drop(self, turn: Turn, request: LockRequest) -> None:
        """Remove the request from all queues and grant requests that hold enough locks now."""
        del self._requests[request.user]
        first_in_queue: list[LockRequest] = []
        for lock in request.locks:
            queue = self._queues[lock]
            was_first = next(iter(queue)) == request.user
            del queue[request.user]
            if not queue:
                del self._queues[lock]
            elif was_first:
                first_in_queue.append(next(iter(queue.values())))
        for other in first_in_queue:
            if other.missing:
                other.missing -= 1
                if not other.missing:
                    self._grant(turn, other)

    def _grant(self, turn: Turn, request: LockRequest) -> None:
        self._remove(request)
        waiter, request.waiter = request.waiter, None
        if waiter is not None:
            self._waiting.leave(turn, waiter)
            turn.reply(waiter.request_id, True)

    def handle_multi_lock_release(self, turn: Turn, message: MultiLockRelease) -> None:
        """Release all locks of a user and reply None.

        If the user is still waiting, its wait ends with False; in stock it never ends.

        Raises:
            ExtensionError: KeyError, for a user without a request.
        """
        user = hashable_name(message.id)
        request = self._requests.get(user)
        if request is None:
            raise ExtensionError("KeyError", str(user))
        waiter, request.waiter = request.waiter, None
        if waiter is not None:
            self._waiting.leave(turn, waiter)
            turn.reply(waiter.request_id, False)
        self._drop(turn, request)
        turn.reply(turn.request_id, None)

    def _time_out(self, turn: Turn, waiter: Waiter[LockRequest]) -> None:
        waiter.want.waiter = None
        self._drop(turn, waiter.want)
        turn.reply(waiter.request_id, False)

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        waiter = self._waiting.leave_by_request(turn, request_id)
        if waiter is not None:
            waiter.want.waiter = None
            self._drop(turn, waiter.want)
