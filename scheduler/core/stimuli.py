"""Inputs of the core that are not wire messages, and the instructions it gives back.

A wire message (``paceline.protocol.messages``) is a stimulus as it stands. What is here comes from
the driver: graphs that were compiled, peers that came or went, timers, outcomes of flows.

Must not know: how any of this is produced or carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.protocol.payload import Payload


class Stimulus(NamedTuple):
    """One input of the core: one turn.

    Attributes:
        source: the worker's address, the client's name, or ``""`` for the driver itself.
        message: a wire message, or one of this module's dataclasses.
        stimulus_id: what stories and logs call this cause.
        request_id: > 0 when ``message`` is an RPC request whose reply goes out through
            ``Outbox.replies`` under this number, in this turn or a later one.
    """

    source: str
    message: Any
    stimulus_id: str
    request_id: int = 0


# ------------------------------------------------------------------ graphs


@dataclass(slots=True)
class AnnotationSet:
    """What a task was annotated with; tasks annotated alike share one.

    Attributes:
        value: the whole annotation dict for the worker's ``compute-task`` (plain values), or a
            ``Payload`` of kind "pickled" when a value of it is not plain msgpack.
        workers: addresses, aliases or host names as the user wrote them, or None.
        allow_other_workers: the restriction to ``workers`` is a wish.
        resources: resource name -> amount needed, or None.
        retries: how often the task may err before it stays erred, or None.
        priority: the user's priority; higher runs earlier; None where not annotated.
        span: names and ids of the span that it belongs to, from the root down, or None.
        value_less_span: ``value`` without it, where it has one.
    """

    value: Any = None
    workers: list[Any] | None = None
    allow_other_workers: bool = False
    resources: dict[str, float] | None = None
    retries: int | None = None
    priority: float | None = None
    span: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    value_less_span: Any = None

    @property
    def says_more(self) -> bool:
        """Whether it says anything of a task beside the value that its worker is given, and its span."""
        return self.retries is not None or self.priority is not None or self.restricts

    @property
    def restricts(self) -> bool:
        """Whether it says anything of where a task may run."""
        return (
            self.workers is not None or self.resources is not None or self.allow_other_workers
        )


@dataclass(slots=True)
class GraphChunk:
    """Some tasks of a graph that is being taken in: columns, one row a task.

    Rows are in topological order, dependencies first, numbered through the whole graph. The tasks are
    *held*: placement, release and queries do not see them before ``GraphCommit``.

    Attributes:
        graph_id: which graph; unique in a scheduler's life.
        keys: the tasks' keys.
        groups: per row, an index into all group names announced so far for this graph.
        new_groups: (group name, prefix name) of groups first met in this chunk; a group's name is what stands first in
            its keys, whatever it is.
        dependencies: per row, what it depends on: ``n >= 0`` is row n of this graph, ``n < 0`` is
            ``externals[-1 - n]``: a key that is not in this graph and must be known to the scheduler.
            Each dependency stands once, in a deterministic order.
        new_externals: keys of externals first met in this chunk.
        run_specs: per row, the ready-made header frame of a "pickled" payload
            (``paceline.protocol.payload.pickled_header``); ``b""`` for a task without a run_spec.
        spec_buffers: row *within this chunk* -> ids of the out-of-band buffers of its run_spec.
        buffers: buffers first met in this chunk; ids count through the whole graph. Equal ones are stored once.
        priorities: per row, its place in dask's order.
        data_producers: rows within this chunk whose spec says that it produces data.
        annotations: row within this chunk -> index into all annotation sets announced so far.
        new_annotations: annotation sets first met in this chunk.
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
    """All chunks of a graph are there: check it against the state as it now is, and schedule.

    Attributes:
        graph_id: which graph.
        keys: what the client asked for, its futures, as far as ``rows`` does not say it.
        client: who sent the graph.
        user_priority: of the whole submission (a number), or per key.
        fifo_timeout_seconds: graphs that follow within this time get the same generation.
        submitting_task: key of the task whose code sent the graph, or None.
        actors: True (all that was asked for), or the keys of tasks that make actors.
        received_at: when the graph arrived, seconds since the epoch.
        materialized_seconds, ordered_seconds: time spent compiling, for the event that stock logs.
        code: the client's source lines (stock's ``code``), closed or plain.
        span_metadata: as the client sent it, closed or plain.
        global_annotations: annotations of the submission as sent (plain), for computations.
        n_tasks: tasks in the graph after culling.
        rows: what the client asked for and is a row of this graph, by number; before ``keys``.
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
        exception, traceback: payloads that stock clients open.
        text: the error in words, for the log.
    """

    graph_id: int
    keys: list[Any]
    client: str
    exception: Payload
    traceback: Payload | None = None
    text: str = ""


