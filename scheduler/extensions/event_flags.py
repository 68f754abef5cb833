"""Events: named flags that peers set, clear and wait for (``distributed.Event``).

Must not know: the event log, which is something else (``events.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.protocol.messages import EventClear, EventIsSet, EventSet, EventWait

from .machine import Handler, Machine
from .names import deadline_after, hashable_name
from .replies import Refused
from .waiting import WaitingRoom

if TYPE_CHECKING:
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.core.turn import Turn

#: Events that are set. A set event stays until somebody clears it, so a program that makes events without
#: end would fill the memory.
SET_EVENTS_MAX = 1_000_000


@dataclass(slots=True)
class EventWaitOver:
    """Timer: a wait has reached its deadline."""

    number: int


class Events(Machine):
    """Ops ``event_set``, ``event_clear``, ``event_is_set`` and ``event_wait``.

    An event that is not set takes no memory; nobody waits for one that is.
    """

    name: ClassVar[str] = "events"

    def __init__(self) -> None:
        self._set: dict[Hashable, None] = {}
        self._room: WaitingRoom[None] = WaitingRoom(EventWaitOver)

    def routes(self) -> Mapping[type[Any], Handler]:
        return {
            EventSet: self.handle_event_set,
            EventClear: self.handle_event_clear,
            EventIsSet: self.handle_event_is_set,
            EventWait: self.handle_event_wait,
            EventWaitOver: self.handle_wait_over,
        }

    def handle_event_set(self, turn: Turn, stimulus: Stimulus) -> None:
        """All who wait get True. Replies None."""
        name = hashable_name(stimulus.message.name)
        if name not in self._set and len(self._set) >= SET_EVENTS_MAX:
            raise Refused("RuntimeError", f"More than {SET_EVENTS_MAX} events are set")
        self._set[name] = None
        for waiter in self._room.standing(name):
            self._room.leave(turn, waiter)
            turn.reply(waiter.request_id, True)
        turn.reply(stimulus.request_id, None)

    def handle_event_clear(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies None."""
        self._set.pop(hashable_name(stimulus.message.name), None)
        turn.reply(stimulus.request_id, None)

    def handle_event_is_set(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies whether it is set."""
        turn.reply(stimulus.request_id, hashable_name(stimulus.message.name) in self._set)

    def handle_event_wait(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies True when it is set, False at the deadline."""
        name = hashable_name(stimulus.message.name)
        deadline = deadline_after(turn.now, stimulus.message.timeout)
        if name in self._set:
            turn.reply(stimulus.request_id, True)
        elif deadline is not None and deadline <= turn.now:
            turn.reply(stimulus.request_id, False)
        else:
            self._room.enter(turn, name, stimulus.request_id, deadline, None)

    def handle_wait_over(self, turn: Turn, stimulus: Stimulus) -> None:
        """A waiter's deadline has come: False."""
        waiter = self._room.leave_by_number(turn, stimulus.message.number)
        if waiter is not None:
            turn.reply(waiter.request_id, False)

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        self._room.leave_by_request(turn, request_id)
