"""Stimuli that graph compilers send: the chunks of a graph, its commit, or its failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paceline.protocol.payload import Payload
from paceline.scheduler.core.task_policy import TaskPolicy


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
