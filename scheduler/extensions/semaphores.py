"""Semaphores: a number of leases under a name (``distributed.Semaphore``).

A ``Lock`` is a semaphore with one lease. A lease that its holder does not refresh expires, so that
the lock of a worker that died becomes free.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar, TypeVar

from paceline.protocol import messages as m
from paceline.scheduler.core.extension import Extension, ExtensionError, ExtensionErrorReply
from paceline.scheduler.core.turn import CRITICAL, WARNING, Turn

from .names import deadline_after, hashable_name, parse_seconds
from .wait_queues import Waiter, WaitQueues

#: Maximum number of semaphores. A semaphore exists until a client closes it.
SEMAPHORES_MAX = 1_000_000
#: Maximum number of unknown leases of a semaphore that a refresh adds.
UNKNOWN_LEASES_MAX = 10_000

#: Queue of the waiters of closed semaphores, which wait for their deadline only.
CLOSED = object()

V = TypeVar("V")


class Sparse(dict[Hashable, V]):
    """A dict that returns ``default()`` for a missing entry without storing it."""

    def __init__(self, default: Callable[[], V]) -> None:
        super().__init__()
        self._default = default

    def __missing__(self, name: Hashable) -> V:
        return self._default()


class Semaphores(Extension):
    """The operations ``semaphore_...``.

    Invariants: no request waits for a semaphore with a free lease; the timer of the lease check is
    set while there is a lease that can expire.

    Args:
        validation_interval_seconds: time between two lease checks.

    Attributes:
        max_leases: name -> maximum number of leases; contains all semaphores.
        lease_timeouts: name -> seconds after which a lease that is not refreshed expires, or None.
        leases: name -> lease ID -> time of the last refresh; empty for names without leases.
        metrics: "acquire_total", "release_total", "average_pending_lease_time" (seconds) or
            "pending" -> name -> value; 0 for other names.
    """

    name: ClassVar[str] = "semaphores"

    def __init__(self, validation_interval_seconds: float) -> None:
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
        self._waiting: WaitQueues[Hashable] = WaitQueues(self._time_out)
        self._check_timer_id = 0

    # ------------------------------------------------------------------ register and close

    def handle_semaphore_register(self, turn: Turn, message: m.SemaphoreRegister) -> None:
        """Create a semaphore unless it exists and reply None.

        Raises:
            ExtensionError: ValueError, if it exists with another number of leases.
        """
        name = hashable_name(message.name)
        known = self.max_leases.get(name)
        if known is None:
            self._create(name, message.max_leases, parse_seconds(message.lease_timeout))
        elif message.max_leases != known:
            text = f"Inconsistent max leases: {message.max_leases}, expected: {known}"
            raise ExtensionError("ValueError", text)
        turn.reply(turn.request_id, None)

    def _create(self, name: Hashable, max_leases: Any, lease_timeout: float | None) -> None:
        if not isinstance(max_leases, int):
            raise ExtensionError("AssertionError", str(max_leases))
        if len(self.max_leases) >= SEMAPHORES_MAX:
            raise ExtensionError("RuntimeError", f"More than {SEMAPHORES_MAX} semaphores exist")
        self.max_leases[name] = max_leases
        self.lease_timeouts[name] = lease_timeout

    def handle_semaphore_close(self, turn: Turn, message: m.SemaphoreClose) -> None:
        """Remove a semaphore, even if leases are held or requested, and reply None.

        As in stock, waiting requests with a deadline receive False at the deadline. Those without
        one, which in stock wait forever, receive the error of an unknown semaphore.
        """
        name = hashable_name(message.name)
        if name in self.max_leases:
            del self.max_leases[name], self.lease_timeouts[name]
            leases = self.leases.pop(name, None)
            if leases:
                held = sorted(map(str, leases))
                text = f"Closing semaphore {name} but there remain unreleased leases {held}"
                turn.log(WARNING, text)
            if self._waiting.count(name):
                turn.log(WARNING, f"Closing semaphore {name} but there remain pending leases")
            for metric in self.metrics.values():
                metric.pop(name, None)
            for waiter in self._waiting.waiters(name):
                if waiter.deadline is None:
                    self._waiting.leave(turn, waiter)
                    turn.reply(waiter.request_id, unknown_semaphore(name))
                else:
                    self._waiting.move(waiter, CLOSED)
        turn.reply(turn.request_id, None)

    def handle_semaphore_value(self, turn: Turn, message: m.SemaphoreValue) -> None:
        """Reply the number of leases in use; 0 for an unknown semaphore."""
        name = hashable_name(message.name)
        turn.reply(turn.request_id, len(self.leases[name]))

    # ------------------------------------------------------------------ acquire

    def handle_semaphore_acquire(self, turn: Turn, message: m.SemaphoreAcquire) -> None:
        """Reply True when the lease is granted, or False at the deadline.

        Acquiring a lease again refreshes it. An unknown semaphore is a RuntimeError.
        """
        name = hashable_name(message.name)
        lease_id = hashable_name(message.lease_id)
        deadline = deadline_after(turn.now, message.timeout)
        if name not in self.max_leases:
            turn.reply(turn.request_id, unknown_semaphore(name))
            return
        if lease_id in self.leases[name] or self._has_free_lease(name):
            self._grant(turn, name, lease_id, 0.0)
            turn.reply(turn.request_id, True)
        elif deadline is not None and deadline <= turn.now:
            self._count_wait(name, 0.0)
            turn.reply(turn.request_id, False)
        else:
            self._waiting.enter(turn, name, turn.request_id, deadline, lease_id)
            self._count_pending(name, 1)

    def _has_free_lease(self, name: Hashable) -> bool:
        return len(self.leases[name]) < self.max_leases[name]

    def _grant(self, turn: Turn, name: Hashable, lease_id: Hashable, waited: float) -> None:
        self.leases.setdefault(name, {})[lease_id] = turn.now
        self.metrics["acquire_total"][name] += 1
        self._count_wait(name, waited)
        self._schedule_check(turn, name)

    def _serve(self, turn: Turn, name: Hashable) -> None:
        """Grant free leases to waiting requests in order of arrival.

        Requests for the same lease, which a client repeats after an error, are granted together.
        """
        while self._has_free_lease(name):
            first = self._waiting.first(name)
            if first is None:
                return
            for waiter in self._waiting.waiters(name):
                if waiter.want == first.want:
                    self._waiting.leave(turn, waiter)
                    self._count_pending(name, -1)
                    self._grant(turn, name, waiter.want, turn.now - waiter.since)
                    turn.reply(waiter.request_id, True)

    def _time_out(self, turn: Turn, waiter: Waiter[Hashable]) -> None:
        self._count_pending(waiter.queue, -1)
        self._count_wait(waiter.queue, turn.now - waiter.since)
        turn.reply(waiter.request_id, False)

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        waiter = self._waiting.leave_by_request(turn, request_id)
        if waiter is not None:
            self._count_pending(waiter.queue, -1)

    def _count_pending(self, name: Hashable, change: int) -> None:
        """Change the number of waiting requests, unless the semaphore was closed."""
        if name in self.max_leases:
            pending = self.metrics["pending"]
            pending[name] = max(0, pending[name] + change)

    def _count_wait(self, name: Hashable, waited: float) -> None:
        if name in self.max_leases:
            averages = self.metrics["average_pending_lease_time"]
            averages[name] = (averages[name] + waited) / 2

    # ------------------------------------------------------------------ release and refresh

    def handle_semaphore_release(self, turn: Turn, message: m.SemaphoreRelease) -> None:
        """Release a lease, or log a warning if it is not held, and reply None."""
        name, lease_id = hashable_name(message.name), hashable_name(message.lease_id)
        if name not in self.max_leases:
            turn.log(WARNING, f"Tried to release Lock or Semaphore `{name}` but it is not known.")
        elif lease_id in self.leases[name]:
            self._release(turn, name, lease_id)
        else:
            turn.log(
                WARNING,
                "Tried to release Lock or Semaphore but it was already released: "
                f"{name=}, {lease_id=}. "
                "This can happen if the Lock or Semaphore timed out before.",
            )
        turn.reply(turn.request_id, None)

    def _release(self, turn: Turn, name: Hashable, lease_id: Hashable) -> None:
        leases = self.leases[name]
        del leases[lease_id]
        if not leases:
            del self.leases[name]
        self.metrics["release_total"][name] += 1
        self._serve(turn, name)

    def handle_refresh_leases(self, turn: Turn, message: m.SemaphoreRefreshLeases) -> None:
        """Refresh leases and reply None.

        A lease that has expired is granted again, because its holder still uses it. The semaphore
        may then have more leases than its maximum.
        """
        name = hashable_name(message.name)
        for raw_id in message.lease_ids or ():
            self._refresh(turn, name, hashable_name(raw_id))
        turn.reply(turn.request_id, None)

    def _refresh(self, turn: Turn, name: Hashable, lease_id: Hashable) -> None:
        leases = self.leases[name]
        if lease_id not in leases:
            turn.log(
                CRITICAL,
                f"Refreshing an unknown lease ID {lease_id} for {name}. This might be due to "
                "leases timing out and may cause overbooking of the semaphore! "
                "This is often caused by long-running GIL-holding in the task which acquired "
                "the lease.",
            )
            limit = self.max_leases.get(name)
            if limit is None or len(leases) >= limit + UNKNOWN_LEASES_MAX:
                return
        self.leases.setdefault(name, leases)[lease_id] = turn.now
        self._schedule_check(turn, name)

    # ------------------------------------------------------------------ expiry

    def _schedule_check(self, turn: Turn, name: Hashable) -> None:
        if not self._check_timer_id and name in self.leases and self.lease_timeouts.get(name):
            when = turn.now + self.validation_interval_seconds
            self._check_timer_id = turn.call_at(when, self._check_leases)

    def _check_leases(self, turn: Turn) -> None:
        """Release expired leases and schedule the next check."""
        self._check_timer_id = 0
        for name in list(self.leases):
            timeout = self.lease_timeouts.get(name)
            if timeout:
                leases = self.leases[name]
                for lease_id in [x for x, seen in leases.items() if turn.now - seen > timeout]:
                    self._release(turn, name, lease_id)
                self._schedule_check(turn, name)


def unknown_semaphore(name: Hashable) -> ExtensionErrorReply:
    """Return the reply to an acquire of an unknown semaphore."""
    return ExtensionErrorReply("RuntimeError", f"Semaphore or Lock `{name}` not known.")
