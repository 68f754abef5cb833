"""Views of tasks, workers, clients and topics with the attributes that stock's have.

Views compute documented attributes from the core's state when they are read, and write what stock
lets plugins write (restrictions, resources, priority, annotations, ...). Two views of the same
object are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from paceline.protocol.payload import Payload, payload_header
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stimuli import WriteTask
from paceline.workers_compat.errors import WORKER_DEFAULTS, stock_worker_state
from paceline.workers_compat.security.unpickling import deserialize, deserialize_or_raise

from .task_writes import AnnotationsProxy, task_write


@dataclass(frozen=True, slots=True)
class ViewContext:
    """The objects that views need besides the one that they show.

    Attributes:
        state: the scheduler's state.
        write: applies a command that a view was written with.
    """

    state: SchedulerState
    write: Callable[[WriteTask], None]


class Shown:
    """An attribute of the core's object of the same name, converted by ``show(value, context)``."""

    def __init__(self, show: Callable[[Any, ViewContext], Any]) -> None:
        self._show = show
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, view: Any, owner: type | None = None) -> Any:
        return self if view is None else self._show(getattr(view.core, self._name), view.context)


def _tasks(tasks: Iterable[TaskState], context: ViewContext) -> set[TaskView]:
    return {TaskView(ts, context) for ts in tasks}


def _task_dict(tasks: Mapping[TaskState, Any], context: ViewContext) -> dict[TaskView, Any]:
    return {TaskView(ts, context): value for ts, value in tasks.items()}


def _set_or_none(values: Iterable[str] | None, context: ViewContext) -> set[str] | None:
    return set(values) if values else None


