"""Requests that wait until the scheduler knows a task.

A client's graph travels another way than its requests, and takes longer, so a future can be put into a queue
before its task is there. Stock looks again every 10 ms. Here the core may say that tasks came
(``on_keys_known``), and without that the watch looks by itself, less often the longer it has waited.

Must not know: what the requests want.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .replies import ErrorReply
from .waiting import Waiter, WaitingRoom

if TYPE_CHECKING:
    from paceline.protocol.keys import Key
    from paceline.scheduler.core.turn import Turn

#: Shortest and longest time between two looks, seconds; between them, a share of the time waited so far.
LOOK_SECONDS_MIN = 0.01
LOOK_SECONDS_MAX = 1.0
LOOK_SHARE = 0.1

#: Called with the request_id and what was to be done, once the key is known.
Resume = Callable[["Turn", int, Any], None]


class KeyWatch:
    """Requests by the key that they wait for.

    Invariant: a timer is set exactly while somebody waits.
    """

    __slots__ = ("_look", "_resume", "_room", "_timer_id", "_youngest")

    def __init__(self, resume: Resume, look: Callable[[], Any], over: Callable[[int], Any]) -> None:
        """``look()`` makes the timer message on which ``look_again`` is to be called, ``over(number)`` the
        one for ``give_up``."""
        self._resume = resume
        self._look = look
        self._room: WaitingRoom[tuple[Key, Any]] = WaitingRoom(over)
        self._timer_id = 0
        self._youngest = 0.0

    def __len__(self) -> int:
        return len(self._room)

    def wait(
        self, turn: Turn, key: Key, request_id: int, deadline: float | None, want: Any
    ) -> None:
        """Call ``resume`` with ``want`` when the key is known; reply TimeoutError at the deadline.

        Raises:
            Refused: where too many wait, or the deadline has passed.
        """
        self._room.enter(turn, "", request_id, deadline, (key, want))
        self._youngest = turn.now
        if not self._timer_id:
            self._set_timer(turn)

    def _set_timer(self, turn: Turn) -> None:
        waited = turn.now - self._youngest
        delay = min(max(waited * LOOK_SHARE, LOOK_SECONDS_MIN), LOOK_SECONDS_MAX)
        self._timer_id = turn.call_at(turn.now + delay, self._look())

    def look_again(self, turn: Turn) -> None:
        """The timer is due: whose key is known now goes on."""
        self._timer_id = 0
        self.look(turn)
        if len(self._room) and not self._timer_id:
            self._set_timer(turn)

    def look(self, turn: Turn) -> None:
        """Whose key is known now goes on, in order of arrival."""
        for waiter in self._room.standing(""):
            key, want = waiter.want
            if key in turn.state.tasks:
                self._room.leave(turn, waiter)
                self._resume(turn, waiter.request_id, want)
        self._stop_if_empty(turn)

    def give_up(self, turn: Turn, number: int) -> None:
        """The deadline of a waiter has come."""
        waiter = self._room.leave_by_number(turn, number)
        if waiter is not None:
            turn.reply(waiter.request_id, unknown_key(waiter))
        self._stop_if_empty(turn)

    def request_gone(self, turn: Turn, request_id: int) -> None:
        """Nobody waits for this reply any more."""
        self._room.leave_by_request(turn, request_id)
        self._stop_if_empty(turn)

    def _stop_if_empty(self, turn: Turn) -> None:
        if self._timer_id and not len(self._room):
            turn.cancel_timer(self._timer_id)
            self._timer_id = 0


def unknown_key(waiter: Waiter[tuple[Any, Any]]) -> ErrorReply:
    """The reply to a request whose key never came."""
    return ErrorReply("TimeoutError", f"Task {waiter.want[0]} unknown to scheduler.")
