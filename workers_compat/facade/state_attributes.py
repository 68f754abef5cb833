"""The part of the facade that reads the scheduler's state and settings.

Reading a setting returns the current configuration. Writing one is a command of the core, so that a
journal contains it.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from distributed.scheduler import MemoryState, Transition
from distributed.scheduler import SchedulerState as StockState
from paceline.scheduler.core import stimuli
from paceline.scheduler.core.handlers.commands import check_setting
from paceline.scheduler.core.inspection import invariants, queries
from paceline.scheduler.core.inspection.dump import dump_state
from paceline.scheduler.core.policy import placement
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.workers_compat.config.config import seconds
from sortedcontainers import SortedDict

from .server_port import DeferringServer, FacadeServer
from .span_views import ComputationView
from .stream_views import StreamView
from .views import (
    ClientView,
    SortedViews,
    TaskView,
    TopicViews,
    Views,
    WorkerView,
    deserialized_events,
)

if TYPE_CHECKING:
    from .plugins import Plugins

#: Name of stock's periodic callback -> the setting that turns the check on and off.
TICK_CHECKS = {
    "worker-ttl": "watch_worker_ttl",
    "idle-timeout": "watch_idle",
    "no-workers-timeout": "watch_no_workers",
}


class Setting:
    """A setting under the name of stock's attribute.

    Args:
        field: the field of ``SchedulerConfig``.
        parse: converts what a program assigns to a value of the field.
        show: converts the field's value to what stock shows.
    """

    def __init__(
        self,
        field: str,
        parse: Callable[[Any], Any] = lambda value: value,
        show: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._field = field
        self._parse = parse
        self._show = show

    def __get__(self, facade: Any, owner: type | None = None) -> Any:
        return self if facade is None else self._show(getattr(facade.state.config, self._field))

    def __set__(self, facade: Any, value: Any) -> None:
        facade.configure(self._field, self._parse(value))


class TickCallback:
    """A check of each tick, as tornado's ``PeriodicCallback``. Setting `field` switches it."""

    def __init__(self, facade: StateAttributes, field: str) -> None:
        self._facade = facade
        self._field = field

    def is_running(self) -> bool:
        return bool(getattr(self._facade.state.config, self._field))

    def start(self) -> None:
        self._facade.configure(self._field, True)

    def stop(self) -> None:
        self._facade.configure(self._field, False)