class StateView:
    """An object of the core. Attributes that are not computed are the object's own.

    Names with a leading underscore are stock's slots, and mean the same as without.
    """

    __slots__ = ("context", "core")

    core: Any
    context: ViewContext

    def __init__(self, core: Any, context: ViewContext) -> None:
        object.__setattr__(self, "core", core)
        object.__setattr__(self, "context", context)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__"):
            return getattr(self, name[1:])
        return getattr(self.core, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    def __eq__(self, other: object) -> bool:
        return self.core is (other.core if isinstance(other, StateView) else other)

    def __hash__(self) -> int:
        return hash(self.core)

    def __repr__(self) -> str:
        return repr(self.core)


class TaskView(StateView):
    """A task. Sets are copies: assign a new value to change a restriction."""

    __slots__ = ("_edges",)

    _edges: tuple[Any, Any] | None

    waiting_on = Shown(_tasks)
    waiters = Shown(_tasks)
    who_has = Shown(lambda workers, context: {WorkerView(ws, context) for ws in workers})
    who_wants = Shown(lambda clients, context: {ClientView(cs, context) for cs in clients})
    processing_on = Shown(lambda ws, context: ws and WorkerView(ws, context))
    exception_blame = Shown(lambda ts, context: ts and TaskView(ts, context))
    exception = Shown(lambda payload, _: serialized(payload))
    traceback = Shown(lambda payload, _: serialized(payload))
    erred_on = Shown(_set_or_none)
    host_restrictions = Shown(_set_or_none)
    worker_restrictions = Shown(_set_or_none)

    def __init__(
        self, core: TaskState, context: ViewContext, edges: tuple[Any, Any] | None = None
    ) -> None:
        super().__init__(core, context)
        object.__setattr__(self, "_edges", edges)

    def __setattr__(self, name: str, value: Any) -> None:
        self.context.write(task_write(self.core.key, name.lstrip("_"), value))

    @property
    def dependencies(self) -> set[TaskView]:
        tasks = self.core.dependencies if self._edges is None else self._edges[0]
        return _tasks(tasks, self.context)

    @property
    def dependents(self) -> set[TaskView]:
        tasks = self.core.dependents if self._edges is None else self._edges[1]
        return _tasks(tasks, self.context)

    @property
    def annotations(self) -> Any:
        """Return its annotations as a dict that writes changes back, or None for scattered data."""
        found = deserialize(self.core.annotations)
        if found is None and self.core.run_spec is None:
            return None
        return AnnotationsProxy(found or {}, self)

    @property
    def run_spec(self) -> Any:
        """Unpickle its specification; None for scattered data.

        Raises:
            PickleForbidden: This process must not unpickle.
        """
        payload = self.core.run_spec_payload()
        return deserialize_or_raise(payload, "a task's specification (a P2P barrier's?)")

    def run_spec_names(self, name: bytes) -> bool:
        """Return whether the pickle of its specification contains `name`, without unpickling it."""
        payload = self.core.run_spec_payload()
        return payload is not None and name in payload.header

    def get_nbytes(self) -> int:
        """Return the size of its data in bytes, or an estimate if it is unknown."""
        return accounting.data_nbytes(self.context.state, self.core)

    def get_nbytes_deps(self) -> int:
        return sum(ts.get_nbytes() for ts in self.dependencies)

    def _repr_html_(self) -> str:
        return _html("task_state", state=self.state, nbytes=self.core.nbytes, key=str(self.key))


class WorkerView(StateView):
    """A worker."""

    __slots__ = ()

    processing = Shown(_tasks)
    long_running = Shown(_tasks)
    actors = Shown(_tasks)
    #: Task -> seconds, as of the last heartbeat.
    executing = Shown(_task_dict)
    #: Dependency that it lacks -> number of its tasks that need it.
    needs_what = Shown(_task_dict)
    #: Tasks whose data it has, oldest first.
    has_what = Shown(lambda tasks, context: {TaskView(ts, context): None for ts in tasks})

    @property
    def task_prefix_count(self) -> dict[str, int]:
        """Return prefix -> number of its processing tasks that have not seceded."""
        core = self.core
        return dict(Counter(t.prefix.name for t in core.processing if t not in core.long_running))

    @property
    def status(self) -> Any:
        from distributed.core import Status

        return Status.lookup[self.core.status]

    @property
    def occupancy(self) -> float:
        return accounting.occupancy(self.context.state, self.core)

    @property
    def memory(self) -> Any:
        """Return distributed's ``MemoryState``."""
        from distributed.scheduler import MemoryState

        metrics = self.core.metrics
        spilled = metrics.get("spilled_bytes") or {}
        return MemoryState(
            process=metrics.get("memory", 0),
            managed=max(0, self.core.nbytes - spilled.get("memory", 0)),
            spilled=spilled.get("disk", 0),
            unmanaged_old=self.core.memory_unmanaged_old,
        )

    @property
    def bandwidth(self) -> float:
        return self.context.state.bandwidth

    def identity(self) -> dict[str, Any]:
        return queries.worker_identity(self.core)

    def _repr_html_(self) -> str:
        names = ("address", "name", "status", "has_what", "processing")
        return _html("worker_state", **{name: getattr(self.core, name) for name in names})

    def clean(self) -> Any:
        """Return a stock ``WorkerState`` with the same values, which can be pickled."""
        facts = {name: getattr(self.core, name) for name in WORKER_DEFAULTS}
        facts["occupancy"] = self.occupancy
        facts["executing"] = {ts.key: seconds for ts, seconds in self.core.executing.items()}
        return stock_worker_state(facts)


class ClientView(StateView):
    """A client."""

    __slots__ = ()

    wants_what = Shown(_tasks)


class StreamView:
    """The stream of a worker or client, with the methods of stock's ``BatchedSend``."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def comm(self) -> Any:
        return self._stream.peer

    def closed(self) -> bool:
        return bool(self._stream.ended or self._stream.peer.closed)

    def abort(self) -> None:
        """Close the connection without waiting for what is buffered."""
        self._stream.peer.comm.abort("aborted by a program")


class Views(Mapping[Any, Any]):
    """A dict of the core whose values are shown as views.

    Args:
        items: the dict.
        view: returns the view of a value.
        extra: key -> arguments of ``TaskView``, of tasks that are shown in addition.
    """

    def __init__(
        self,
        items: Mapping[Any, Any],
        view: Callable[[Any], Any],
        extra: Mapping[Any, tuple[Any, ...]] = MappingProxyType({}),
    ) -> None:
        self._items = items
        self._view = view
        self._extra = extra

    def __getitem__(self, key: Any) -> Any:
        if key in self._extra:
            return TaskView(*self._extra[key])
        return self._view(self._items[key])

    def __contains__(self, key: object) -> bool:
        return key in self._items or key in self._extra

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(dict(self._items))


class TopicView:
    """A topic of the event log. As in stock, a topic that does not exist is empty."""

    def __init__(self, log: EventLog, name: Hashable) -> None:
        self._log = log
        self._name = name

    @property
    def events(self) -> tuple[tuple[float, Any], ...]:
        """Return (seconds since the epoch, event), oldest first."""
        topic = self._log.topics.get(self._name)
        return deserialized_events(topic.events if topic else ())

    @property
    def count(self) -> int:
        """Return the number of events ever logged."""
        topic = self._log.topics.get(self._name)
        return topic.count if topic else 0

    @property
    def subscribers(self) -> set[str]:
        return set(self._log.subscribers.get(self._name, ()))


class TopicViews(Mapping[Hashable, TopicView]):
    """Stock's ``Scheduler._broker._topics``: name -> topic. Every name has a topic."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def __getitem__(self, name: Hashable) -> TopicView:
        return TopicView(self._log, name)

    def __contains__(self, name: object) -> bool:
        return name in self._log.topics

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._log.topics))

    def __len__(self) -> int:
        return len(self._log.topics)


def deserialized_events(events: Iterable[tuple[float, Any]]) -> tuple[tuple[float, Any], ...]:
    """Return events with their contents deserialized."""
    return tuple((when, deserialize(event)) for when, event in events)


def serialized(payload: Payload | None) -> Any:
    """Return a payload as distributed's ``Serialized``."""
    if payload is None:
        return None
    from distributed.protocol.serialize import Serialized

    return Serialized(payload_header(payload), list(payload.frames))


def _html(template: str, **facts: Any) -> str:
    """Render distributed's template for Jupyter."""
    from dask.widgets import get_template

    return str(get_template(f"{template}.html.j2").render(**facts))
