"""Tasks, workers and clients as plugins and ``run_on_scheduler`` functions know them from stock.

Views over the core's state: they compute the documented attributes when asked, and write back what stock lets
plugins write (restrictions, resources, priority, annotations, ...). Two views of one thing are equal.

Must not know: who looks; when hooks run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.protocol.payload import Payload, payload_header
from paceline.scheduler.core import mirrors, queries
from paceline.scheduler.core.handlers.commands import WRITABLE
from paceline.scheduler.core.state import SchedulerState, TaskState
from paceline.scheduler.core.stimuli import WriteTask

from .annotations import closed_unless_plain
from .errors import stock_worker_state
from .unpickling import opened, opened_or_refused


@dataclass(frozen=True, slots=True)
class Sight:
    """What views look at, and where what is written through them goes.

    Attributes:
        write: carries a command out.
    """

    state: SchedulerState
    write: Callable[[WriteTask], None]


class View:
    """One object of the core, seen as stock's. Attributes that it does not compute are the object's own.

    Names with a leading underscore are stock's slots, and mean the same as without.
    """

    __slots__ = ("_core", "_sight")

    def __init__(self, core: Any, sight: Sight) -> None:
        object.__setattr__(self, "_core", core)
        object.__setattr__(self, "_sight", sight)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__"):
            return getattr(self, name[1:])
        return getattr(self._core, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is the scheduler's own to write")

    def __eq__(self, other: object) -> bool:
        return self._core is (other._core if isinstance(other, View) else other)

    def __hash__(self) -> int:
        return hash(self._core)

    def __repr__(self) -> str:
        return repr(self._core)


class TaskView(View):
    """A task."""

    __slots__ = ("_edges",)

    def __init__(self, core: TaskState, sight: Sight, edges: tuple[Any, Any] | None = None) -> None:
        super().__init__(core, sight)
        object.__setattr__(self, "_edges", edges)

    def __setattr__(self, name: str, value: Any) -> None:
        self._sight.write(task_write(self._core.key, name.lstrip("_"), value))

    def _tasks(self, tasks: Iterable[TaskState]) -> set[TaskView]:
        return {TaskView(ts, self._sight) for ts in tasks}

    @property
    def dependencies(self) -> set[TaskView]:
        """Tasks whose data it takes."""
        return self._tasks(self._edges[0] if self._edges else self._core.dependencies)

    @property
    def dependents(self) -> set[TaskView]:
        """Tasks that take its data."""
        return self._tasks(self._edges[1] if self._edges else self._core.dependents)

    @property
    def waiting_on(self) -> set[TaskView]:
        """Dependencies that nobody has yet."""
        return self._tasks(self._core.waiting_on)

    @property
    def waiters(self) -> set[TaskView]:
        """Dependents that are waiting or running."""
        return self._tasks(self._core.waiters)

    @property
    def who_has(self) -> set[WorkerView]:
        """Workers that hold its data."""
        return {WorkerView(ws, self._sight) for ws in self._core.who_has}

    @property
    def who_wants(self) -> set[ClientView]:
        """Clients that hold a future of it."""
        return {ClientView(cs, self._sight) for cs in self._core.who_wants}

    @property
    def processing_on(self) -> WorkerView | None:
        """The worker that it was sent to."""
        ws = self._core.processing_on
        return None if ws is None else WorkerView(ws, self._sight)

    @property
    def exception_blame(self) -> TaskView | None:
        """The task whose failure made this one fail."""
        ts = self._core.exception_blame
        return None if ts is None else TaskView(ts, self._sight)

    @property
    def exception(self) -> Any:
        """The error, as stock keeps it: ``Serialized``."""
        return serialized(self._core.exception)

    @property
    def traceback(self) -> Any:
        """The error's traceback, ``Serialized``."""
        return serialized(self._core.traceback)

    @property
    def erred_on(self) -> set[str] | None:
        """Addresses of workers on which it erred."""
        return _set_or_none(self._core.erred_on)

    @property
    def host_restrictions(self) -> set[str] | None:
        """Hosts on which alone it may run. A copy: assign a new one to change it."""
        return _set_or_none(self._core.host_restrictions)

    @property
    def worker_restrictions(self) -> set[str] | None:
        """Addresses on which alone it may run. A copy: assign a new one to change it."""
        return _set_or_none(self._core.worker_restrictions)

    @property
    def annotations(self) -> Any:
        """Its annotations, opened; writing to this dict writes them. None for data that was scattered."""
        found = opened(self._core.annotations)
        if found is None and self._core.run_spec is None:
            return None
        return WrittenThrough(found or {}, self)

    @property
    def run_spec(self) -> Any:
        """Its specification, unpickled now; None for pure data.

        Raises:
            PickleForbidden: not in this process.
        """
        payload = queries.run_spec_payload(self._core)
        return (
            None
            if payload is None
            else opened_or_refused(payload, "a task's specification (a P2P barrier's?)")
        )

    def run_spec_names(self, name: bytes) -> bool:
        """Whether the pickle of its specification contains this text: opening one may import half of its user's libraries."""
        payload = queries.run_spec_payload(self._core)
        return payload is not None and name in payload.header

    def get_nbytes(self) -> int:
        """Size of its data in bytes; a guess where unknown."""
        return mirrors.data_nbytes(self._sight.state, self._core)

    def _repr_html_(self) -> str:
        return _html("task_state", state=self.state, nbytes=self._core.nbytes, key=str(self.key))

    def get_nbytes_deps(self) -> int:
        """Size in bytes of all that it takes."""
        return sum(mirrors.data_nbytes(self._sight.state, ts) for ts in self._core.dependencies)


