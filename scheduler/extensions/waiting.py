"""Requests that wait: lines of waiters, first come first served, each with its deadline.

Must not know: what they wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .replies import Refused

if TYPE_CHECKING:
    from paceline.scheduler.core.turn import Turn

#: Waiters of one machine. Each stands for an open connection of a peer, of which a process holds a few
#: thousand; a scheduler that has more waiters than this is being abused.
WAITERS_MAX = 100_000

Want = TypeVar("Want")


@dataclass(slots=True, eq=False)
class Waiter(Generic[Want]):
    """A request that waits for its reply.

    Attributes:
        number: unique among the waiters of its room, never used again.
        request_id: under which the reply goes out.
        line: in which it stands.
        want: what it wants, as its machine likes to say it.
        since: when it came, seconds since the epoch.
        deadline: when it gives up, seconds since the epoch, or None.
        timer_id: of the deadline, or 0.
    """

    number: int
    request_id: int
    line: Hashable
    want: Want
    since: float
    deadline: float | None = None
    timer_id: int = 0


class WaitingRoom(Generic[Want]):
    """The waiters of one machine: lines in order of arrival, all of them by number and by request.

    Invariants: a line that exists has a waiter; a waiter with a deadline has a timer.
    """

    __slots__ = ("_by_request", "_lines", "_next", "_over", "_waiters", "_waiters_max")

    def __init__(self, over: Callable[[int], Any], waiters_max: int = WAITERS_MAX) -> None:
        """``over(number)`` makes the message of the timer that ends a wait."""
        self._over = over
        self._waiters_max = waiters_max
        self._next = 1
        self._waiters: dict[int, Waiter[Want]] = {}
        self._by_request: dict[int, Waiter[Want]] = {}
        self._lines: dict[Hashable, dict[int, Waiter[Want]]] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def enter(
        self, turn: Turn, line: Hashable, request_id: int, deadline: float | None, want: Want
    ) -> Waiter[Want]:
        """Let a request wait at the end of a line.

        Raises:
            Refused: RuntimeError, where too many wait already.
        """
        if len(self._waiters) >= self._waiters_max:
            raise Refused("RuntimeError", f"More than {self._waiters_max} requests wait already")
        waiter = Waiter(self._next, request_id, line, want, turn.now, deadline)
        self._next += 1
        if deadline is not None:
            waiter.timer_id = turn.call_at(deadline, self._over(waiter.number))
        self._waiters[waiter.number] = waiter
        if request_id:
            self._by_request[request_id] = waiter
        self._lines.setdefault(line, {})[waiter.number] = waiter
        return waiter

    def _step_out(self, waiter: Waiter[Want]) -> None:
        line = self._lines[waiter.line]
        del line[waiter.number]
        if not line:
            del self._lines[waiter.line]

    def leave(self, turn: Turn, waiter: Waiter[Want]) -> None:
        """Take a waiter out: it got what it wanted, or will not."""
        del self._waiters[waiter.number]
        self._by_request.pop(waiter.request_id, None)
        self._step_out(waiter)
        if waiter.timer_id:
            turn.cancel_timer(waiter.timer_id)

    def leave_by_number(self, turn: Turn, number: int) -> Waiter[Want] | None:
        """Take out the waiter whose deadline has come; None where it is no longer there."""
        waiter = self._waiters.get(number)
        if waiter is not None:
            self.leave(turn, waiter)
        return waiter

    def leave_by_request(self, turn: Turn, request_id: int) -> Waiter[Want] | None:
        """Take out the waiter whose connection is gone; None where it is no longer there."""
        waiter = self._by_request.get(request_id)
        if waiter is not None:
            self.leave(turn, waiter)
        return waiter

    def move(self, waiter: Waiter[Want], line: Hashable) -> None:
        """Let a waiter stand at the end of this line, which may be its own."""
        self._step_out(waiter)
        waiter.line = line
        self._lines.setdefault(line, {})[waiter.number] = waiter

    def first(self, line: Hashable) -> Waiter[Want] | None:
        """Who came first of those who stand in this line, or None."""
        waiters = self._lines.get(line)
        return next(iter(waiters.values())) if waiters else None

    def standing(self, line: Hashable) -> list[Waiter[Want]]:
        """Who stands in this line, in order."""
        return list(self._lines.get(line, {}).values())

    def count(self, line: Hashable) -> int:
        """How many stand in this line."""
        return len(self._lines.get(line, ()))
