"""MultiLocks: several named locks taken at once, all or a number of them.

Each lock has a line of requests; the first one holds it. A request is granted when it holds as many as it
needs, and then steps out of the lines where it does not stand first.

Must not know: who holds what for which purpose.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.protocol.messages import MultiLockAcquire, MultiLockRelease

from .machine import Handler, Machine
from .names import deadline_after, hashable_name
from .replies import Refused
from .waiting import Waiter, WaitingRoom

if TYPE_CHECKING:
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.core.turn import Turn

#: Requests that hold or want locks, and locks that one of them may name. A request of a holder that died is
#: never released (its connection does not say whose it was), so they can gather.
REQUESTS_MAX = 1_000_000
LOCKS_PER_REQUEST_MAX = 100_000


@dataclass(slots=True)
class MultiLockWaitOver:
    """Timer: a wait has reached its deadline."""

    number: int


@dataclass(slots=True, eq=False)
class LockRequest:
    """One ``MultiLock.acquire``.

    Attributes:
        user: the id that the peer gave it.
        locks: in whose lines it stands.
        missing: how many more it needs to hold.
        waiter: where its reply waits, until it is granted.
    """

    user: Hashable
    locks: dict[Hashable, None] = field(default_factory=dict)
    missing: int = 0
    waiter: Waiter[LockRequest] | None = None


class MultiLocks(Machine):
    """Ops ``multi_lock_acquire`` and ``multi_lock_release``.

    Invariants: a line that exists is not empty; a request that is not granted has a waiter.
    """

    name: ClassVar[str] = "multi_locks"

    def __init__(self) -> None:
        self._requests: dict[Hashable, LockRequest] = {}
        self._lines: dict[Hashable, dict[Hashable, LockRequest]] = {}
        self._room: WaitingRoom[LockRequest] = WaitingRoom(MultiLockWaitOver)

    def routes(self) -> Mapping[type[Any], Handler]:
        return {
            MultiLockAcquire: self.handle_multi_lock_acquire,
            MultiLockRelease: self.handle_multi_lock_release,
            MultiLockWaitOver: self.handle_wait_over,
        }

    def handle_multi_lock_acquire(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies True when enough locks are held, False at the deadline (and then holds none).

        Raises:
            Refused: AssertionError, as stock, for a user that has a request already, or more locks than named.
        """
        message = stimulus.message
        user = hashable_name(message.id)
        deadline = deadline_after(turn.now, message.timeout)
        request = self._new_request(user, message.locks, message.num_locks)
        self._requests[user] = request
        self._join_lines(request)
        if not request.missing:
            self._step_out(request)
            turn.reply(stimulus.request_id, True)
        elif deadline is not None and deadline <= turn.now:
            self._drop(turn, request)
            turn.reply(stimulus.request_id, False)
        else:
            self._wait(turn, request, stimulus.request_id, deadline)

    def _new_request(self, user: Hashable, locks: Any, num_locks: Any) -> LockRequest:
        if user in self._requests:
            raise Refused("AssertionError")
        if not isinstance(locks, list | tuple):
            raise Refused("TypeError", f"{type(locks).__name__!r} object is not iterable")
        if not isinstance(num_locks, int) or not 0 < num_locks <= len(locks):
            raise Refused("AssertionError")
        if len(self._requests) >= REQUESTS_MAX or len(locks) > LOCKS_PER_REQUEST_MAX:
            raise Refused("RuntimeError", "Too many locks are held or waited for")
        names = dict.fromkeys(hashable_name(lock) for lock in locks)
        return LockRequest(user, names, min(num_locks, len(names)))

    def _join_lines(self, request: LockRequest) -> None:
        """Stand in line for each lock, the least wanted first, until enough are held."""
        names = sorted(request.locks, key=lambda lock: len(self._lines.get(lock, ())))
        joined: dict[Hashable, None] = {}
        for lock in names:
            line = self._lines.setdefault(lock, {})
            line[request.user] = request
            joined[lock] = None
            if len(line) == 1:
                request.missing -= 1
                if not request.missing:
                    break
        request.locks = joined

    def _wait(
        self, turn: Turn, request: LockRequest, request_id: int, deadline: float | None
    ) -> None:
        try:
            request.waiter = self._room.enter(turn, "", request_id, deadline, request)
        except Refused:
            self._drop(turn, request)
            raise

    def _step_out(self, request: LockRequest) -> None:
        """Leave the lines in which the request does not stand first: it has what it needs."""
        for lock in list(request.locks):
            line = self._lines[lock]
            if next(iter(line)) != request.user:
                del line[request.user]
                del request.locks[lock]

    def _drop(self, turn: Turn, request: LockRequest) -> None:
        """Leave all lines; those who come first then may be granted."""
        del self._requests[request.user]
        moved_up: list[LockRequest] = []
        for lock in request.locks:
            line = self._lines[lock]
            was_first = next(iter(line)) == request.user
            del line[request.user]
            if not line:
                del self._lines[lock]
            elif was_first:
                moved_up.append(next(iter(line.values())))
        for other in moved_up:
            if other.missing:
                other.missing -= 1
                if not other.missing:
                    self._grant(turn, other)

    def _grant(self, turn: Turn, request: LockRequest) -> None:
        self._step_out(request)
        waiter, request.waiter = request.waiter, None
        if waiter is not None:
            self._room.leave(turn, waiter)
            turn.reply(waiter.request_id, True)

    def handle_multi_lock_release(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies None. Where the user still waits, its wait ends with False (stock lets it wait for ever).

        Raises:
            Refused: KeyError, for a user that neither holds nor wants anything.
        """
        user = hashable_name(stimulus.message.id)
        request = self._requests.get(user)
        if request is None:
            raise Refused("KeyError", str(user))
        waiter, request.waiter = request.waiter, None
        if waiter is not None:
            self._room.leave(turn, waiter)
            turn.reply(waiter.request_id, False)
        self._drop(turn, request)
        turn.reply(stimulus.request_id, None)

    def handle_wait_over(self, turn: Turn, stimulus: Stimulus) -> None:
        """A waiter's deadline has come: False."""
        waiter = self._room.leave_by_number(turn, stimulus.message.number)
        if waiter is not None:
            waiter.want.waiter = None
            self._drop(turn, waiter.want)
            turn.reply(waiter.request_id, False)

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        waiter = self._room.leave_by_request(turn, request_id)
        if waiter is not None:
            waiter.want.waiter = None
            self._drop(turn, waiter.want)
