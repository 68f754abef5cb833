"""Views of tasks, workers and clients with the attributes that stock's have.

Views compute documented attributes from the core's state when they are read, and write what stock
lets plugins write (restrictions, resources, priority, annotations, ...). Two views of the same
object are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.protocol.payload import Payload, payload_header
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stimuli import WriteTask
from paceline.workers_compat.errors import stock_worker_state
from paceline.workers_compat.security.unpickling import deserialize, deserialize_or_raise

from .task_writes import AnnotationsProxy, task_write

__all__ = [
    "ClientView",
    "StreamView",
    "TaskView",
    "ViewContext",
    "Views",
    "WorkerView",
    "deserialize",
]


@dataclass(frozen=True, slots=True)
class ViewContext:
    """What views need besides the object that they show.

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


def _task(ts: TaskState | None, context: ViewContext) -> TaskView | None:
    return None if ts is None else TaskView(ts, context)


def _workers(workers: Iterable[Any], context: ViewContext) -> set[WorkerView]:
    return {WorkerView(ws, context) for ws in workers}


def _worker(ws: Any, context: ViewContext) -> WorkerView | None:
    return None if ws is None else WorkerView(ws, context)


def _clients(clients: Iterable[Any], context: ViewContext) -> set[ClientView]:
    return {ClientView(cs, context) for cs in clients}


def _serialized(payload: Payload | None, context: ViewContext) -> Any:
    return serialized(payload)


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
    who_has = Shown(_workers)
    who_wants = Shown(_clients)
    processing_on = Shown(_worker)
    exception_blame = Shown(_task)
    exception = Shown(_serialized)
    traceback = Shown(_serialized)
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
        """Return the tasks whose results it uses."""
        edges = self.core.dependencies if self._edges is None else self._edges[0]
        return _tasks(edges, self.context)

    @property
    def dependents(self) -> set[TaskView]:
        """Return the tasks that use its result."""
        edges = self.core.dependents if self._edges is None else self._edges[1]
        return _tasks(edges, self.context)

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
        if payload is None:
            return None
        return deserialize_or_raise(payload, "a task's specification (a P2P barrier's?)")

    def run_spec_names(self, name: bytes) -> bool:
        """Return whether the pickle of its specification contains `name`, without unpickling it."""
        payload = self.core.run_spec_payload()
        return payload is not None and name in payload.header

    def get_nbytes(self) -> int:
        """Return the size of its data in bytes, or an estimate if it is unknown."""
        return accounting.data_nbytes(self.context.state, self.core)

    def get_nbytes_deps(self) -> int:
        """Return the size of all its dependencies in bytes."""
        return sum(accounting.data_nbytes(self.context.state, ts) for ts in self.core.dependencies)

    def _repr_html_(self) -> str:
        return _html("task_state", state=self.state, nbytes=self.core.nbytes, key=str(self.key))


_CLEAN_FIELDS = (
    *("address", "status", "pid", "name", "nthreads", "memory_limit", "local_directory"),
    *("nanny", "server_id", "services", "versions", "extra"),
)


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
        found: dict[str, int] = {}
        for ts in self.core.processing:
            if ts not in self.core.long_running:
                found[ts.prefix.name] = found.get(ts.prefix.name, 0) + 1
        return found

    @property
    def status(self) -> Any:
        """Return distributed's ``Status``."""
        from distributed.core import Status

        return Status.lookup[self.core.status]

    @property
    def occupancy(self) -> float:
        """Return the seconds of work assigned to it, including transfers."""
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
        """Return the bandwidth between workers in bytes per second."""
        return self.context.state.bandwidth

    def identity(self) -> dict[str, Any]:
        """Return its part of ``Client.scheduler_info``."""
        return queries.worker_identity(self.core)

    def _repr_html_(self) -> str:
        core = self.core
        facts = {"has_what": core.has_what, "processing": core.processing}
        return _html(
            "worker_state", address=core.address, name=core.name, status=core.status, **facts
        )

    def clean(self) -> Any:
        """Return a stock ``WorkerState`` with the same values, which can be pickled."""
        facts = {name: getattr(self.core, name) for name in _CLEAN_FIELDS}
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
        """Return the peer."""
        return self._stream.peer

    def closed(self) -> bool:
        """Return whether nothing can be sent."""
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
        extra: dict[Any, tuple[Any, ...]] | None = None,
    ) -> None:
        self._items = items
        self._view = view
        self._extra = extra

    def __getitem__(self, key: Any) -> Any:
        if self._extra and key in self._extra:
            return TaskView(*self._extra[key])
        return self._view(self._items[key])

    def __contains__(self, key: object) -> bool:
        return key in self._items or bool(self._extra and key in self._extra)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(dict(self._items))


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
