"""Inputs of the core: ``Stimulus``, and the messages in it that are not wire messages.

Wire messages (``paceline.protocol.messages``) are used unchanged. The classes here come from the
server: compiled graphs, peers that connected or left, timers, results of coroutines, commands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.protocol.messages import HeartbeatWorker, RegisterWorker
from paceline.protocol.payload import Payload

from .task_policy import TaskPolicy


class Stimulus(NamedTuple):
    """An input of the core, handled in one turn.

    Attributes:
        source: the worker's address, the client's name, or ``""`` for the server.
        message: a wire message, or one of this module's dataclasses.
        stimulus_id: name of the cause in stories and logs.
        request_id: > 0 when ``message`` is an RPC request whose reply goes out through
            ``Outbox.replies`` under this number, in this turn or a later one.
    """

    source: str
    message: object
    stimulus_id: str
    request_id: int = 0


# ------------------------------------------------------------------ graphs


@dataclass(slots=True)
class AnnotationSet:
    """Annotations of tasks; tasks with equal annotations share one.

    Attributes:
        value: the whole annotation dict for the worker's ``compute-task`` (plain values), or a
            ``Payload`` of kind "pickled" if one of its values is not plain msgpack.
        workers: addresses, aliases or host names as the user wrote them, or None.
        allow_other_workers: whether other workers are allowed if none of ``workers`` is available.
        resources: resource name -> amount needed, or None.
        retries: how often the task may err before it stays erred, or None.
        priority: the user's priority; higher runs earlier; None if not annotated.
        policy: timeout, deadline and the like; None if the tasks have no policies.
        group: name of a share group, or None.
        span: names and ids of the span of the tasks, from the root down, or None.
        value_less_span: ``value`` without the span, if it has one.
    """

    value: Any = None
    workers: list[Any] | None = None
    allow_other_workers: bool = False
    resources: dict[str, float] | None = None
    retries: int | None = None
    priority: float | None = None
    span: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    value_less_span: Any = None
    policy: TaskPolicy | None = None
    group: str | None = None

    @property
    def affects_scheduling(self) -> bool:
        """Return whether the set has more than annotations that workers receive."""
        more = (self.retries, self.priority, self.policy, self.group)
        return self.restricts or any(each is not None for each in more)

    @property
    def restricts(self) -> bool:
        """Return whether the set restricts the workers that may run a task."""
        return self.workers is not None or self.resources is not None or self.allow_other_workers


@dataclass(slots=True)
class GraphChunk:
    """Some tasks of a graph, as columns with one row per task.

    Rows are in topological order, dependencies first, numbered through the whole graph. They
    become tasks with ``GraphCommit``.

    Attributes:
        graph_id: the graph's number; unique in a scheduler's life.
        keys: the tasks' keys.
        groups: per row, an index into all group names announced so far for this graph.
        new_groups: (group name, prefix name) of groups that first occur in this chunk. The group
            name of a tuple key is its first element, of any type.
        dependencies: per row, its dependencies: ``n >= 0`` is row n of this graph; ``n < 0`` is
            ``externals[-1 - n]``, a key that is not in this graph and must be known to the
            scheduler. Each dependency occurs once, in a deterministic order.
        new_externals: keys of externals that first occur in this chunk.
        run_specs: per row, the ready-made header frame of a "pickled" payload
            (``paceline.protocol.payload.pickled_header``); ``b""`` for a task without a run_spec.
        spec_buffers: row *within this chunk* -> ids of the out-of-band buffers of its run_spec.
        buffers: buffers that first occur in this chunk; ids count through the whole graph. Equal
            ones are stored once.
        priorities: per row, its place in dask's order.
        data_producers: rows within this chunk whose spec says that it produces data.
        annotations: row within this chunk -> index into all annotation sets announced so far.
        new_annotations: annotation sets that first occur in this chunk.
    """

    graph_id: int
    keys: list[Any]
    groups: list[int]
    new_groups: list[tuple[Any, str]]
    dependencies: list[list[int]]
    new_externals: list[Any]
    run_specs: list[bytes]
    priorities: list[int]
    spec_buffers: dict[int, list[int]] = field(default_factory=dict)
    buffers: list[bytes] = field(default_factory=list)
    data_producers: list[int] = field(default_factory=list)
    annotations: dict[int, int] = field(default_factory=dict)
    new_annotations: list[AnnotationSet] = field(default_factory=list)


@dataclass(slots=True)
class GraphCommit:
    """Check a graph, all chunks of which were sent, against the current state and schedule it.

    Attributes:
        graph_id: which graph.
        keys: keys that the client wants and that are not in ``rows``.
        client: name of the client that sent the graph.
        user_priority: of the whole submission (a number), or per key.
        fifo_timeout_seconds: graphs that follow within this time get the same generation.
        submitting_task: key of the task whose code sent the graph, or None.
        actors: True (all wanted keys), or the keys of tasks that create actors.
        received_at: when the graph arrived, seconds since the epoch.
        materialized_seconds, ordered_seconds: time spent compiling, for the event that stock logs.
        code: the client's source lines (stock's ``code``), serialized or plain.
        span_metadata: as the client sent it, serialized or plain.
        global_annotations: annotations of the submission as sent (plain), for computations.
        n_tasks: tasks in the graph after culling.
        rows: numbers of rows whose keys the client wants; they come before ``keys``.
    """

    graph_id: int
    keys: list[Any]
    client: str
    user_priority: Any = 0
    fifo_timeout_seconds: float = 0.0
    submitting_task: Any = None
    actors: Any = None
    received_at: float = 0.0
    materialized_seconds: float = 0.0
    ordered_seconds: float = 0.0
    code: Any = None
    span_metadata: Any = None
    global_annotations: dict[str, Any] | None = None
    n_tasks: int = 0
    rows: list[int] = field(default_factory=list)


@dataclass(slots=True)
class GraphFailed:
    """A graph could not be compiled: its client gets ``task-erred`` for every key, as stock does.

    Attributes:
        exception, traceback: payloads that stock clients deserialize.
        text: the error, for the log.
    """

    graph_id: int
    keys: list[Any]
    client: str
    exception: Payload
    traceback: Payload | None = None
    text: str = ""


@dataclass(slots=True)
class GraphRestarted:
    """The compiler died and the graph is compiled again; chunks received so far are void."""

    graph_id: int


@dataclass(slots=True)
class GraphDropped:
    """The graph was cancelled, or its client left: drop its rows."""

    graph_id: int


# ------------------------------------------------------------------ peers


@dataclass(slots=True)
class WorkerJoined:
    """A worker registered.

    The driver has checked that its address and name are free
    (``core.state.addresses.registration_error``).

    Attributes:
        address: normalised contact address.
        message: the ``RegisterWorker`` request.
        host: host part of the address.
    """

    address: str
    host: str
    message: RegisterWorker


@dataclass(slots=True)
class WorkerRemoved:
    """A worker left, lost its connection, or is removed.

    Attributes:
        expected: it unregistered or was retired, so no task is blamed.
        close: ask the worker to close.
    """

    address: str
    expected: bool = False
    close: bool = True


@dataclass(slots=True)
class WorkerHeartbeat:
    """A worker's heartbeat, its address normalised.

    Attributes:
        message: the ``HeartbeatWorker`` request.
    """

    address: str
    message: HeartbeatWorker


@dataclass(slots=True)
class ClientJoined:
    """A client registered."""

    client: str
    versions: Any = None


@dataclass(slots=True)
class ClientRemoved:
    """A client left, or its connection broke."""

    client: str


@dataclass(slots=True)
class RequestGone:
    """The connection on which request ``request_id`` waits for its reply is gone."""

    request_id: int


# ------------------------------------------------------------------ flows, commands, timers


@dataclass(slots=True)
class DataPlaced:
    """Data without a run_spec was put on workers (scatter, update_data).

    Attributes:
        who_has: key -> addresses.
        nbytes: key -> size in bytes.
        client: name of the client that wants it, or "".
    """

    who_has: dict[Any, list[str]]
    nbytes: dict[Any, int]
    client: str = ""


@dataclass(slots=True)
class ReplicasAdded:
    """A worker has further replicas (after replicate, rebalance, gather_on_worker)."""

    address: str
    keys: list[Any]


@dataclass(slots=True)
class ReplicasLost:
    """A worker no longer has these keys (it reported them missing, or deleted them on request)."""

    address: str
    keys: list[Any]


@dataclass(slots=True)
class MoveReplicas:
    """Ask workers to acquire or drop replicas.

    Attributes:
        acquire: address -> keys to fetch.
        drop: address -> keys that other workers have too.
    """

    acquire: dict[str, list[Any]] = field(default_factory=dict)
    drop: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(slots=True)
class RetryKeys:
    """``Client.retry``. Replies with the keys that were touched."""

    keys: list[Any]
    client: str = ""


@dataclass(slots=True)
class ReleaseAll:
    """First step of a restart: release all keys, forget all tasks, clear histories."""


@dataclass(slots=True)
class SetWorkerStatus:
    """The server changes a worker's status (retirement).

    Attributes:
        before: status to which it returns unless the retirement is finished; "" without one.
    """

    address: str
    status: str
    before: str = ""


@dataclass(slots=True)
class WorkerBackpressured:
    """A worker's connection became backpressured, or writable again."""

    address: str
    backpressured: bool


