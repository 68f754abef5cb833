"""Semaphores: a number of leases under a name (``distributed.Semaphore``; ``Lock`` is one with one lease).

A lease that its holder does not refresh is taken back, so that the lock of a worker that died is free again.

Must not know: who holds a lease, beyond its id.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paceline.protocol.messages import (
    SemaphoreAcquire,
    SemaphoreClose,
    SemaphoreRefreshLeases,
    SemaphoreRegister,
    SemaphoreRelease,
    SemaphoreValue,
)

from .machine import Handler, Machine
from .names import deadline_after, hashable_name, parse_seconds
from .replies import ErrorReply, Refused
from .waiting import Waiter, WaitingRoom

if TYPE_CHECKING:
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.core.turn import Turn

#: Semaphores that exist. One that nobody closes stays.
SEMAPHORES_MAX = 1_000_000
#: Leases of one semaphore that were refreshed though they were unknown: more are ignored.
UNKNOWN_LEASES_MAX = 10_000

WARNING, CRITICAL = 30, 50

#: The line of those whose semaphore was closed: nothing but their deadline comes.
CLOSED = object()

V = TypeVar("V")


@dataclass(slots=True)
class SemaphoreWaitOver:
    """Timer: an acquire has reached its deadline."""

    number: int


@dataclass(slots=True)
class LeaseCheck:
    """Timer: take back leases that were not refreshed in time."""


@dataclass(slots=True, frozen=True)
class Wanted:
    """The lease that a waiter wants."""

    lease_id: Hashable


class Sparse(dict[Hashable, V]):
    """A dict whose missing entries read as what ``default`` makes, and stay missing."""

    def __init__(self, default: Callable[[], V]) -> None:
        super().__init__()
        self._default = default

    def __missing__(self, name: Hashable) -> V:
        return self._default()


class Semaphores(Machine):
    """Ops ``semaphore_register``, ``semaphore_acquire``, ``semaphore_release``,
    ``semaphore_refresh_leases``, ``semaphore_value`` and ``semaphore_close``.

    Invariants: nobody waits for a semaphore that has a lease left; the timer of the lease check is set
    while there is a lease that can end.

    Attributes:
        max_leases: name -> leases it has to give; the names of all semaphores.
        lease_timeouts: name -> seconds after which a lease that was not refreshed ends, or None.
        leases: name -> lease id -> when it was last refreshed; names that have none read as empty.
        metrics: "acquire_total", "release_total", "average_pending_lease_time" (seconds), "pending" ->
            name -> value; names that nothing happened to read as 0.
    """

    name: ClassVar[str] = "semaphores"

    def __init__(self, validation_interval_seconds: float) -> None:
        """``validation_interval_seconds``: between two lease checks."""
        self.validation_interval_seconds = validation_interval_seconds
        self.max_leases: dict[Hashable, int] = {}
        self.lease_timeouts: dict[Hashable, float | None] = {}
        self.leases: Sparse[dict[Hashable, float]] = Sparse(dict)
        self.metrics: dict[str, Sparse[float]] = {
            "acquire_total": Sparse(int),
            "release_total": Sparse(int),
            "average_pending_lease_time": Sparse(float),
            "pending": Sparse(int),
        }
        self._room: WaitingRoom[Wanted] = WaitingRoom(SemaphoreWaitOver)
        self._check_timer_id = 0

    def routes(self) -> Mapping[type[Any], Handler]:
        return {
            SemaphoreRegister: self.handle_semaphore_register,
            SemaphoreAcquire: self.handle_semaphore_acquire,
            SemaphoreRelease: self.handle_semaphore_release,
            SemaphoreRefreshLeases: self.handle_semaphore_refresh_leases,
            SemaphoreValue: self.handle_semaphore_value,
            SemaphoreClose: self.handle_semaphore_close,
            SemaphoreWaitOver: self.handle_wait_over,
            LeaseCheck: self.handle_lease_check,
        }

    # ------------------------------------------------------------------ register and close

    def handle_semaphore_register(self, turn: Turn, stimulus: Stimulus) -> None:
        """Make a semaphore, or agree with the one there is. Replies None.

        Raises:
            Refused: ValueError, where there is one with another number of leases.
        """
        message = stimulus.message
        name = hashable_name(message.name)
        known = self.max_leases.get(name)
        if known is None:
            self._make(name, message.max_leases, parse_seconds(message.lease_timeout))
        elif message.max_leases != known:
            text = f"Inconsistent max leases: {message.max_leases}, expected: {known}"
            raise Refused("ValueError", text)
        turn.reply(stimulus.request_id, None)

    def _make(self, name: Hashable, max_leases: Any, lease_timeout: float | None) -> None:
        if not isinstance(max_leases, int):
            raise Refused("AssertionError", str(max_leases))
        if len(self.max_leases) >= SEMAPHORES_MAX:
            raise Refused("RuntimeError", f"More than {SEMAPHORES_MAX} semaphores exist")
        self.max_leases[name] = max_leases
        self.lease_timeouts[name] = lease_timeout

    def handle_semaphore_close(self, turn: Turn, stimulus: Stimulus) -> None:
        """End a semaphore, whoever holds or wants a lease. Replies None.

        Who waits with a deadline gets False then, as in stock. Who waits without one, which in stock is
        for ever, gets the error of an acquire that comes too late.
        """
        name = hashable_name(stimulus.message.name)
        if name in self.max_leases:
            del self.max_leases[name], self.lease_timeouts[name]
            leases = self.leases.pop(name, None)
            if leases:
                held = sorted(map(str, leases))
                text = f"Closing semaphore {name} but there remain unreleased leases {held}"
                turn.log(WARNING, text)
            if self._room.count(name):
                turn.log(WARNING, f"Closing semaphore {name} but there remain pending leases")
            for metric in self.metrics.values():
                metric.pop(name, None)
            self._send_away(turn, name)
        turn.reply(stimulus.request_id, None)

    def _send_away(self, turn: Turn, name: Hashable) -> None:
        for waiter in self._room.standing(name):
            if waiter.deadline is None:
                self._room.leave(turn, waiter)
                turn.reply(waiter.request_id, unknown_semaphore(name))
            else:
                self._room.move(waiter, CLOSED)

    def handle_semaphore_value(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies how many leases are held; 0 for an unknown semaphore."""
        name = hashable_name(stimulus.message.name)
        turn.reply(stimulus.request_id, len(self.leases[name]))

    # ------------------------------------------------------------------ acquire

    def handle_semaphore_acquire(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies True with a lease, False at the deadline. Asking again for a lease that is held refreshes it.

        Raises:
            Refused: RuntimeError, where there is no such semaphore.
        """
        message = stimulus.message
        name = hashable_name(message.name)
        lease_id = hashable_name(message.lease_id)
        deadline = deadline_after(turn.now, message.timeout)
        if name not in self.max_leases:
            turn.reply(stimulus.request_id, unknown_semaphore(name))
            return
        if lease_id in self.leases[name] or self._has_room(name):
            self._grant(turn, name, lease_id, 0.0)
            turn.reply(stimulus.request_id, True)
        elif deadline is not None and deadline <= turn.now:
            self._count_wait(name, 0.0)
            turn.reply(stimulus.request_id, False)
        else:
            self._room.enter(turn, name, stimulus.request_id, deadline, Wanted(lease_id))
            self._count_pending(name, 1)

    def _has_room(self, name: Hashable) -> bool:
        return len(self.leases[name]) < self.max_leases[name]

    def _grant(self, turn: Turn, name: Hashable, lease_id: Hashable, waited: float) -> None:
        self.leases.setdefault(name, {})[lease_id] = turn.now
        self.metrics["acquire_total"][name] += 1
        self._count_wait(name, waited)
        self._watch(turn, name)

    def _serve(self, turn: Turn, name: Hashable) -> None:
        """Leases that are free to those who wait, first come first served."""
        while self._has_room(name):
            waiter = self._room.first(name)
            if waiter is None:
                return
            self._leave(turn, waiter)
            self._grant(turn, name, waiter.want.lease_id, turn.now - waiter.since)
            turn.reply(waiter.request_id, True)

    def _leave(self, turn: Turn, waiter: Waiter[Wanted]) -> None:
        self._room.leave(turn, waiter)
        self._count_pending(waiter.line, -1)

    def handle_wait_over(self, turn: Turn, stimulus: Stimulus) -> None:
        """A waiter's deadline has come: False."""
        waiter = self._room.leave_by_number(turn, stimulus.message.number)
        if waiter is not None:
            self._count_pending(waiter.line, -1)
            self._count_wait(waiter.line, turn.now - waiter.since)
            turn.reply(waiter.request_id, False)

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        waiter = self._room.leave_by_request(turn, request_id)
        if waiter is not None:
            self._count_pending(waiter.line, -1)

    def _count_pending(self, name: Hashable, change: int) -> None:
        """Waiters of a semaphore that was closed are not counted."""
        if name in self.max_leases:
            pending = self.metrics["pending"]
            pending[name] = max(0, pending[name] + change)

    def _count_wait(self, name: Hashable, waited: float) -> None:
        if name in self.max_leases:
            averages = self.metrics["average_pending_lease_time"]
            averages[name] = (averages[name] + waited) / 2

    # ------------------------------------------------------------------ release and refresh

    def handle_semaphore_release(self, turn: Turn, stimulus: Stimulus) -> None:
        """Give a lease back; one that is not held is logged. Replies None."""
        message = stimulus.message
        name, lease_id = hashable_name(message.name), hashable_name(message.lease_id)
        if name not in self.max_leases:
            turn.log(WARNING, f"Tried to release Lock or Semaphore `{name}` but it is not known.")
        elif lease_id in self.leases[name]:
            self._take_back(turn, name, lease_id)
        else:
            turn.log(
                WARNING,
                "Tried to release Lock or Semaphore but it was already released: "
                f"{name=}, {lease_id=}. "
                "This can happen if the Lock or Semaphore timed out before.",
            )
        turn.reply(stimulus.request_id, None)

    def _take_back(self, turn: Turn, name: Hashable, lease_id: Hashable) -> None:
        leases = self.leases[name]
        del leases[lease_id]
        if not leases:
            del self.leases[name]
        self.metrics["release_total"][name] += 1
        self._serve(turn, name)

    def handle_semaphore_refresh_leases(self, turn: Turn, stimulus: Stimulus) -> None:
        """Holders say that they are there. Replies None.

        A lease that was taken back too early is given again, though the semaphore may then be overbooked:
        its holder believes that it has it.
        """
        message = stimulus.message
        name = hashable_name(message.name)
        for raw_id in message.lease_ids or ():
            self._refresh(turn, name, hashable_name(raw_id))
        turn.reply(stimulus.request_id, None)

    def _refresh(self, turn: Turn, name: Hashable, lease_id: Hashable) -> None:
        leases = self.leases[name]
        if lease_id not in leases:
            turn.log(
                CRITICAL,
                f"Refreshing an unknown lease ID {lease_id} for {name}. This might be due to leases "
                "timing out and may cause overbooking of the semaphore! "
                "This is often caused by long-running GIL-holding in the task which acquired the lease.",
            )
            limit = self.max_leases.get(name)
            if limit is None or len(leases) >= limit + UNKNOWN_LEASES_MAX:
                return
        self.leases.setdefault(name, leases)[lease_id] = turn.now
        self._watch(turn, name)

    # ------------------------------------------------------------------ leases that end

    def _watch(self, turn: Turn, name: Hashable) -> None:
        if not self._check_timer_id and name in self.leases and self.lease_timeouts.get(name):
            when = turn.now + self.validation_interval_seconds
            self._check_timer_id = turn.call_at(when, LeaseCheck())

    def handle_lease_check(self, turn: Turn, stimulus: Stimulus) -> None:
        """Take back what was not refreshed in time, and look again later."""
        self._check_timer_id = 0
        for name in list(self.leases):
            timeout = self.lease_timeouts.get(name)
            if timeout:
                self._take_back_old(turn, name, timeout)
                self._watch(turn, name)

    def _take_back_old(self, turn: Turn, name: Hashable, timeout: float) -> None:
        leases = self.leases[name]
        for lease_id in [x for x, seen in leases.items() if turn.now - seen > timeout]:
            self._take_back(turn, name, lease_id)


def unknown_semaphore(name: Hashable) -> ErrorReply:
    """The reply to an acquire of a semaphore that nobody registered."""
    return ErrorReply("RuntimeError", f"Semaphore or Lock `{name}` not known.")
