"""Requests that wait until the scheduler knows a task.

A client's graph arrives by another way than its requests and takes longer, so a future can be put
into a queue before its task is known. Stock checks every 10 ms. Here the interval grows with the
time since the latest request arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from paceline.protocol.keys import Key
from paceline.scheduler.core.extension import ExtensionError, ExtensionErrorReply
from paceline.scheduler.core.turn import Turn

from .wait_queues import Waiter, WaitQueues, Want

#: Shortest and longest interval between checks, seconds. In between, it is a share of the time
#: since the latest request arrived.
RECHECK_SECONDS_MIN = 0.01
RECHECK_SECONDS_MAX = 1.0
RECHECK_SHARE = 0.1


class KeyWatch(Generic[Want]):
    """Requests that wait for unknown keys.

    Invariant: a timer is set if and only if a request waits.

    Args:
        resume: called with the turn, the request ID and ``want``, once the key is known. The
            request gets an ExtensionError that it raises as reply.
    """

    def __init__(self, resume: Callable[[Turn, int, Want], None]) -> None:
        self._resume = resume
        self._waiting: WaitQueues[tuple[Key, Want]] = WaitQueues(self._give_up)
        self._timer_id = 0
        self._latest_arrival = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(
        self, turn: Turn, key: Key, request_id: int, deadline: float | None, want: Want
    ) -> None:
        """Call ``resume`` with `want` when `key` is known; reply TimeoutError at the deadline.

        Raises:
            ExtensionError: RuntimeError, if the maximum number of requests is waiting.
        """
        self._waiting.enter(turn, "", request_id, deadline, (key, want))
        self._latest_arrival = turn.now
        if not self._timer_id:
            self._set_timer(turn)

    def _set_timer(self, turn: Turn) -> None:
        waited = turn.now - self._latest_arrival
        delay = min(max(waited * RECHECK_SHARE, RECHECK_SECONDS_MIN), RECHECK_SECONDS_MAX)
        self._timer_id = turn.call_at(turn.now + delay, self._recheck)

    def _recheck(self, turn: Turn) -> None:
        """Resume the requests whose keys are known, in order of arrival."""
        self._timer_id = 0
        for waiter in self._waiting.waiters(""):
            key, want = waiter.want
            if key in turn.state.tasks:
                self._waiting.leave(turn, waiter)
                try:
                    self._resume(turn, waiter.request_id, want)
                except ExtensionError as error:
                    turn.reply(waiter.request_id, error.reply)
        if len(self._waiting) and not self._timer_id:
            self._set_timer(turn)
        self._stop_if_empty(turn)

    def _give_up(self, turn: Turn, waiter: Waiter[tuple[Key, Want]]) -> None:
        text = f"Task {waiter.want[0]} unknown to scheduler."  # type: ignore[str-bytes-safe]
        turn.reply(waiter.request_id, ExtensionErrorReply("TimeoutError", text))
        self._stop_if_empty(turn)

    def request_gone(self, turn: Turn, request_id: int) -> None:
        """Drop a request whose connection was closed."""
        self._waiting.leave_by_request(turn, request_id)
        self._stop_if_empty(turn)

    def _stop_if_empty(self, turn: Turn) -> None:
        if not len(self._waiting):
            turn.cancel_timer(self._timer_id)
            self._timer_id = 0
