"""Events: named flags that clients set, clear and wait for (``distributed.Event``)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.protocol.messages import EventClear, EventIsSet, EventSet, EventWait
from paceline.scheduler.core.registry import Registry, on

from .errors import ExtensionError
from .extension import Extension
from .names import deadline_after, hashable_name
from .wait_queues import WaitQueues

if TYPE_CHECKING:
    from paceline.scheduler.core.turn import Turn

#: Maximum number of events that are set. An event stays set until a client clears it.
SET_EVENTS_MAX = 1_000_000


@dataclass(slots=True)
class EventWaitOver:
    """Timer message: the deadline of a wait has passed."""

    number: int


class EventFlags(Extension):
    """Operations ``event_set``, ``event_clear``, ``event_is_set`` and ``event_wait``.

    Events that are not set are not stored. Invariant: no request waits for an event that is set.
    """

    name: ClassVar[str] = "events"

    def __init__(self) -> None:
        self._set: dict[Hashable, None] = {}
        self._waiting: WaitQueues[None] = WaitQueues(EventWaitOver)

    def routes(self) -> Registry:
        """See ``Extension``."""
        return dict(
            [
                on(EventSet, self.handle_event_set),
                on(EventClear, self.handle_event_clear),
                on(EventIsSet, self.handle_event_is_set),
                on(EventWait, self.handle_event_wait),
                on(EventWaitOver, self.handle_wait_over),
            ]
        )

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

    def handle_wait_over(self, turn: Turn, message: EventWaitOver) -> None:
        """Reply False to a request whose deadline has passed."""
        waiter = self._waiting.leave_by_number(turn, message.number)
        if waiter is not None:
            turn.reply(waiter.request_id, False)

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        """See ``Extension``."""
        self._waiting.leave_by_request(turn, request_id)