class WorkerView(View):
    """A worker."""

    __slots__ = ()

    @property
    def task_prefix_count(self) -> dict[str, int]:
        """Prefix -> how many of its tasks were sent to it and are not finished."""
        found: dict[str, int] = {}
        for ts in self._core.processing:
            if ts not in self._core.long_running:
                found[ts.prefix.name] = found.get(ts.prefix.name, 0) + 1
        return found

    @property
    def status(self) -> Any:
        """distributed's ``Status``."""
        from distributed.core import Status

        return Status.lookup[self._core.status]

    @property
    def processing(self) -> set[TaskView]:
        """Tasks that were sent to it and are not finished."""
        return {TaskView(ts, self._sight) for ts in self._core.processing}

    @property
    def long_running(self) -> set[TaskView]:
        """Those of them that seceded."""
        return {TaskView(ts, self._sight) for ts in self._core.long_running}

    @property
    def executing(self) -> dict[TaskView, float]:
        """Task -> seconds, as its last heartbeat told."""
        return {TaskView(ts, self._sight): s for ts, s in self._core.executing.items()}

    @property
    def has_what(self) -> dict[TaskView, None]:
        """Tasks whose data it holds, oldest first."""
        return {TaskView(ts, self._sight): None for ts in self._core.has_what}

    @property
    def actors(self) -> set[TaskView]:
        """Actors that live on it."""
        return {TaskView(ts, self._sight) for ts in self._core.actors}

    @property
    def needs_what(self) -> dict[TaskView, int]:
        """Dependency that it lacks -> how many of its tasks need it."""
        return {TaskView(ts, self._sight): n for ts, n in self._core.needs_what.items()}

    @property
    def occupancy(self) -> float:
        """Seconds of work that it was given, transfers included."""
        return mirrors.occupancy(self._sight.state, self._core)

    @property
    def memory(self) -> Any:
        """distributed's ``MemoryState``."""
        from distributed.scheduler import MemoryState

        metrics = self._core.metrics
        spilled = metrics.get("spilled_bytes") or {}
        return MemoryState(
            process=metrics.get("memory", 0),
            managed=max(0, self._core.nbytes - spilled.get("memory", 0)),
            spilled=spilled.get("disk", 0),
            unmanaged_old=self._core.memory_unmanaged_old,
        )

    @property
    def bandwidth(self) -> float:
        """Bytes a second between workers."""
        return self._sight.state.bandwidth

    def identity(self) -> dict[str, Any]:
        """What ``Client.scheduler_info`` tells of it."""
        return queries.worker_identity(self._core)

    def _repr_html_(self) -> str:
        core = self._core
        facts = {"has_what": core.has_what, "processing": core.processing}
        return _html(
            "worker_state", address=core.address, name=core.name, status=core.status, **facts
        )

    def clean(self) -> Any:
        """A stock ``WorkerState`` with the same facts, fit for pickling."""
        facts = {name: getattr(self._core, name) for name in _CLEAN_FIELDS}
        facts["occupancy"] = self.occupancy
        facts["executing"] = {ts.key: seconds for ts, seconds in self._core.executing.items()}
        return stock_worker_state(facts)