@dataclass(slots=True)
class CloseWorker:
    """Ask a worker to close; it is removed when its connection ends."""

    address: str


@dataclass(slots=True)
class MetadataSet:
    """``Client.set_metadata``: `keys` is a path into nested dicts whose last key gets `value`."""

    keys: list[Any]
    value: Any


@dataclass(slots=True)
class RestrictionsSet:
    """Restrict tasks to workers: key -> addresses, None for any worker."""

    restrictions: dict[Any, Any]


@dataclass(slots=True)
class WriteTask:
    """A plugin, or a function that a client runs here, writes an attribute of a task.

    Attributes:
        key: of the task; an unknown one is ignored.
        field: one of ``handlers.commands.WRITABLE``.
        value: as stored in the state (plain, or serialized).
    """

    key: Any
    field: str
    value: Any


@dataclass(slots=True)
class Configure:
    """Change a setting, for a program, a plugin or a function that runs on the scheduler.

    Attributes:
        field: of ``SchedulerConfig``; one of ``handlers.commands.CONFIGURABLE``.
        value: in its range.
    """

    field: str
    value: Any


@dataclass(slots=True)
class SetShare:
    """Change settings (``config.SHARE_DEFAULTS``) of a share group while the scheduler runs."""

    group: str
    settings: dict[str, float]


