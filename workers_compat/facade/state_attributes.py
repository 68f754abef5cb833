"""The part of the facade that reads the scheduler's state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paceline.scheduler.core.inspection import invariants, queries
from paceline.scheduler.core.inspection.dump import dump_state
from paceline.scheduler.core.policy import placement

from .base import FacadeBase
from .span_views import ComputationView
from .topic_views import Broker, deserialized_events
from .views import ClientView, StreamView, TaskView, Views, WorkerView


class FromState:
    """An attribute computed by ``read(facade, state)`` each time."""

    def __init__(self, read: Callable[[Any, Any], Any]) -> None:
        self._read = read

    def __get__(self, facade: Any, owner: type | None = None) -> Any:
        return self if facade is None else self._read(facade, facade.state)

    def __set__(self, facade: Any, value: Any) -> None:
        raise AttributeError("the attribute is computed from the state and cannot be set")


class StateAttributes(FacadeBase):
    """Attributes and look-ups of stock's ``SchedulerState``."""

    # Tasks, workers and clients

    @property
    def tasks(self) -> Mapping[Any, TaskView]:
        """Return key -> task."""
        return Views(self.state.tasks, self.task_view, self.plugin_host.leaving)

    @property
    def workers(self) -> Mapping[str, WorkerView]:
        """Return address -> worker."""
        return Views(self.state.workers, self.worker_view)

    @property
    def clients(self) -> Mapping[str, ClientView]:
        """Return name -> client."""
        return Views(self.state.clients, self.client_view)

    #: Worker address -> stream.
    stream_comms = FromState(lambda f, _: Views(f.server.driver.worker_streams, StreamView))
    #: Client name -> stream.
    client_comms = FromState(lambda f, _: Views(f.server.driver.client_streams, StreamView))
    #: Workers with the status "running".
    running = FromState(lambda f, state: set(map(f.worker_view, state.running)))
    #: Address -> idle worker.
    idle = FromState(
        lambda f, state: {
            ws.address: f.worker_view(ws)
            for ws in state.running
            if placement.load_class(state, ws) == "idle"
        }
    )
    saturated = FromState(
        lambda f, state: {
            f.worker_view(ws)
            for ws in state.running
            if placement.load_class(state, ws) == "saturated"
        }
    )
    #: Workers with a free slot, by the number of their tasks.
    idle_task_count = FromState(
        lambda f, state: set(map(f.worker_view, placement.workers_with_free_slots(state)))
    )
    #: Task that no worker may run -> time since when.
    unrunnable = FromState(
        lambda f, state: {f.task_view(ts): since for ts, since in state.unrunnable.items()}
    )
    #: Queued tasks, next first.
    queued = FromState(lambda f, state: list(map(f.task_view, state.queued)))
    #: Tasks whose data is on several workers.
    replicated_tasks = FromState(lambda f, state: set(map(f.task_view, state.replicated_tasks)))
    #: Computations, oldest first.
    computations = FromState(lambda _, state: list(map(ComputationView, state.computations)))
    #: (time since when, number of threads of the cluster), oldest first; seconds since the epoch.
    total_nthreads_history = FromState(lambda _, state: state.spans.threads)
    #: The topics of the event log; stock's name is ``_broker``.
    broker = FromState(lambda _, state: Broker(state.events))
    #: Host -> {"addresses": set, "nthreads": threads of its workers, ...}.
    host_info = FromState(
        lambda _, state: {
            host: {**facts, "addresses": set(facts["addresses"])}
            for host, facts in state.host_info.items()
        }
    )

    @property
    def memory(self) -> Any:
        """Return distributed's ``MemoryState`` of all workers together."""
        from distributed.scheduler import MemoryState

        return MemoryState.sum(*(ws.memory for ws in self.workers.values()))

    # Logs

    @property
    def transition_log(self) -> list[Any]:
        """Return the last transitions, oldest first, as stock's named tuples."""
        from distributed.scheduler import Transition

        return [
            Transition(key, start, finish, {ts.key: to for ts, to in made.items()}, *more)
            for key, start, finish, made, *more in self.state.transition_log
        ]

    def story(self, *keys_or_tasks_or_stimuli: Any) -> list[Any]:
        """Return logged transitions that involve one of these, oldest first."""
        from distributed.scheduler import Transition

        names = [k.key if isinstance(k, TaskView) else k for k in keys_or_tasks_or_stimuli]
        return [Transition(*entry) for entry in queries.story(self.state, *names)]

    def get_events(self, topic: str | None = None) -> Any:
        """Return (seconds since the epoch, event) of a topic, or topic -> events of all."""
        found = self.state.events.get(topic)
        if isinstance(found, dict):
            return {name: deserialized_events(events) for name, events in found.items()}
        return deserialized_events(found)

    # The whole state

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

    # Addresses

    def coerce_address(self, addr: Any, resolve: bool = True) -> str:
        """Return the address for an alias, a ``(host, port)`` pair or an address without scheme.

        Host names are resolved if `resolve` is set.
        """
        return str(self.server.worker_address(addr, resolve))

    def coerce_hostname(self, host: Any) -> str:
        """Return the host of the worker with this alias, or `host` itself."""
        address = self.state.aliases.get(host)
        return str(host) if address is None else str(self.state.workers[address].host)

    def workers_list(self, workers: Iterable[str] | None) -> list[str]:
        """Return addresses of workers by address or a part of it."""
        return queries.workers_list(self.state, workers)

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

    # Look-ups

    def get_who_has(self, keys: Iterable[Any] | None = None) -> dict[Any, list[str]]:
        """Return key -> addresses of workers with its data."""
        return queries.who_has(self.state, keys)

    def get_has_what(self, workers: Iterable[Any] | None = None) -> dict[str, list[Any]]:
        """Return address -> keys whose data the worker has."""
        return queries.has_what(self.state, workers)

    def get_ncores(self, workers: Iterable[Any] | None = None) -> dict[str, int]:
        """Return address -> number of threads."""
        return queries.ncores(self.state, workers)

    def get_ncores_running(self, workers: Iterable[Any] | None = None) -> dict[str, int]:
        """Return address -> number of threads, of running workers."""
        return queries.ncores_running(self.state, workers)

    def get_processing(self, workers: Iterable[Any] | None = None) -> dict[str, list[Any]]:
        """Return address -> keys that the worker is processing."""
        return queries.processing(self.state, workers)

    def get_nbytes(self, keys: Iterable[Any] | None = None, summary: bool = True) -> dict[Any, int]:
        """Return key (prefix in a summary) -> size of its data in bytes."""
        return queries.nbytes(self.state, keys, summary)

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