@dataclass(slots=True)
class GraphDropped:
    """The compile was given up (its client went away): held tasks are forgotten."""

    graph_id: int


# ------------------------------------------------------------------ peers


@dataclass(slots=True)
class WorkerJoined:
    """A worker registered. The driver has checked that its address and name are free
    (``core.queries.registration_error``).

    Attributes:
        address: normalised contact address.
        message: the ``RegisterWorker`` request.
        host: host part of the address.
    """

    address: str
    host: str
    message: Any


@dataclass(slots=True)
class WorkerGone:
    """A worker left, or its connection broke, or it is removed.

    Attributes:
        expected: it said goodbye (``unregister``, retirement): nobody is blamed.
        close: tell the worker to close.
    """

    address: str
    expected: bool = False
    close: bool = True


@dataclass(slots=True)
class WorkerBeat:
    """A worker's heartbeat, its address normalised.

    Attributes:
        message: the ``HeartbeatWorker`` request.
    """

    address: str
    host: str
    message: Any


@dataclass(slots=True)
class ClientJoined:
    """A client registered."""

    client: str
    versions: Any = None


@dataclass(slots=True)
class ClientGone:
    """A client left, or its connection broke: its wishes end."""

    client: str


@dataclass(slots=True)
class RequestGone:
    """The connection on which request ``request_id`` waits for its reply is gone."""

    request_id: int


# ------------------------------------------------------------------ outcomes of flows, commands, timers


@dataclass(slots=True)
class DataPlaced:
    """Data now lies on workers (scatter, update_data): pure data, without a run_spec.

    Attributes:
        who_has: key -> addresses.
        nbytes: key -> size in bytes.
        types: key -> type name, where known.
        client: who wants it, or "".
    """

    who_has: dict[Any, list[str]]
    nbytes: dict[Any, int]
    types: dict[Any, str] = field(default_factory=dict)
    client: str = ""


@dataclass(slots=True)
class ReplicasAdded:
    """A worker holds further copies (after replicate, rebalance, gather_on_worker)."""

    address: str
    keys: list[Any]


@dataclass(slots=True)
class ReplicasLost:
    """A worker no longer holds these keys (it said so when asked, or deleted them on request)."""

    address: str
    keys: list[Any]


@dataclass(slots=True)
class MoveReplicas:
    """Ask workers to fetch or drop copies, when they have time and can do without.

    Attributes:
        acquire: address -> keys to fetch.
        drop: address -> keys of which others have copies.
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
    """The first act of a restart: every client's wishes end, every task is forgotten, histories are cleared."""

    reason: str = ""


@dataclass(slots=True)
class SetWorkerStatus:
    """The scheduler itself changes a worker's status (retirement)."""

    address: str
    status: str


@dataclass(slots=True)
class WorkerClogged:
    """A worker's connection has taken nothing for a while (``clogged``), or takes again."""

    address: str
    clogged: bool


@dataclass(slots=True)
class CloseWorker:
    """Ask a worker to close itself; it leaves the state when its connection ends."""

    address: str


@dataclass(slots=True)
class SetMetadata:
    """``Client.set_metadata``.

    Attributes:
        keys: path into nested dicts; the last one gets the value.
        value: plain or closed.
    """

    keys: list[Any]
    value: Any


