"""More of what programs, plugins and tests reach for in stock's ``Scheduler``: knobs, look-ups, requests from within.

A part of the facade. Reading a knob reads the configuration of this scheduler; writing one is a command of the core, so that a journal
has it. Names that stock has with a leading underscore are found under both.

Must not know: what the facade knows of sockets and plugins.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core import placement, queries, stimuli
from paceline.scheduler.core.dump import dump_state
from paceline.scheduler.core.handlers.commands import check_knob

from .config import seconds


class Knob:
    """A knob under stock's name.

    Args:
        field: of ``SchedulerConfig``.
        parse: what a program writes -> what the field takes.
        show: what the field holds -> what stock shows.
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
        if facade is None:
            return self
        return self._show(getattr(facade._server.state.config, self._field))

    def __set__(self, facade: Any, value: Any) -> None:
        facade.configure(self._field, self._parse(value))


class TickPart:
    """What each tick looks at, as tornado's ``PeriodicCallback``: for programs that stop it."""

    def __init__(self, facade: Any, field: str) -> None:
        self._facade = facade
        self._field = field

    def is_running(self) -> bool:
        """Whether it is looked at."""
        return bool(getattr(self._facade._server.state.config, self._field))

    def start(self) -> None:
        """Look at it from now on."""
        self._facade.configure(self._field, True)

    def stop(self) -> None:
        """Look at it no more."""
        self._facade.configure(self._field, False)


def tick_parts(facade: Any) -> dict[str, TickPart]:
    """By the names that stock has for them among its periodic callbacks."""
    fields = {
        "worker-ttl": "watch_worker_ttl",
        "idle-timeout": "watch_idle",
        "no-workers-timeout": "watch_no_workers",
    }
    return {name: TickPart(facade, field) for name, field in fields.items()}


