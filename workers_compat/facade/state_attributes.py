"""The part of the facade that reads the scheduler's state."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from paceline.scheduler.core.inspection import invariants, queries
from paceline.scheduler.core.inspection.dump import dump_state
from paceline.scheduler.core.policy import placement

from .base import FacadeBase
from .span_views import ComputationView
from .views import StreamView, TaskView, TopicViews, Views, WorkerView, deserialized_events


def _query(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls ``function(state, ...)``."""

    @functools.wraps(function)
    def method(facade: FacadeBase, *args: Any, **kwargs: Any) -> Any:
        return function(facade.state, *args, **kwargs)

    return method


def _by_address(facade: FacadeBase, load_class: str) -> dict[str, WorkerView]:
    """Return the running workers of a load class."""
    state = facade.state
    found = (ws for ws in state.running if placement.load_class(state, ws) == load_class)
    return {ws.address: facade.worker_view(ws) for ws in found}


class StateAttributes(FacadeBase):
    """Attributes and look-ups of stock's ``SchedulerState``."""

    #: Key -> task.
    tasks = property(lambda f: Views(f.state.tasks, f.task_view, f.plugin_host.leaving))
    #: Address -> worker.
    workers = property(lambda f: Views(f.state.workers, f.worker_view))
    #: Name -> client.
    clients = property(lambda f: Views(f.state.clients, f.client_view))
    #: Worker address -> stream.
    stream_comms = property(lambda f: Views(f.server.driver.worker_streams, StreamView))
    #: Client name -> stream.
    client_comms = property(lambda f: Views(f.server.driver.client_streams, StreamView))
    #: Workers with the status "running".
    running = property(lambda f: set(map(f.worker_view, f.state.running)))
    #: Address -> worker.
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
    computations = property(lambda f: list(map(ComputationView, f.state.computations)))
    #: (time since when, number of threads of the cluster), oldest first; seconds since the epoch.
    total_nthreads_history = property(lambda f: f.state.spans.threads)
    #: The topics of the event log; stock's name is ``_broker``.
    broker = property(lambda f: SimpleNamespace(_topics=TopicViews(f.state.events)))
    #: Host -> {"addresses": set, "nthreads": threads of its workers, ...}.
    host_info = property(
        lambda f: {
            host: {**facts, "addresses": set(facts["addresses"])}
            for host, facts in f.state.host_info.items()
        }
    )
    #: The last transitions, oldest first.
    transition_log = property(
        lambda f: [
            _transition(key, start, finish, {ts.key: to for ts, to in made.items()}, *more)
            for key, start, finish, made, *more in f.state.transition_log
        ]
    )

    workers_list = _query(queries.workers_list)
    get_who_has = _query(queries.who_has)
    get_has_what = _query(queries.has_what)
    get_ncores = _query(queries.ncores)
    get_ncores_running = _query(queries.ncores_running)
    get_processing = _query(queries.processing)
    get_nbytes = _query(queries.nbytes)

    @property
    def memory(self) -> Any:
        """Return distributed's ``MemoryState`` of all workers together."""
        from distributed.scheduler import MemoryState

        return MemoryState.sum(*(ws.memory for ws in self.workers.values()))

    def story(self, *keys_or_tasks_or_stimuli: Any) -> list[Any]:
        """Return logged transitions that involve one of these, oldest first."""
        names = [k.key if isinstance(k, TaskView) else k for k in keys_or_tasks_or_stimuli]
        return [_transition(*entry) for entry in queries.story(self.state, *names)]

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
        """Return the address for an alias, a ``(host, port)`` pair or an address without scheme.

        Host names are resolved if `resolve` is set.
        """
        return str(self.server.worker_address(addr, resolve))

    def coerce_hostname(self, host: Any) -> str:
        """Return the host of the worker with this alias, or `host` itself."""
        address = self.state.aliases.get(host)
        return str(host) if address is None else str(self.state.workers[address].host)

    def get_worker_service_addr(
        self, worker: str, service_name: str, protocol: bool = False
    ) -> Any:
        """Return (host, port) of a worker's service, or None if it has no such service.

        The result is "scheme://host:port" if `protocol` is set.
        """
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


def _transition(*entry: Any) -> Any:
    """Return an entry of a log as stock's named tuple."""
    from distributed.scheduler import Transition

    return Transition(*entry)