_CLEAN_FIELDS = (
    *("address", "status", "pid", "name", "nthreads", "memory_limit", "local_directory"),
    *("nanny", "server_id", "services", "versions", "extra"),
)


class ClientView(View):
    """A client."""

    __slots__ = ()

    @property
    def wants_what(self) -> set[TaskView]:
        """Tasks that it holds futures of."""
        return {TaskView(ts, self._sight) for ts in self._core.wants_what}


class StreamView:
    """The stream of a worker or client, with the name that stock has for its connection."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def comm(self) -> Any:
        """Who is at the other end."""
        return self._stream.peer

    def closed(self) -> bool:
        """Whether nothing can be said any more."""
        return bool(self._stream.ended or self._stream.peer.closed)

    def abort(self) -> None:
        """Cut the connection."""
        self._stream.peer.abort("aborted by a program")


class Views(Mapping[Any, Any]):
    """A dict of the core's, its values seen through views.

    Args:
        items: the dict.
        view: makes a view of one of its values.
        extra: what ``TaskView`` is made of, for tasks that are shown beside them.
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
    """A closed value as stock keeps it: distributed's ``Serialized``."""
    if payload is None:
        return None
    from distributed.protocol.serialize import Serialized

    return Serialized(payload_header(payload), list(payload.frames))


def _html(template: str, **facts: Any) -> str:
    """What Jupyter shows: distributed's own template."""
    from dask.widgets import get_template

    return str(get_template(f"{template}.html.j2").render(**facts))


def _set_or_none(values: Iterable[str] | None) -> set[str] | None:
    return set(values) if values else None


# ------------------------------------------------------------------ what plugins may write


def _through(name: str) -> Callable[..., Any]:
    """A method of dict that writes the annotations afterwards."""
    method = getattr(dict, name)

    def change(self: WrittenThrough, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        self.task.annotations = dict(self)
        return result

    change.__name__ = name
    return change


class WrittenThrough(dict[Any, Any]):
    """A task's annotations: a copy, for tasks that were annotated alike share theirs. Each change writes it whole.

    Attributes:
        task: whose they are.
    """

    __slots__ = ("task",)

    def __init__(self, values: Mapping[Any, Any], task: TaskView) -> None:
        super().__init__(values)
        self.task = task

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    __delitem__ = _through("__delitem__")
    __ior__ = _through("__ior__")
    __setitem__ = _through("__setitem__")
    clear = _through("clear")
    pop = _through("pop")
    popitem = _through("popitem")
    setdefault = _through("setdefault")
    update = _through("update")


def task_write(key: Any, name: str, value: Any) -> WriteTask:
    """The command that writes one attribute of a task as a stock plugin would.

    Raises:
        AttributeError: the attribute is the scheduler's own.
        TypeError, ValueError: the value is not of its kind.
    """
    if name not in WRITABLE:
        raise AttributeError(
            f"TaskState.{name} is the scheduler's own; plugins may write {', '.join(WRITABLE)}"
        )
    return WriteTask(key, name, _as_core(name, value))


def _as_core(name: str, value: Any) -> Any:
    """A value as the core keeps it."""
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
        return closed_unless_plain(dict(value))
    return dict(value)


def _priority(value: Any) -> tuple[float, float, float]:
    """Three numbers. Raises ValueError."""
    priority = tuple(value)
    if len(priority) != 3 or not all(isinstance(part, int | float) for part in priority):
        raise ValueError(f"a priority is three numbers, not {value!r}")
    return priority
