"""Views of tasks, workers, clients and topics with the attributes that stock's have.

Views compute documented attributes from the core's state when they are read, and write what stock
lets plugins write (restrictions, resources, priority, annotations, ...). Two views of the same
object are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

from dask.widgets import get_template
from distributed.core import Status
from distributed.protocol.serialize import Serialized
from distributed.scheduler import MemoryState
from paceline.protocol.payload import Payload, payload_header
from paceline.scheduler.core.handlers.commands import WRITABLE
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stimuli import WriteTask
from paceline.workers_compat.errors import WORKER_DEFAULTS, stock_worker_state
from paceline.workers_compat.graphs.annotations import pickled_unless_plain
from paceline.workers_compat.security.unpickling import (
    deserialize,
    deserialize_or_raise,
    deserialize_outer,
)
from sortedcontainers import SortedItemsView, SortedKeysView, SortedValuesView


@dataclass(frozen=True, slots=True)
class ViewContext:
    """The scheduler's state, and the function that applies writes to views."""

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
    context: Any

    def __init__(self, core: Any, context: Any = None) -> None:
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

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} belongs to the scheduler and cannot be sent: return the attributes you need"
        )


def _write_after(name: str) -> Callable[..., Any]:
    """Return a method of dict that also writes the annotations."""
    method = getattr(dict, name)

    def change(self: AnnotationsProxy, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        self.task.annotations = dict(self)
        return result

    change.__name__ = name
    return change


def _read_only(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise TypeError("read-only: change it with the methods of the scheduler")


def _as_dict(self: Any) -> Any:
    """Return how to pickle a mapping as a dict."""
    return dict, (dict(self),)


class ReadOnlyDict(dict[Any, Any]):
    """A copy of a dict of the scheduler. Changes of it, which would have no effect, are errors."""

    __delitem__ = __ior__ = __setitem__ = _read_only
    clear = pop = popitem = setdefault = update = _read_only

    __reduce__ = _as_dict


class AnnotationsProxy(dict[Any, Any]):
    """A copy of the annotations of `task`, which writes all of them back on each change.

    Tasks with equal annotations share them in the core.
    """

    __slots__ = ("task",)

    def __init__(self, values: Mapping[Any, Any], task: Any) -> None:
        super().__init__(values)
        self.task = task

    __reduce__ = _as_dict

    __delitem__ = _write_after("__delitem__")
    __ior__ = _write_after("__ior__")
    __setitem__ = _write_after("__setitem__")
    clear = _write_after("clear")
    pop = _write_after("pop")
    popitem = _write_after("popitem")
    setdefault = _write_after("setdefault")
    update = _write_after("update")


class TaskView(StateView):
    """A task. Sets are copies: assign a new value to change a restriction."""

    __slots__ = ("_edges",)

    context: ViewContext
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

    dependencies = property(
        lambda self: _tasks(self._edges[0] if self._edges else self.core.dependencies, self.context)
    )
    dependents = property(
        lambda self: _tasks(self._edges[1] if self._edges else self.core.dependents, self.context)
    )

    @property
    def annotations(self) -> Any:
        """Return its annotations as a dict that writes changes back, or None for scattered data."""
        found = task_annotations(self.core)
        if found is None and self.core.run_spec is None:
            return None
        return AnnotationsProxy(found or {}, self)

    @property
    def metadata(self) -> Any:
        """Return its metadata as a dict, or None. Values other than plain data are copies."""
        found = self.core.metadata
        if found and any(isinstance(value, Payload) for value in found.values()):
            return {name: deserialize(value) for name, value in found.items()}
        return found

    @property
    def run_spec(self) -> Any:
        """Unpickle its specification; None for scattered data. Raise if unpickling is disabled."""
        return deserialize_or_raise(self.core.run_spec_payload(), "a task's specification")

    def outer_run_spec(self) -> Any:
        """Return ``run_spec`` with each ``NestedPickle`` in it still pickled."""
        payload = self.core.run_spec_payload()
        return deserialize_outer(payload, "the specification of a P2P barrier")

    def run_spec_names(self, name: bytes) -> bool:
        """Return whether the pickle of its specification contains `name`, without unpickling it."""
        payload = self.core.run_spec_payload()
        return payload is not None and name in payload.header

    def get_nbytes(self) -> int:
        """Return the size of its data in bytes, or an estimate if it is unknown."""
        return estimates.data_nbytes(self.context.state, self.core)

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
    has_what = Shown(lambda tasks, context: {TaskView(ts, context): None for ts in tasks}.keys())

    @property
    def task_prefix_count(self) -> dict[str, int]:
        """Return prefix -> number of its processing tasks that have not seceded."""
        core = self.core
        return dict(Counter(t.prefix.name for t in core.processing if t not in core.long_running))

    status = property(lambda self: Status.lookup[self.core.status])
    bandwidth = property(lambda self: self.context.state.bandwidth)
    occupancy = property(lambda self: estimates.occupancy(self.context.state, self.core))
    #: distributed's ``MemoryState``.
    memory = property(
        lambda self: memory_state(
            self.core.metrics, self.core.nbytes, self.core.memory_unmanaged_old
        )
    )

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
    """A client. As in stock, ``str`` returns its name."""

    __slots__ = ()

    wants_what = Shown(_tasks)

    def __str__(self) -> str:
        return str(self.core.client_key)


class Views(Mapping[Any, Any]):
    """A dict of the core whose values are shown as views.

    `extra` is key -> arguments of ``TaskView``, of tasks that are shown in addition.
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
        return chain(self._items, (key for key in self._extra if key not in self._items))

    def __len__(self) -> int:
        return len(self._items) + sum(key not in self._items for key in self._extra)

    def __repr__(self) -> str:
        return repr(dict(self._items))

    __reduce__ = _as_dict


class SortedViews(Views):
    """Views in the order of their keys, with the methods of stock's ``SortedDict``."""

    #: The keys; ``SortedKeysView`` and the other views of sortedcontainers read it.
    _list = property(lambda self: sorted(self._items))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list)

    def keys(self) -> SortedKeysView:
        return SortedKeysView(self)

    def values(self) -> SortedValuesView:
        return SortedValuesView(self)

    def items(self) -> SortedItemsView:
        return SortedItemsView(self)

    def peekitem(self, index: int = -1) -> tuple[Any, Any]:
        """Return the pair at a position, by default the last one. Raises IndexError."""
        key = self._list[index]
        return key, self[key]


class TopicView:
    """A topic of the event log. As in stock, a topic that does not exist is empty."""

    def __init__(self, log: EventLog, name: Hashable) -> None:
        self._log = log
        self._name = name

    _topic = property(lambda self: self._log.topics.get(self._name))
    #: (seconds since the epoch, event), oldest first.
    events = property(lambda self: deserialized_events(self._topic.events if self._topic else ()))
    #: Number of events ever logged.
    count = property(lambda self: self._topic.count if self._topic else 0)
    #: Names of clients.
    subscribers = property(lambda self: set(self._log.subscribers.get(self._name, ())))


class TopicViews(Views):
    """Stock's ``Scheduler._broker._topics``: name -> topic. Every name has a topic."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(log.topics, partial(TopicView, log))

    def __getitem__(self, name: Hashable) -> Any:
        return self._view(name)


def memory_state(metrics: Mapping[str, Any], nbytes: int, unmanaged_old: int) -> Any:
    """Return distributed's ``MemoryState`` of a worker with data of `nbytes`."""
    spilled = metrics.get("spilled_bytes") or {}
    return MemoryState(
        process=metrics.get("memory", 0),
        managed=max(0, nbytes - spilled.get("memory", 0)),
        spilled=spilled.get("disk", 0),
        unmanaged_old=unmanaged_old,
    )


def deserialized_events(events: Iterable[tuple[float, Any]]) -> tuple[tuple[float, Any], ...]:
    """Return events with their contents deserialized."""
    return tuple((when, deserialize(event)) for when, event in events)


def task_annotations(ts: TaskState) -> Any:
    """Return the annotations of a task of the core, deserialized if this process may unpickle.

    Names and ids of a span are tuples, as in stock.
    """
    found = deserialize(ts.annotations)
    span = found.get("span") if type(found) is dict else None
    if type(span) is not dict:
        return found
    return {**found, "span": {n: tuple(v) if type(v) is list else v for n, v in span.items()}}


def serialized(payload: Payload | None) -> Any:
    """Return a payload as distributed's ``Serialized``."""
    if payload is None:
        return None
    return Serialized(payload_header(payload), list(payload.frames))


def _html(template: str, **facts: Any) -> str:
    """Render distributed's template for Jupyter."""
    return str(get_template(f"{template}.html.j2").render(**facts))


# Attributes of tasks that plugins may write


def task_write(key: Any, name: str, value: Any) -> WriteTask:
    """Return the command that writes an attribute of a task.

    Raise AttributeError if plugins may not write it, TypeError or ValueError for an invalid value.
    """
    if name not in WRITABLE:
        raise AttributeError(
            f"TaskState.{name} is read-only; plugins may write {', '.join(WRITABLE)}"
        )
    return WriteTask(key, name, _as_core(name, value))


def _as_core(name: str, value: Any) -> Any:
    """Convert a value to the core's form."""
    if name == "priority":
        return _priority(value)
    if name == "retries":
        return int(value)
    if name in ("loose_restrictions", "queueable"):
        return bool(value)
    if value is None:
        return None
    if name in ("worker_restrictions", "host_restrictions"):
        if isinstance(value, str):
            raise TypeError(f"{name} must be a collection of names, not {value!r}")
        return sorted(map(str, value))
    if name == "resource_restrictions":
        return {str(what): float(amount) for what, amount in dict(value).items()}
    if name == "annotations":
        return pickled_unless_plain(dict(value))
    return {what: pickled_unless_plain(each) for what, each in dict(value).items()}


def _priority(value: Any) -> tuple[float, float, float]:
    """Return a priority of three numbers, or raise ValueError."""
    priority = tuple(value)
    if len(priority) != 3 or not all(isinstance(part, int | float) for part in priority):
        raise ValueError(f"a priority must be three numbers, not {value!r}")
    return priority
