"""The door of the core: one stimulus in, an outbox out.

Must not know: what stands outside; each handler knows its own stimulus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from paceline.protocol import messages as m

from . import later, memory_manager, steal_requests, transitions
from .config import SchedulerConfig
from .handlers import clients, commands, graph, replicas, stealing, tasks, timers, workers
from .ports import ErrorPort, PluginPort
from .state import SchedulerState
from .stimuli import (
    AskBack,
    BalanceWork,
    CheckIdle,
    ClientGone,
    ClientJoined,
    CloseWorker,
    Configure,
    Continue,
    DataPlaced,
    GraphChunk,
    GraphCommit,
    GraphDropped,
    GraphFailed,
    LogEventCommand,
    MakeTransitions,
    MoveReplicas,
    ReleaseAll,
    ReplicasAdded,
    ReplicasLost,
    RequestGone,
    RetryKeys,
    SetMetadata,
    SetRestrictions,
    SetWorkerStatus,
    StealingDue,
    Stimulus,
    SwitchStealing,
    Tick,
    TimerDue,
    WorkerBeat,
    WorkerClogged,
    WorkerGone,
    WorkerJoined,
    WriteTask,
)
from .turn import Outbox, Turn

Handler = Callable[[Turn, Stimulus], None]

#: With ``validate`` on, all is checked after so many turns that this many tasks a turn are: 10,000 tasks every 400th turn.
CHECKED_PER_TURN = 25

#: Stimuli of which the machines beside the task lifecycle hear.
_HEARD_BY_MACHINES = (WorkerGone, ClientGone, ReleaseAll)


class Machine(Protocol):
    """A machine beside the task lifecycle (``paceline.scheduler.extensions``)."""

    name: ClassVar[str]

    def handlers(self) -> dict[type[Any], Handler]: ...

    def on_client_gone(self, turn: Turn, client: str) -> None: ...

    def on_worker_gone(self, turn: Turn, address: str) -> None: ...

    def on_request_gone(self, turn: Turn, request_id: int) -> None: ...

    def on_restart(self, turn: Turn) -> None: ...


def handle_continue(turn: Turn, stimulus: Stimulus) -> None:
    """Go on with long work: first what follows from the past, then graphs, then the queue."""
    state = turn.state
    later.go_on(turn)
    if state.commits:
        graph.run_commits(turn)
    transitions.fill_slots(turn)


def handle_set_metadata(turn: Turn, stimulus: Stimulus) -> None:
    """``Client.set_metadata``: dicts are made on the way to the last key."""
    metadata: Any = turn.state.task_metadata
    *path, last = stimulus.message.keys
    for key in path:
        inner = metadata.get(key)
        if not isinstance(inner, dict):
            metadata[key] = inner = {}
        metadata = inner
    metadata[last] = stimulus.message.value


def handle_log_event(turn: Turn, stimulus: Stimulus) -> None:
    """The server, or a plugin, logs an event."""
    turn.log_event(stimulus.message.topics, stimulus.message.event)


HANDLERS: dict[type[Any], Handler] = {
    # from workers
    m.TaskFinished: tasks.handle_task_finished,
    m.TaskErred: tasks.handle_task_erred,
    m.LongRunning: tasks.handle_long_running,
    m.Reschedule: tasks.handle_reschedule,
    m.KeepAlive: tasks.handle_keep_alive,
    m.AddKeys: replicas.handle_add_keys,
    m.ReleaseWorkerData: replicas.handle_release_worker_data,
    m.RequestRefreshWhoHas: replicas.handle_request_refresh_who_has,
    m.WorkerStatusChange: workers.handle_worker_status_change,
    m.StealResponse: steal_requests.handle_steal_response,
    # from clients
    m.ClientDesiresKeys: clients.handle_client_desires_keys,
    m.ClientReleasesKeys: clients.handle_client_releases_keys,
    m.CancelKeys: clients.handle_cancel_keys,
    m.ReportKey: clients.handle_report_key,
    m.HeartbeatClient: clients.handle_heartbeat_client,
    m.CloseClient: clients.handle_close_client,
    m.SetResources: workers.handle_set_resources,
    # from the driver
    GraphChunk: graph.handle_graph_chunk,
    GraphCommit: graph.handle_graph_commit,
    GraphFailed: graph.handle_graph_failed,
    GraphDropped: graph.handle_graph_dropped,
    WorkerJoined: workers.handle_worker_joined,
    WorkerGone: workers.handle_worker_gone,
    WorkerBeat: workers.handle_worker_beat,
    WorkerClogged: workers.handle_worker_clogged,
    SetWorkerStatus: workers.handle_set_worker_status,
    ClientJoined: clients.handle_client_joined,
    ClientGone: clients.handle_client_gone,
    DataPlaced: replicas.handle_data_placed,
    ReplicasAdded: replicas.handle_replicas_added,
    ReplicasLost: replicas.handle_replicas_lost,
    RetryKeys: clients.handle_retry_keys,
    ReleaseAll: clients.handle_release_all,
    SetMetadata: handle_set_metadata,
    CloseWorker: workers.handle_close_worker,
    SetRestrictions: commands.handle_set_restrictions,
    WriteTask: commands.handle_write_task,
    MakeTransitions: commands.handle_make_transitions,
    Configure: commands.handle_configure,
    MoveReplicas: memory_manager.handle_move_replicas,
    SwitchStealing: stealing.handle_switch_stealing,
    BalanceWork: stealing.handle_balance_work,
    AskBack: stealing.handle_ask_back,
    StealingDue: stealing.handle_stealing_due,
    LogEventCommand: handle_log_event,
    Continue: handle_continue,
    Tick: timers.handle_tick,
    CheckIdle: timers.handle_check_idle,
}


class SchedulerCore:
    """The state, and what each stimulus does to it.

    Args:
        config: checked here.
        errors: makes exceptions that clients open.
        events: the log of events.
        machines: extensions, in the order in which they hear of peers that go.
        plugins: calls the hooks of scheduler plugins; None costs nothing.

    Raises:
        ValueError: from ``config.check``.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        errors: ErrorPort,
        events: Any,
        machines: Sequence[Machine] = (),
        plugins: PluginPort | None = None,
    ) -> None:
        config.check()
        self.state = SchedulerState(config, events, errors, plugins)
        self.machines = {machine.name: machine for machine in machines}
        self._unchecked_turns = 0
        self.handlers: dict[type[Any], Handler] = dict(HANDLERS)
        for machine in machines:
            self.handlers.update(machine.handlers())
        for kind in _HEARD_BY_MACHINES:
            self.handlers[kind] = self._heard_by_machines(self.handlers[kind])

    def knows(self, message_type: type[Any]) -> bool:
        """Whether the core, or one of its machines, handles this kind of message."""
        return message_type in self.handlers or message_type in (TimerDue, RequestGone)

    def handle(self, stimulus: Stimulus, now: float, outbox: Outbox | None = None) -> Outbox:
        """One turn.

        Args:
            now: seconds since the epoch; never less than in the turn before.
            outbox: outputs are added to this one where given.

        Raises:
            KeyError: no handler knows the message's class: a bug of the caller.
        """
        if outbox is None:
            outbox = Outbox()
        source, message, stimulus_id, request_id = stimulus
        state = self.state
        budget = state.config.turn_tasks_max
        turn = Turn(state, outbox, now, source, stimulus_id, request_id, budget)
        kind = type(message)
        handler = self.handlers.get(kind)
        if handler is not None:
            handler(turn, stimulus)
        elif kind is TimerDue:
            self._timer(turn, message.timer_id)
        elif kind is RequestGone:
            for machine in self.machines.values():
                machine.on_request_gone(turn, message.request_id)
        else:
            raise KeyError(f"the core has no handler for {kind.__name__}")
        if state.validate:
            self._validate()
        return outbox

    def _validate(self) -> None:
        """Check everything: after each turn while there is little, and so often that it costs the same per turn where there is much."""
        self._unchecked_turns += 1
        if self._unchecked_turns * CHECKED_PER_TURN < len(self.state.tasks):
            return
        self._unchecked_turns = 0
        from .invariants import validate_state

        validate_state(self.state)

    def _timer(self, turn: Turn, timer_id: int) -> None:
        message = self.state.timers.take(timer_id)
        if message is not None:
            handler = self.handlers[type(message)]
            handler(turn, Stimulus(turn.source, message, turn.stimulus_id))

    def _heard_by_machines(self, handler: Handler) -> Handler:
        """The handler, and after it the machines."""

        def handle(turn: Turn, stimulus: Stimulus) -> None:
            handler(turn, stimulus)
            self._tell_machines(turn, stimulus.message)

        return handle

    def _tell_machines(self, turn: Turn, message: Any) -> None:
        for machine in self.machines.values():
            if type(message) is WorkerGone:
                machine.on_worker_gone(turn, message.address)
            elif type(message) is ClientGone:
                machine.on_client_gone(turn, message.client)
            else:
                machine.on_restart(turn)
