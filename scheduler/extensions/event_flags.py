"""Events: named flags that clients set, clear and wait for (``distributed.Event``)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from paceline.protocol.messages import EventClear, EventIsSet, EventSet, EventWait
from paceline.scheduler.core.extension import Extension, ExtensionError
from paceline.scheduler.core.turn import Turn

from .names import deadline_after, hashable_name
from .wait_queues import Waiter, WaitQueues

#: Maximum number of events that are set. An event stays set until a client clears it.
SET_EVENTS_MAX = 1_000_000


class EventFlags(Extension):
    """Operations ``event_set``, ``event_clear``, ``event_is_set`` and ``event_wait``.

    Events that are not set are not stored. Invariant: no request waits for an event that is set.
    """

    name: ClassVar[str] = "events"

    def __init__(self) -> None:
        self._set: dict[Hashable, None] = {}
        self._waiting: WaitQueues[None] = WaitQueues(self._time_out)

    def handle_event_set(self, turn: Turn, message: EventSet) -> None:
        """Set an event, reply True to the requests that wait for it, and reply None."""
        name = hashable_name(message.name)
        if name not in self._set and len(self._set) >= SET_EVENTS_MAX:
            raise ExtensionError("RuntimeError", f"More than {SET_EVENTS_MAX} events are set")
        self._set[name] = None
        for waiter in self._waiting.waiters(name):
            self._waiting.leave(turn, waiter)
            turn.reply(waiter.request_id, True)
        turn.reply(turn.request_id, None)

    def handle_event_clear(self, turn: Turn, message: EventClear) -> None:
        """Clear an event and reply None."""
        self._set.pop(hashable_name(message.name), None)
        turn.reply(turn.request_id, None)

    def handle_event_is_set(self, turn: Turn, message: EventIsSet) -> None:
        """Reply whether an event is set."""
        turn.reply(turn.request_id, hashable_name(message.name) in self._set)

    def handle_event_wait(self, turn: Turn, message: EventWait) -> None:
        """Reply True when the event is set, or False at the deadline."""
        name = hashable_name(message.name)
        deadline = deadline_after(turn.now, message.timeout)
        if name in self._set:
            turn.reply(turn.request_id, True)
        elif deadline is not None and deadline <= turn.now:
            turn.reply(turn.request_id, False)
        else:
            self._waiting.enter(turn, name, turn.request_id, deadline, None)

    def _time_out(self, turn: Turn, waiter: Waiter[None]) -> None:
        turn.reply(waiter.request_id, False)

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        self._waiting.leave_by_request(turn, request_id)
