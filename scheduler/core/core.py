"""The class ``SchedulerCore``, which handles one stimulus at a time and returns its output."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.protocol.messages import WorkerStatusChange
from paceline.scheduler.core.graphs import commit
from paceline.scheduler.core.handlers import (
    clients,
    commands,
    reconciliation,
    replicas,
    retries,
    scaling,
    shares,
    stealing,
    tasks,
    timers,
    workers,
)
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stealing import recall

from .config import SchedulerConfig
from .extension import Extension
from .ports import ErrorPort, PluginPort
from .stimuli import (
    ClientRemoved,
    ReleaseAll,
    RequestGone,
    SetAside,
    Stimulus,
    TimerDue,
    WorkerRemoved,
)
from .turn import Outbox, Registry, Turn

#: Message class -> handler, over the modules of the core. ``SchedulerCore`` adds its own.
HANDLERS: Registry = {
    **clients.HANDLERS,
    **commands.HANDLERS,
    **commit.HANDLERS,
    **reconciliation.HANDLERS,
    **replicas.HANDLERS,
    **shares.HANDLERS,
    **retries.HANDLERS,
    **scaling.HANDLERS,
    **stealing.HANDLERS,
    **tasks.HANDLERS,
    **timers.HANDLERS,
    **workers.HANDLERS,
}

#: With ``validate``, tasks checked per turn on average: 10,000 tasks are checked every 400th turn.
CHECKED_PER_TURN = 25


class SchedulerCore:
    """The scheduler's state, and the handlers that change it.

    Args:
        config: settings; checked here.
        errors: creates exceptions that clients deserialize.
        events: the event log.
        extensions: extensions, in the order in which they are notified of peers that left.
        plugins: calls the hooks of scheduler plugins; None without plugins.

    Raises:
        ValueError: from ``config.check``.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        errors: ErrorPort,
        events: EventLog,
        extensions: Sequence[Extension] = (),
        plugins: PluginPort | None = None,
    ) -> None:
        config.check()
        self.state = SchedulerState(config, events, errors, plugins)
        self.extensions = {extension.name: extension for extension in extensions}
        self._unchecked_turns = 0
        self.handlers: Registry = {}
        self.register_handlers()

    def register_handlers(self) -> None:
        """Register the handlers of the core and its extensions, which snapshots do not contain."""
        self.handlers = dict(HANDLERS)
        for extension in self.extensions.values():
            self.handlers.update(extension.handlers())
        self.handlers[TimerDue] = self.handle_timer_due
        self.handlers[SetAside] = self.handle_set_aside
        self.handlers[WorkerRemoved] = self.handle_worker_removed
        self.handlers[WorkerStatusChange] = self.handle_worker_status_change
        self.handlers[ClientRemoved] = self.handle_client_removed
        self.handlers[ReleaseAll] = self.handle_release_all
        self.handlers[RequestGone] = self.handle_request_gone

    def handle(self, stimulus: Stimulus, now: float, outbox: Outbox | None = None) -> Outbox:
        """Handle ``stimulus`` in one turn and return its output, which is added to ``outbox``.

        ``now`` is in seconds since the epoch, and never less than in the turn before. Raise
        KeyError if there is no handler for the message's class.
        """
        if outbox is None:
            outbox = Outbox()
        source, message, stimulus_id, request_id = stimulus
        handler = self.handlers.get(type(message))
        if handler is None:
            raise KeyError(f"the core has no handler for {type(message).__name__}")
        state = self.state
        state.now = now
        budget = state.config.turn_tasks_max
        turn = Turn(state, outbox, now, source, stimulus_id, request_id, budget)
        handler(turn, message)
        if state.shares.recall_due:
            recall.recall_excess(turn)
        if state.config.validate:
            self._validate()
        return outbox

    def _validate(self) -> None:
        """Check the invariants: after each turn if there are few tasks, else every n turns.

        This bounds the mean cost per turn.
        """
        self._unchecked_turns += 1
        if self._unchecked_turns * CHECKED_PER_TURN < len(self.state.tasks):
            return
        self._unchecked_turns = 0
        from paceline.scheduler.core.inspection.invariants import validate_state

        validate_state(self.state)

    def handle_timer_due(self, turn: Turn, due: TimerDue) -> None:
        """Call what ``turn.call_at`` scheduled, unless it was cancelled."""
        callback = self.state.timers.pop(due.timer_id, None)
        if callback is not None:
            callback(turn)

    def handle_set_aside(self, turn: Turn, message: SetAside) -> None:
        """Cancel a timer whose function must not be called. Ignore other stimuli."""
        if type(message.message) is TimerDue:
            turn.cancel_timer(message.message.timer_id)

    def handle_worker_removed(self, turn: Turn, message: WorkerRemoved) -> None:
        """Remove a worker, and notify the extensions."""
        workers.handle_worker_removed(turn, message)
        for extension in self.extensions.values():
            extension.on_worker_removed(turn, message.address)

    def handle_worker_status_change(self, turn: Turn, message: WorkerStatusChange) -> None:
        """Update the status of a worker, or remove it if it is closed.

        A stock worker that is closed while it registers keeps its stream open, and its process may
        run on: a worker of a ``LocalCluster`` without processes.
        """
        address = turn.source
        if message.status in ("closed", "failed") and address in self.state.workers:
            self.handle_worker_removed(turn, WorkerRemoved(address, expected=True, close=False))
        else:
            workers.handle_worker_status_change(turn, message)

    def handle_client_removed(self, turn: Turn, message: ClientRemoved) -> None:
        """Remove a client, and notify the extensions."""
        clients.handle_client_removed(turn, message)
        for extension in self.extensions.values():
            extension.on_client_removed(turn, message.client)

    def handle_release_all(self, turn: Turn, message: ReleaseAll) -> None:
        """Forget all tasks, and notify the extensions."""
        clients.handle_release_all(turn, message)
        for extension in self.extensions.values():
            extension.on_restart(turn)

    def handle_request_gone(self, turn: Turn, message: RequestGone) -> None:
        """Notify the extensions, one of which may hold the request."""
        for extension in self.extensions.values():
            extension.on_request_gone(turn, message.request_id)