@dataclass(slots=True)
class SetRestrictions:
    """Workers on which alone tasks may run from now on: key -> addresses, None for any."""

    restrictions: dict[Any, Any]


@dataclass(slots=True)
class WriteTask:
    """A plugin, or a function that a client runs here, writes an attribute of a task.

    Attributes:
        key: of the task; an unknown one is ignored.
        field: one of ``handlers.commands.WRITABLE``.
        value: as the state keeps it (plain, or closed where plain values cannot say it).
    """

    key: Any
    field: str
    value: Any


@dataclass(slots=True)
class Configure:
    """A knob has another value from now on: a program, a plugin or a function that a client runs here says so.

    Attributes:
        field: of ``SchedulerConfig``; one of ``handlers.commands.CONFIGURABLE``.
        value: in its range.
    """

    field: str
    value: Any


@dataclass(slots=True)
class CheckIdle:
    """Look now whether there is anything to do."""


@dataclass(slots=True)
class SwitchStealing:
    """Look at the balance of work every so often (``stealing.py``), or no more.

    Attributes:
        interval_seconds: how often from now on; None: as before.
    """

    running: bool
    interval_seconds: float | None = None


@dataclass(slots=True)
class BalanceWork:
    """Look at the balance of work once, now."""


@dataclass(slots=True)
class AskBack:
    """Somebody wants a task to move: its worker is asked for it.

    Attributes:
        thief: address of the worker that is to get it.
    """

    key: Any
    thief: str


@dataclass(slots=True)
class StealingDue:
    """Timer: it is time to look at the balance of work."""


@dataclass(slots=True)
class MakeTransitions:
    """A plugin wants tasks to go to other states (a shuffle that begins again): key -> state.

    As everywhere, the last entry is carried out first. Unknown keys are ignored.
    """

    recommendations: dict[Any, str]


@dataclass(slots=True)
class LogEventCommand:
    """Log an event under topics, as if a plugin or the server had.

    Attributes:
        topics: one or several.
        event: anything plain, or closed.
    """

    topics: list[str]
    event: Any


@dataclass(slots=True)
class Continue:
    """Go on with long work that was cut into turns."""


@dataclass(slots=True)
class Tick:
    """Time has passed: timeouts that the core watches (no workers, idle, worker-ttl)."""


@dataclass(slots=True)
class TimerDue:
    """A timer set by ``turn.call_at`` is due.

    Attributes:
        timer_id: which; unknown ones are ignored.
    """

    timer_id: int


# ------------------------------------------------------------------ instructions: what the driver is asked to do


@dataclass(slots=True)
class WantsContinue:
    """There is more of a long work: feed ``Continue`` after what is waiting has been handled."""


@dataclass(slots=True)
class DropWorkerConnection:
    """Close the worker's stream once what was sent is written."""

    address: str


@dataclass(slots=True)
class CloseScheduler:
    """Shut down (idle timeout)."""

    reason: str


@dataclass(slots=True)
class LogLine:
    """A line for the log.

    Attributes:
        level: as in ``logging`` (10 debug, 20 info, 30 warning, 40 error).
        logger: name of the logger; stock's where it says such things.
    """

    level: int
    text: str
    logger: str


@dataclass(slots=True)
class RestartWorkers:
    """Workers went silent past worker-ttl: restart them through their nannies, or remove them."""

    addresses: list[str]


@dataclass(slots=True)
class SetTimer:
    """Feed ``TimerDue(timer_id)`` at ``when`` (seconds since the epoch)."""

    when: float
    timer_id: int


def stimulus_name(message: Any) -> str:
    """How a stimulus of this kind is called in stories: the op, or the class in kebab case."""
    config = getattr(type(message), "__struct_config__", None)
    if config is not None and config.tag:
        return str(config.tag)
    name = type(message).__name__
    return "".join("-" + c.lower() if c.isupper() else c for c in name).lstrip("-")