def _query(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls ``function(state, ...)``."""

    @functools.wraps(function)
    def method(facade: StateAttributes, *args: Any, **kwargs: Any) -> Any:
        return function(facade.state, *args, **kwargs)

    return method


def _by_address(facade: StateAttributes, load_class: str) -> SortedDict:
    """Return the running workers of a load class: address -> worker."""
    state = facade.state
    found = (ws for ws in state.running if placement.load_class(state, ws) == load_class)
    return SortedDict({ws.address: facade.worker_view(ws) for ws in found})


class StateAttributes:
    """Settings, attributes and look-ups of stock's ``SchedulerState``.

    Args:
        server: the server behind the facade.
        scheduler: the ``Scheduler`` object: address, id, status, services, ``close``, ...

    Attributes:
        plugin_host: the registered plugins.
        handlers: op -> function.
        deferring_server: the server for requests and stimuli, which wait while a turn is under way.
    """

    plugin_host: Plugins
    handlers: Any

    WORKER_SATURATION = Setting("worker_saturation", float)
    UNKNOWN_TASK_DURATION = Setting("unknown_task_duration_seconds", seconds)
    MEMORY_RECENT_TO_OLD_TIME = Setting("memory_recent_to_old_seconds", seconds)
    MEMORY_REBALANCE_MEASURE = Setting("rebalance_measure")
    MEMORY_REBALANCE_SENDER_MIN = Setting("rebalance_sender_min", float)
    MEMORY_REBALANCE_RECIPIENT_MAX = Setting("rebalance_recipient_max", float)
    MEMORY_REBALANCE_HALF_GAP = Setting("rebalance_gap", lambda half: 2 * half, lambda gap: gap / 2)
    allowed_failures = Setting("allowed_failures", int)
    idle_timeout = Setting("idle_timeout_seconds", seconds)
    no_workers_timeout = Setting("no_workers_timeout_seconds", seconds)
    rootish_tg_threshold = Setting("rootish_taskgroup", int)
    rootish_tg_dependencies_threshold = Setting("rootish_taskgroup_dependencies", int)
    validate = Setting("validate", bool)
    worker_ttl = Setting("worker_ttl_seconds", seconds)

    def __init__(self, server: FacadeServer, scheduler: Any) -> None:
        self.server = server
        self.scheduler = scheduler
        self.deferring_server = DeferringServer(server, lambda: self.plugin_host.depth > 0)

    @property
    def state(self) -> SchedulerState:
        return self.server.state

    def configure(self, field: str, value: Any) -> None:
        """Change a setting, now or right after the current turn.

        Raise AttributeError if it is fixed when the scheduler starts, ValueError if out of range.
        """
        check_setting(self.state, field, value)
        self.send_stimulus(stimuli.Configure(field, value))

    def send_stimulus(self, message: Any, source: str = "", stimulus_id: str | None = None) -> None:
        """Feed a stimulus to the core, now or right after the current turn."""
        self.deferring_server.send_stimulus(message, source, stimulus_id)

    def task_view(self, ts: Any) -> TaskView:
        return TaskView(ts, self.plugin_host.context)

    def worker_view(self, ws: Any) -> WorkerView:
        return WorkerView(ws, self.plugin_host.context)

    #: Key -> task.
    tasks = property(lambda f: Views(f.state.tasks, f.task_view, f.plugin_host.leaving))
    #: Address -> worker, by address.
    workers = property(lambda f: SortedViews(f.state.workers, f.worker_view))
    #: Name -> client.
    clients = property(
        lambda f: Views(f.state.clients, lambda cs: ClientView(cs, f.plugin_host.context))
    )
    #: Worker address -> stream.
    stream_comms = property(lambda f: Views(f.server.driver.worker_streams, StreamView))
    #: Client name -> stream.
    client_comms = property(lambda f: Views(f.server.driver.client_streams, StreamView))
    #: Workers with the status "running".
    running = property(lambda f: set(map(f.worker_view, f.state.running)))
    #: Address -> worker, by address.
    idle = property(lambda f: _by_address(f, "idle"))
    saturated = property(lambda f: set(_by_address(f, "saturated").values()))
    #: Workers with a free slot, by the number of their tasks.
    idle_task_count = property(
        lambda f: set(map(f.worker_view, placement.workers_with_free_slots(f.state)))
    )
    #: Task that no worker may run -> time since when.
    unrunnable = property(
        lambda f: {f.task_view(ts): since for ts, since in f.state.unrunnable.items()}
    )
    #: Queued tasks, next first.
    queued = property(lambda f: list(map(f.task_view, f.state.queued)))
    #: Tasks whose data is on several workers.
    replicated_tasks = property(lambda f: set(map(f.task_view, f.state.replicated_tasks)))
    #: Computations, oldest first.
    computations = property(lambda f: tuple(map(ComputationView, f.state.computations)))
    #: (time since when, number of threads of the cluster), oldest first; seconds since the epoch.
    total_nthreads_history = property(lambda f: f.state.spans.threads)
    #: (receiver, sender) -> bytes per second, and type name -> the same.
    bandwidth_workers = property(lambda f: defaultdict(float, f.state.bandwidth_workers))
    bandwidth_types = property(lambda f: defaultdict(float, f.state.bandwidth_types))
    #: The topics of the event log; stock's name is ``_broker``.
    broker = property(
        lambda f: SimpleNamespace(
            _topics=TopicViews(f.state.events),
            publish=f.log_event,
            subscribe=f.subscribe_topic,
            unsubscribe=f.unsubscribe_topic,
            get_events=f.get_events,
        )
    )
    #: Host -> {"addresses": set, "nthreads": threads of its workers, ...}.
    host_info = property(
        lambda f: {
            host: {**facts, "addresses": set(facts["addresses"])}
            for host, facts in f.state.host_info.items()
        }
    )
    #: The last transitions, oldest first.
    transition_log = property(
        lambda f: tuple(
            Transition(key, start, finish, {ts.key: to for ts, to in made.items()}, *more)
            for key, start, finish, made, *more in f.state.transition_log
        )
    )

    #: distributed's ``MemoryState`` of all workers together.
    memory = property(lambda f: MemoryState.sum(*(ws.memory for ws in f.workers.values())))

    workers_list = _query(queries.workers_list)
    get_who_has = _query(queries.who_has)
    get_has_what = _query(queries.has_what)
    get_ncores = _query(queries.ncores)
    get_ncores_running = _query(queries.ncores_running)
    get_processing = _query(queries.processing)
    get_nbytes = _query(queries.nbytes)

    def story(self, *keys_or_tasks_or_stimuli: Any) -> list[Any]:
        """Return logged transitions that involve one of these, oldest first."""
        names = [k.key if isinstance(k, TaskView) else k for k in keys_or_tasks_or_stimuli]
        return [Transition(*entry) for entry in queries.story(self.state, *names)]

    def get_events(self, topic: str | None = None) -> Any:
        """Return (seconds since the epoch, event) of a topic, or topic -> events of all."""
        found = self.state.events.get(topic)
        if isinstance(found, dict):
            return {name: deserialized_events(events) for name, events in found.items()}
        return deserialized_events(found)

    def validate_state(self, allow_overlap: bool = False) -> None:
        """Check all invariants. Raises AssertionError."""
        invariants.validate_state(self.state)

    def to_dict(self, *, exclude: Iterable[str] = ()) -> dict[str, Any]:
        """Return the whole state as plain values (stock's ``_to_dict``)."""
        facts = {
            **self.scheduler.identity(),
            "status": self.scheduler.status.name,
            "thread_id": threading.get_ident(),
        }
        return dump_state(self.state, facts, tuple(exclude))

    def coerce_address(self, addr: Any, resolve: bool = True) -> str:
        """Return the address for an alias, a (host, port) pair or an address without scheme."""
        return str(self.server.worker_address(addr, resolve))

    def coerce_hostname(self, host: Any) -> str:
        """Return the host of the worker with this alias, or `host` itself."""
        address = self.state.aliases.get(host)
        return str(host) if address is None else str(self.state.workers[address].host)

    def get_worker_service_addr(
        self, worker: str, service_name: str, protocol: bool = False
    ) -> Any:
        """Return (host, port) of a service, or "scheme://host:port" if `protocol`; None without."""
        ws = self.state.workers[worker]
        port = ws.services.get(service_name)
        if port is None:
            return None
        scheme = ws.address.partition("://")[0]
        return f"{scheme}://{ws.host}:{port}" if protocol else (ws.host, port)

    def is_rootish(self, ts: Any) -> bool:
        """Return whether the task is root-ish, so that it is queued until a thread is free."""
        return placement.is_rootish(self.state, self.state.tasks[ts.key])

    def valid_workers(self, ts: Any) -> set[Any] | None:
        """Return the workers that the restrictions of a task allow, or None for all."""
        valid = placement.valid_workers(self.state, self.state.tasks[ts.key])
        return None if valid is None else set(map(self.worker_view, valid))

    def get_comm_cost(self, ts: Any, ws: Any) -> float:
        """Return the seconds that a worker needs to fetch missing dependencies of a task."""
        state = self.state
        return placement.fetch_seconds(state, state.tasks[ts.key], state.workers[ws.address])

    def worker_objective(self, ts: Any, ws: Any) -> tuple[float, ...]:
        """Return what placement minimises: expected start, then memory of the worker."""
        state = self.state
        return placement.start_estimate(state, state.tasks[ts.key], state.workers[ws.address])


#: Attributes of the ``Scheduler`` object that are settings of the facade.
SETTINGS = frozenset(
    name for name, value in vars(StateAttributes).items() if isinstance(value, Setting)
)
#: Attributes of stock's ``SchedulerState`` that programs cannot set here. `transition_counter_max`
#: has no effect.
READ_ONLY = frozenset(StockState.__slots__) - SETTINGS - {"transition_counter_max"}