@dataclass(slots=True)
class IdleCheck:
    """Check for idleness now; see ``Tick``."""

    active: bool = False


@dataclass(slots=True)
class SizeCluster:
    """Compute the number of workers that an adaptive cluster should have: ``Scaling.asked``."""

    target_duration_seconds: float


@dataclass(slots=True)
class ConfigureStealing:
    """Start or stop work stealing, or change its interval.

    Attributes:
        running: steal periodically.
        interval_seconds: seconds between rounds; None to keep the present value.
    """

    running: bool
    interval_seconds: float | None = None


@dataclass(slots=True)
class BalanceWork:
    """Run one round of work stealing now."""


@dataclass(slots=True)
class RecallTask:
    """Ask the worker of the task `key` to give it back, so that it moves to the worker `thief`."""

    key: Any
    thief: str


@dataclass(slots=True)
class MakeTransitions:
    """Recommendations of a plugin, such as a shuffle that restarts: key -> state.

    The last entry is made first. Unknown keys are ignored.
    """

    recommendations: dict[Any, str]


@dataclass(slots=True)
class LogEventCommand:
    """Log an event under topics, as if a plugin or the server had.

    Attributes:
        topics: one or several.
        event: any plain or serialized value.
    """

    topics: list[str]
    event: Any


@dataclass(slots=True)
class Continue:
    """Continue work that was deferred to later turns."""


@dataclass(slots=True)
class Tick:
    """Check the timeouts of the core; ``active`` is that of ``Driver.is_active``."""

    active: bool = False


@dataclass(slots=True)
class SetAside:
    """A stimulus that ended several processes of the scheduler, and is not handled.

    Attributes:
        message: its message.
    """

    message: Any


@dataclass(slots=True)
class TimerDue:
    """The timer number ``timer_id``, set by ``turn.call_at``, is due; unknown ones are ignored."""

    timer_id: int


def stimulus_name(message: object) -> str:
    """Return the name of a message in stories: its op, or its class in kebab case."""
    config = getattr(type(message), "__struct_config__", None)
    if config is not None and config.tag:
        return str(config.tag)
    name = type(message).__name__
    return "".join("-" + c.lower() if c.isupper() else c for c in name).lstrip("-")
