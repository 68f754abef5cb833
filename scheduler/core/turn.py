"""One turn of the core: the outputs that gather while a stimulus is handled.

Must not know: what the messages mean; who sends them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.protocol.keys import Key
from paceline.protocol.messages import FreeKeys, Message

from .stimuli import LogLine, SetTimer, WantsContinue

if TYPE_CHECKING:
    from .state import SchedulerState


#: For turns that need not end early.
NO_BUDGET = 2**62


class Outbox:
    """What came of one or several turns.

    Attributes:
        workers: address -> messages, in order.
        clients: client name -> messages, in order.
        replies: (request_id, value) of RPC requests that are answered now.
        instructions: what the driver is asked to do (``stimuli``), in order.
        records: (kind, ...) tuples that metrics and pages read after the turn.
    """

    __slots__ = ("clients", "instructions", "records", "replies", "workers")

    def __init__(self) -> None:
        self.workers: dict[str, list[Message]] = {}
        self.clients: dict[str, list[Message]] = {}
        self.replies: list[tuple[int, Any]] = []
        self.instructions: list[Any] = []
        self.records: list[tuple[Any, ...]] = []

    def __bool__(self) -> bool:
        return bool(
            self.workers or self.clients or self.replies or self.instructions or self.records
        )


class Turn:
    """The stimulus at hand: its time, its name, and where its outputs go.

    Attributes:
        now: seconds since the epoch, as the driver gave it.
        stimulus_id: what stories and logs call the cause.
        source: worker address or client name.
        request_id: of the RPC request being handled, or 0.
        budget: how many more recommendations this turn carries out before it puts the rest off.
        outbox: where outputs go.
        state: the state being changed.
    """

    __slots__ = (
        "_compute_id", "budget", "now", "outbox", "request_id", "source", "state", "stimulus_id",
    )  # fmt: skip

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
        """stimulus_id of the ``compute-task`` messages of this turn, named as stock names them."""
        if not self._compute_id:
            self._compute_id = f"compute-task-{self.state.transition_counter}"
        return self._compute_id

    def to_worker(self, address: str, message: Message) -> None:
        """Send to a worker's stream."""
        messages = self.outbox.workers.get(address)
        if messages is None:
            self.outbox.workers[address] = [message]
        else:
            messages.append(message)

    def to_client(self, client: str, message: Message) -> None:
        """Send to a client's stream."""
        messages = self.outbox.clients.get(client)
        if messages is None:
            self.outbox.clients[client] = [message]
        else:
            messages.append(message)

    def free_keys(self, address: str, key: Key) -> None:
        """Ask a worker to drop a task and its data; neighbours in the same turn share a message."""
        messages = self.outbox.workers.get(address)
        if messages is None:
            self.outbox.workers[address] = [FreeKeys(keys=[key], stimulus_id=self.stimulus_id)]
            return
        last = messages[-1]
        if type(last) is FreeKeys and last.stimulus_id == self.stimulus_id:
            last.keys.append(key)
        else:
            messages.append(FreeKeys(keys=[key], stimulus_id=self.stimulus_id))

    def reply(self, request_id: int, value: Any) -> None:
        """Answer an RPC request: this turn's, or one that has waited."""
        if request_id:
            self.outbox.replies.append((request_id, value))

    def instruct(self, instruction: Any) -> None:
        """Ask the driver to do something."""
        self.outbox.instructions.append(instruction)

    def wants_continue(self) -> None:
        """Ask for a ``Continue`` stimulus, once."""
        for instruction in self.outbox.instructions:
            if type(instruction) is WantsContinue:
                return
        self.outbox.instructions.append(WantsContinue())

    def call_at(self, when: float, callback_message: Any) -> int:
        """Feed ``callback_message`` back at ``when`` (seconds since the epoch). Returns the timer's number."""
        timer_id = self.state.timers.add(callback_message)
        self.outbox.instructions.append(SetTimer(when, timer_id))
        return timer_id

    def cancel_timer(self, timer_id: int) -> None:
        """Forget a timer; unknown ones are ignored."""
        self.state.timers.cancel(timer_id)

    def log(self, level: int, text: str, logger: str = "distributed.scheduler") -> None:
        """A line for the log (10 debug, 20 info, 30 warning, 40 error)."""
        self.outbox.instructions.append(LogLine(level, text, logger))

    def log_event(self, topics: str | list[str], event: Any) -> None:
        """Store an event under its topics and tell the clients that subscribed."""
        self.state.events.log(self, topics, event)
