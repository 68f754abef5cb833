"""The class ``SchedulerCore``, which handles one stimulus at a time and returns its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from paceline.protocol import messages as m
from paceline.scheduler.core.graphs.commit import run_commits
from paceline.scheduler.core.handlers import (
    clients,
    commands,
    graph,
    replicas,
    stealing,
    tasks,
    timers,
    workers,
)
from paceline.scheduler.core.lifecycle import deferred, transitions
from paceline.scheduler.core.policy import memory_manager
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stealing import recall

from .config import SchedulerConfig
from .ports import ErrorPort, PluginPort
from .registry import Registry, on
from .stimuli import (
    BalanceWork,
    ClientJoined,
    ClientRemoved,
    CloseWorker,
    Configure,
    ConfigureStealing,
    Continue,
    DataPlaced,
    GraphChunk,
    GraphCommit,
    GraphDropped,
    GraphFailed,
    GraphRestarted,
    IdleCheck,
    LogEventCommand,
    MakeTransitions,
    MetadataSet,
    MoveReplicas,
    RecallTask,
    ReleaseAll,
    ReplicasAdded,
    ReplicasLost,
    RequestGone,
    RestrictionsSet,
    RetryKeys,
    SetWorkerStatus,
    StealingDue,
    Stimulus,
    Tick,
    TimerDue,
    WorkerBackpressured,
    WorkerHeartbeat,
    WorkerJoined,
    WorkerRemoved,
    WriteTask,
)
from .turn import Outbox, Turn

#: With ``validate``, tasks checked per turn on average: 10,000 tasks are checked every 400th turn.
CHECKED_PER_TURN = 25


class ExtensionPort(Protocol):
    """An extension beside the life cycle of tasks (``paceline.scheduler.extensions``)."""

    name: ClassVar[str]

    def handlers(self) -> Registry: ...

    def on_client_gone(self, turn: Turn, client: str) -> None: ...

    def on_worker_gone(self, turn: Turn, address: str) -> None: ...

    def on_request_gone(self, turn: Turn, request_id: int) -> None: ...

    def on_restart(self, turn: Turn) -> None: ...


def handle_continue(turn: Turn, message: Continue) -> None:
    """Continue deferred work: recommendations and removals, then graphs, then queued tasks."""
    state = turn.state
    deferred.run_deferred(turn)
    if state.deferred.commits:
        run_commits(turn)
    transitions.fill_slots(turn)


def handle_set_metadata(turn: Turn, message: MetadataSet) -> None:
    """``Client.set_metadata``: store a value under a path of keys, creating dicts as needed."""
    metadata: Any = turn.state.task_metadata
    *path, last = message.keys
    for key in path:
        inner = metadata.get(key)
        if not isinstance(inner, dict):
            metadata[key] = inner = {}
        metadata = inner
    metadata[last] = message.value


def handle_log_event(turn: Turn, message: LogEventCommand) -> None:
    """Log an event from the server or a plugin."""
    turn.log_event(message.topics, message.event)


HANDLERS: Registry = dict(
    [
        # from workers
        on(m.TaskFinished, tasks.handle_task_finished),
        on(m.TaskErred, tasks.handle_task_erred),
        on(m.LongRunning, tasks.handle_long_running),
        on(m.Reschedule, tasks.handle_reschedule),
        on(m.KeepAlive, tasks.handle_keep_alive),
        on(m.AddKeys, replicas.handle_add_keys),
        on(m.ReleaseWorkerData, replicas.handle_release_worker_data),
        on(m.RequestRefreshWhoHas, replicas.handle_request_refresh_who_has),
        on(m.WorkerStatusChange, workers.handle_worker_status_change),
        on(m.StealResponse, recall.handle_steal_response),
        # from clients
        on(m.ClientDesiresKeys, clients.handle_client_desires_keys),
        on(m.ClientReleasesKeys, clients.handle_client_releases_keys),
        on(m.CancelKeys, clients.handle_cancel_keys),
        on(m.ReportKey, clients.handle_report_key),
        on(m.HeartbeatClient, clients.handle_heartbeat_client),
        on(m.CloseClient, clients.handle_close_client),
        on(m.SetResources, workers.handle_set_resources),
        # from the driver
        on(GraphChunk, graph.handle_graph_chunk),
        on(GraphCommit, graph.handle_graph_commit),
        on(GraphFailed, graph.handle_graph_failed),
        on(GraphDropped, graph.handle_graph_dropped),
        on(GraphRestarted, graph.handle_graph_restarted),
        on(WorkerJoined, workers.handle_worker_joined),
        on(WorkerRemoved, workers.handle_worker_removed),
        on(WorkerHeartbeat, workers.handle_worker_heartbeat),
        on(WorkerBackpressured, workers.handle_worker_backpressured),
        on(SetWorkerStatus, workers.handle_set_worker_status),
        on(ClientJoined, clients.handle_client_joined),
        on(ClientRemoved, clients.handle_client_removed),
        on(DataPlaced, replicas.handle_data_placed),
        on(ReplicasAdded, replicas.handle_replicas_added),
        on(ReplicasLost, replicas.handle_replicas_lost),
        on(RetryKeys, clients.handle_retry_keys),
        on(ReleaseAll, clients.handle_release_all),
        on(MetadataSet, handle_set_metadata),
        on(CloseWorker, workers.handle_close_worker),
        on(RestrictionsSet, commands.handle_set_restrictions),
        on(WriteTask, commands.handle_write_task),
        on(MakeTransitions, commands.handle_make_transitions),
        on(Configure, commands.handle_configure),
        on(MoveReplicas, memory_manager.handle_move_replicas),
        on(ConfigureStealing, stealing.handle_configure_stealing),
        on(BalanceWork, stealing.handle_balance_work),
        on(RecallTask, stealing.handle_recall_task),
        on(StealingDue, stealing.handle_stealing_due),
        on(LogEventCommand, handle_log_event),
        on(Continue, handle_continue),
        on(Tick, timers.handle_tick),
        on(IdleCheck, timers.handle_check_idle),
    ]
)


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
        events: Any,
        extensions: Sequence[ExtensionPort] = (),
        plugins: PluginPort | None = None,
    ) -> None:
        config.check()
        self.state = SchedulerState(config, events, errors, plugins)
        self.extensions = {extension.name: extension for extension in extensions}
        self._unchecked_turns = 0
        self.handlers: Registry = dict(HANDLERS)
        for extension in extensions:
            self.handlers.update(extension.handlers())
        self.handlers.update(
            [
                on(WorkerRemoved, self._handle_worker_removed),
                on(ClientRemoved, self._handle_client_removed),
                on(ReleaseAll, self._handle_release_all),
                on(RequestGone, self._handle_request_gone),
                on(TimerDue, self._handle_timer_due),
            ]
        )

    def knows(self, message_type: type[Any]) -> bool:
        """Return whether the core, or one of its extensions, handles messages of this class."""
        return message_type in self.handlers

    def handle(self, stimulus: Stimulus, now: float, outbox: Outbox | None = None) -> Outbox:
        """Handle ``stimulus`` in one turn and return its output.

        Args:
            stimulus: the input.
            now: seconds since the epoch; never less than in the turn before.
            outbox: the outbox to add outputs to; default: a new one.

        Raises:
            KeyError: no handler is registered for the message's class.
        """
        if outbox is None:
            outbox = Outbox()
        source, message, stimulus_id, request_id = stimulus
        handler = self.handlers.get(type(message))
        if handler is None:
            raise KeyError(f"the core has no handler for {type(message).__name__}")
        state = self.state
        budget = state.config.turn_tasks_max
        handler(Turn(state, outbox, now, source, stimulus_id, request_id, budget), message)
        if state.validate:
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

    def _handle_timer_due(self, turn: Turn, due: TimerDue) -> None:
        message = self.state.timers.take(due.timer_id)
        if message is not None:
            self.handlers[type(message)](turn, message)

    def _handle_worker_removed(self, turn: Turn, message: WorkerRemoved) -> None:
        workers.handle_worker_removed(turn, message)
        for extension in self.extensions.values():
            extension.on_worker_gone(turn, message.address)

    def _handle_client_removed(self, turn: Turn, message: ClientRemoved) -> None:
        clients.handle_client_removed(turn, message)
        for extension in self.extensions.values():
            extension.on_client_gone(turn, message.client)

    def _handle_release_all(self, turn: Turn, message: ReleaseAll) -> None:
        clients.handle_release_all(turn, message)
        for extension in self.extensions.values():
            extension.on_restart(turn)

    def _handle_request_gone(self, turn: Turn, message: RequestGone) -> None:
        for extension in self.extensions.values():
            extension.on_request_gone(turn, message.request_id)
