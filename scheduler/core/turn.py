"""A turn of the core: the stimulus being handled, its output, and the type of handlers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from paceline.protocol.keys import Key
from paceline.protocol.messages import Event, FreeKeys, Message
from paceline.scheduler.core.state.model import ClientState
from paceline.scheduler.core.state.scheduler_state import SchedulerState

from .instructions import LogLine, SetTimer, WantsContinue

#: Levels of log lines: those of ``logging``, which the core does not import.
DEBUG: Final = 10
INFO: Final = 20
WARNING: Final = 30
ERROR: Final = 40
CRITICAL: Final = 50

#: A log line names at most this many keys.
KEYS_IN_LOG_LINE = 20
#: Budget of turns that need not end early.
NO_BUDGET = 2**62


@dataclass(slots=True, eq=False)
class Outbox:
    """The output of one or several turns.

    Attributes:
        workers: address -> messages, in order.
        clients: client name -> messages, in order.
        replies: (request_id, value) of RPC requests to reply to.
        instructions: instructions for the driver (``instructions.py``), in order.
        records: (kind, ...) tuples for metrics and dashboard pages.
    """

    workers: dict[str, list[Message]] = field(default_factory=dict)
    clients: dict[str, list[Message]] = field(default_factory=dict)
    replies: list[tuple[int, Any]] = field(default_factory=list)
    instructions: list[Any] = field(default_factory=list)
    records: list[tuple[Any, ...]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.workers or self.clients or self.replies or self.instructions or self.records
        )


@dataclass(slots=True, init=False, eq=False, repr=False)
class Turn:
    """The turn of one stimulus: its source and time, and methods to produce output.

    Attributes:
        now: seconds since the epoch, from the driver.
        stimulus_id: name of the cause in stories and logs.
        source: worker address or client name.
        request_id: of the RPC request being handled, or 0.
        budget: recommendations that this turn still makes before it defers the rest.
        outbox: receives the output.
        state: the state being changed.
    """

    state: SchedulerState
    outbox: Outbox
    now: float
    source: str
    stimulus_id: str
    request_id: int
    budget: int
    _compute_id: str

    # written out, so that mypyc compiles it
    def __init__(
        self,
        state: SchedulerState,
        outbox: Outbox,
        now: float,
        source: str,
        stimulus_id: str,
        request_id: int = 0,
        budget: int = NO_BUDGET,
    ) -> None:
        self.state = state
        self.outbox = outbox
        self.now = now
        self.source = source
        self.stimulus_id = stimulus_id
        self.request_id = request_id
        self.budget = budget
        self._compute_id = ""

    @property
    def compute_id(self) -> str:
        """The stimulus_id of ``compute-task`` messages of this turn, in stock's form."""
        if not self._compute_id:
            self._compute_id = f"compute-task-{self.state.transition_counter}"
        return self._compute_id

    def to_worker(self, address: str, message: Message) -> None:
        """Send ``message`` to a worker through its stream."""
        self.outbox.workers.setdefault(address, []).append(message)

    def to_client(self, client: str, message: Message) -> None:
        """Send ``message`` to a client through its stream."""
        self.outbox.clients.setdefault(client, []).append(message)

    def to_clients(self, clients: Iterable[ClientState], message: Message) -> None:
        """Send ``message`` to each of ``clients``."""
        for cs in clients:
            self.to_client(cs.client_key, message)

    def free_keys(self, address: str, key: Key) -> None:
        """Ask a worker to free a key; consecutive keys of a turn share a message."""
        messages = self.outbox.workers.setdefault(address, [])
        last = messages[-1] if messages else None
        if type(last) is FreeKeys and last.stimulus_id == self.stimulus_id:
            last.keys.append(key)
        else:
            messages.append(FreeKeys(keys=[key], stimulus_id=self.stimulus_id))

    def reply(self, request_id: int, value: Any) -> None:
        """Reply to an RPC request of this turn or an earlier one."""
        if request_id:
            self.outbox.replies.append((request_id, value))

    def instruct(self, instruction: Any) -> None:
        """Add an instruction for the driver."""
        self.outbox.instructions.append(instruction)

    def wants_continue(self) -> None:
        """Request a ``Continue`` stimulus, once per turn."""
        if not any(type(each) is WantsContinue for each in self.outbox.instructions):
            self.outbox.instructions.append(WantsContinue())

    def call_at(self, when: float, callback: Callable[[Turn], None]) -> int:
        """Call ``callback`` with a turn at ``when``, seconds since the epoch.

        ``callback`` is a method, a function of a module, or a ``partial`` of one of these, so that
        the state can be pickled. Return the timer's number.
        """
        timer_id = next(self.state.timer_ids)
        self.state.timers[timer_id] = callback
        self.outbox.instructions.append(SetTimer(when, timer_id))
        return timer_id

    def cancel_timer(self, timer_id: int) -> None:
        """Cancel a timer; unknown ones are ignored."""
        self.state.timers.pop(timer_id, None)

    def log(self, level: int, text: str, logger: str = "distributed.scheduler") -> None:
        """Log ``text``; ``level`` is ``INFO``, ``WARNING`` and so on, as in ``logging``."""
        self.outbox.instructions.append(LogLine(level, text, logger))

    def log_event(self, topics: str | Iterable[Hashable], event: Any) -> None:
        """Store ``event`` under one or more topics, and send it to the clients that subscribed."""
        state, logged = self.state, (self.now, event)
        for name in (topics,) if isinstance(topics, str) else topics:
            state.events.append(name, logged)
            for client in state.events.subscribers.get(name, ()):
                if client in state.clients:
                    self.to_client(client, Event(topic=name, event=logged))
            self.outbox.records.append(("log-event", name, event))


#: Handles the messages of one class; the turn has source, stimulus_id, request_id and time.
Handler: TypeAlias = Callable[[Turn, Any], None]
#: Message class -> its handler.
Registry: TypeAlias = dict[type[Any], Handler]