class StockNames:
    """See the module. ``_server``, ``_scheduler``, ``_port``, ``_task``, ``_worker`` and ``_finished`` are the facade's."""

    _server: Any
    _scheduler: Any
    _port: Any
    _task: Any
    _worker: Any
    _finished: Any
    handlers: Any
    log_event: Any
    transitions: Any

    # -- knobs

    WORKER_SATURATION = Knob("worker_saturation", float)
    UNKNOWN_TASK_DURATION = Knob("unknown_task_duration_seconds", seconds)
    MEMORY_RECENT_TO_OLD_TIME = Knob("memory_recent_to_old_seconds", seconds)
    MEMORY_REBALANCE_MEASURE = Knob("rebalance_measure")
    MEMORY_REBALANCE_SENDER_MIN = Knob("rebalance_sender_min", float)
    MEMORY_REBALANCE_RECIPIENT_MAX = Knob("rebalance_recipient_max", float)
    MEMORY_REBALANCE_HALF_GAP = Knob("rebalance_gap", lambda half: 2 * half, lambda gap: gap / 2)
    allowed_failures = Knob("allowed_failures", int)
    idle_timeout = Knob("idle_timeout_seconds", seconds)
    no_workers_timeout = Knob("no_workers_timeout_seconds", seconds)
    rootish_tg_threshold = Knob("rootish_taskgroup", int)
    rootish_tg_dependencies_threshold = Knob("rootish_taskgroup_dependencies", int)
    validate = Knob("validate", bool)
    worker_ttl = Knob("worker_ttl_seconds", seconds)

    def configure(self, field: str, value: Any) -> None:
        """Turn a knob: now, or right after the turn that calls a hook.

        Raises:
            AttributeError: it is fixed when the scheduler starts.
            ValueError: the value is out of its range.
        """
        check_knob(self._server.state, field, value)
        self._port.tell(stimuli.Configure(field, value))

    # -- the process

    @property
    def ip(self) -> str:
        """Host part of the address."""
        return str(self._scheduler.host)

    @property
    def address_safe(self) -> str:
        """The address, or "not-running"."""
        try:
            return str(self._scheduler.address)
        except ValueError:
            return "not-running"

    @property
    def thread_id(self) -> int:
        """Of the thread that the event loop runs in."""
        return threading.get_ident()

    @property
    def service_ports(self) -> dict[str, int]:
        """Name of a service -> its port."""
        return {name: service.port for name, service in self._scheduler.services.items()}

    @property
    def worker_plugins(self) -> dict[str, bytes]:
        """Name -> pickled plugin that every worker gets."""
        return dict(self._server.flows.worker_plugins)

    @property
    def nanny_plugins(self) -> dict[str, bytes]:
        """The same for nannies."""
        return dict(self._server.flows.nanny_plugins)

    def to_dict(self, *, exclude: Iterable[str] = ()) -> dict[str, Any]:
        """The whole state as plain values (stock's ``_to_dict``)."""
        facts = {
            **self._scheduler.identity(),
            "status": self._scheduler.status.name,
            "thread_id": self.thread_id,
        }
        return dump_state(self._server.state, facts, tuple(exclude))

    def _repr_html_(self) -> str:
        from dask.widgets import get_template

        state = self._server.state
        template = get_template("scheduler.html.j2")
        facts = {"workers": state.workers, "threads": state.total_nthreads, "tasks": state.tasks}
        return str(template.render(address=self.address_safe, **facts))

    # -- addresses

    def coerce_address(self, addr: Any, resolve: bool = True) -> str:
        """The address that an alias, a ``(host, port)`` pair or an address without scheme stands for; host names as addresses."""
        return str(self._server.worker_address(addr, resolve))

    def coerce_hostname(self, host: Any) -> str:
        """The host of a worker that is known by this alias; else the name as it is."""
        address = self._server.state.aliases.get(host)
        return str(host) if address is None else str(self._server.state.workers[address].host)

    def workers_list(self, workers: Iterable[str] | None) -> list[str]:
        """Addresses of workers that are named by address or by a part of it."""
        return queries.workers_list(self._server.state, workers)

    def get_worker_service_addr(
        self, worker: str, service_name: str, protocol: bool = False
    ) -> Any:
        """(host, port) of a worker's service, or "scheme://host:port"; None where it has none of this name."""
        ws = self._server.state.workers[worker]
        port = ws.services.get(service_name)
        if port is None:
            return None
        scheme = ws.address.partition("://")[0]
        return f"{scheme}://{ws.host}:{port}" if protocol else (ws.host, port)

    @property
    def host_info(self) -> dict[str, dict[str, Any]]:
        """Host -> {"addresses": set, "nthreads": threads of its workers, ...}."""
        known = self._server.state.host_info
        return {
            host: {**facts, "addresses": set(facts["addresses"])} for host, facts in known.items()
        }

    # -- look-ups

    def get_who_has(self, keys: Iterable[Any] | None = None) -> dict[Any, list[str]]:
        """Key -> addresses of those that have its data."""
        return queries.who_has(self._server.state, keys)

    def get_has_what(self, workers: Iterable[Any] | None = None) -> dict[str, list[Any]]:
        """Address -> keys whose data the worker has."""
        return queries.has_what(self._server.state, workers)

    def get_ncores(self, workers: Iterable[Any] | None = None) -> dict[str, int]:
        """Address -> threads."""
        return queries.ncores(self._server.state, workers)

    def get_ncores_running(self, workers: Iterable[Any] | None = None) -> dict[str, int]:
        """The same of those that take tasks."""
        return queries.ncores_running(self._server.state, workers)

    def get_processing(self, workers: Iterable[Any] | None = None) -> dict[str, list[Any]]:
        """Address -> keys that the worker was sent and has not finished."""
        return queries.processing(self._server.state, workers)

    def get_nbytes(self, keys: Iterable[Any] | None = None, summary: bool = True) -> dict[Any, int]:
        """Key (or prefix, in a summary) -> bytes of its data."""
        return queries.nbytes(self._server.state, keys, summary)

    def get_call_stack(self, keys: Iterable[Any] | None = None) -> Any:
        """What worker threads execute; to be awaited."""
        return self.handlers["call_stack"](keys=keys)

    def get_worker_logs(
        self, n: int | None = None, workers: Any = None, nanny: bool = False
    ) -> Any:
        """The last lines of workers' logs; to be awaited."""
        return self.handlers["worker_logs"](n=n, workers=workers, nanny=nanny)

    @property
    def idle_task_count(self) -> set[Any]:
        """Workers with a free slot, by the number of their tasks."""
        return {self._worker(ws) for ws in placement.with_slots(self._server.state)}

    def is_rootish(self, ts: Any) -> bool:
        """Whether the task is one of many that depend on little, which are queued until a thread is free."""
        return placement.is_rootish(self._server.state, self._server.state.tasks[ts.key])

    def valid_workers(self, ts: Any) -> set[Any] | None:
        """Workers that its restrictions allow; None for all."""
        valid = placement.valid_workers(self._server.state, self._server.state.tasks[ts.key])
        return None if valid is None else {self._worker(ws) for ws in valid}

    def get_comm_cost(self, ts: Any, ws: Any) -> float:
        """Seconds that the worker would take to fetch what it lacks for a task."""
        state = self._server.state
        return placement.fetch_seconds(state, state.tasks[ts.key], state.workers[ws.address])

    def worker_objective(self, ts: Any, ws: Any) -> tuple[float, ...]:
        """What placement minimises: when the task could start there, and what the worker holds."""
        state = self._server.state
        return placement.start_estimate(state, state.tasks[ts.key], state.workers[ws.address])

    # -- what changes the cluster

    def transition(self, key: Any, finish: str, stimulus_id: str) -> None:
        """Send one task to another state; see ``transitions``."""
        self.transitions({key: finish}, stimulus_id)

    def reschedule(
        self, key: Any, worker: str | None = None, *, stimulus_id: str | None = None
    ) -> None:
        """A task that its worker has let go is placed anew (stock's ``_reschedule``).

        Args:
            worker: nothing happens where another one has it.
        """
        self._port.tell(m.Reschedule(key=key), worker or "", stimulus_id)

    def report_on_key(self, key: Any = None, *, ts: Any = None, client: str | None = None) -> None:
        """Tell a client, or all that want it, what became of a key."""
        key = ts.key if ts is not None else key
        found = self._server.state.tasks.get(key)
        names = (
            [client]
            if client
            else []
            if found is None
            else [cs.client_key for cs in found.who_wants]
        )
        for name in names:
            self._port.tell(m.ReportKey(key=key), name)

    def stimulus_cancel(
        self,
        keys: Iterable[Any],
        client: str,
        force: bool = False,
        reason: str | None = None,
        msg: str | None = None,
    ) -> None:
        """A client wants these keys no more; with ``force`` nobody does."""
        told = {name: text for name, text in (("reason", reason), ("msg", msg)) if text is not None}
        self._port.tell(m.CancelKeys(keys=list(keys), client=client, force=force, **told), client)

    def stimulus_retry(self, keys: Iterable[Any], client: str | None = None) -> Any:
        """Compute erred tasks again, and what they erred of; to be awaited."""
        return self.handlers["retry"](keys=list(keys), client=client or "")

    def close_worker(self, worker: str) -> None:
        """Ask a worker to close."""
        self._port.tell(stimuli.CloseWorker(worker))

    def log_worker_event(self, worker: str, topic: str | Iterable[str], msg: Any) -> None:
        """Log an event of a worker's."""
        self.log_event(topic, {**msg, "worker": worker} if isinstance(msg, dict) else msg)

    def gather_on_worker(
        self, worker_address: str, who_has: Mapping[Any, Iterable[str]]
    ) -> Awaitable[set[Any]]:
        """Have one worker fetch keys from others; to be awaited: the keys that it could not get."""
        return self._server.gather_on_worker(
            worker_address, {key: list(names) for key, names in who_has.items()}
        )  # type: ignore[no-any-return]

    def delete_worker_data(
        self, worker_address: str, keys: Iterable[Any], stimulus_id: str
    ) -> Awaitable[None]:
        """Have one worker drop keys; to be awaited."""
        return self._server.delete_worker_data(worker_address, list(keys), stimulus_id)  # type: ignore[no-any-return]


#: What may be written on the ``Scheduler`` object and turns a knob here.
KNOBS = frozenset(name for name, value in vars(StockNames).items() if isinstance(value, Knob))
