"""The state of the cluster: tasks, workers, clients.

Attributes carry the documented names of Dask's scheduler state; what is not stored is a property that
computes the documented view. Mirrored pairs change only in ``mirrors.py``; a task's ``state`` only in
``transitions.py``.

Must not know: messages, sockets, how a decision is taken.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload

from .config import SchedulerConfig
from .containers import IndexedSet, LoadBuckets, PriorityQueue, Timers, Trail
from .groups import Computation, TaskGroup, TaskPrefix
from .nearness import Domains
from .small_set import SmallSet
from .spans import SpanTree
from .steals import Steals

if TYPE_CHECKING:
    from paceline.scheduler.extensions.events import EventLog

    from .departures import Departure
    from .graphs import PendingGraph
    from .ports import ErrorPort, PluginPort

#: States in which a task needs its dependencies' data: it is among their ``waiters``.
ACTIVE_STATES = frozenset({"waiting", "no-worker", "queued", "processing"})


@dataclass(slots=True)
class TaskDetails:
    """What few tasks have: made when first needed.

    Attributes:
        exception, traceback: of the error, closed, on the task that failed itself.
        exception_text, traceback_text: the same in words.
        exception_blame: the task whose failure made this one erred; itself where it failed itself.
        erred_on: addresses of workers on which it erred, in order.
        host_restrictions, worker_restrictions: hosts and addresses on which alone it may run.
        resource_restrictions: resource name -> amount needed.
        loose_restrictions: the restrictions are wishes.
        metadata: what workers reported with the finished task.
        witnessed_deaths: unexpected deaths of workers on which it was processing at the time.
    """

    exception: Payload | None = None
    traceback: Payload | None = None
    exception_text: str | None = None
    traceback_text: str | None = None
    exception_blame: TaskState | None = None
    erred_on: dict[str, None] | None = None
    host_restrictions: dict[str, None] | None = None
    worker_restrictions: dict[str, None] | None = None
    resource_restrictions: dict[str, float] | None = None
    loose_restrictions: bool = False
    metadata: dict[str, Any] | None = None
    witnessed_deaths: int = 0


@dataclass(slots=True, eq=False, repr=False)
class TaskState:
    """One task. Compares and hashes by identity; ``key`` is unique in ``SchedulerState.tasks``.

    Attributes:
        key: the task's key.
        group: its TaskGroup; never changes.
        run_spec: header frame of its pickled specification, or the whole payload where it has
            buffers; None for pure data and for keys whose graph has not come yet.
        state: one of TASK_STATES; assigned in transitions.py only.
        priority: (-user priority, generation, place in dask's order), None before a graph gave one.
        dependencies: tasks whose data it takes; fixed by its graph, less those forgotten.
        dependents: tasks that take its data.
        who_wants: clients that hold a future of it.
        who_has: workers that hold its data; not empty exactly in state memory (and between a
            worker's loss and the release that it caused).
        processing_on: the worker it was sent to, exactly in state processing.
        waiting_count: in state waiting, how many dependencies nobody has.
        waiters_count: how many dependents are in an active state.
        nbytes: size of its data in bytes, -1 where unknown.
        run_id: number of the last ``compute-task`` sent for it.
        type: name of its result's type.
        retries: how often it may still err.
        suspicious: how many unexpected worker deaths it was blamed for.
        actor: it makes an actor.
        data_producer: its specification says that it only makes data (so it counts as root-ish).
        has_lost_dependencies: a dependency was forgotten: it can never run again.
        queueable: it may be held back on the scheduler.
        annotations: the annotation dict that goes to the worker, plain or closed, or None; tasks annotated alike share one.
        details: what few tasks have, or None.
    """

    key: Key
    group: TaskGroup
    run_spec: bytes | Payload | None = None
    state: str = "released"
    priority: tuple[float, float, float] | None = None
    dependencies: tuple[TaskState, ...] = ()
    dependents: SmallSet[TaskState] = ()
    who_wants: SmallSet[ClientState] = ()
    who_has: SmallSet[WorkerState] = ()
    processing_on: WorkerState | None = None
    waiting_count: int = 0
    waiters_count: int = 0
    nbytes: int = -1
    run_id: int = 0
    type: str | None = None
    retries: int = 0
    suspicious: int = 0
    actor: bool = False
    data_producer: bool = False
    has_lost_dependencies: bool = False
    queueable: bool = True
    annotations: Any = None
    details: TaskDetails | None = None

    def __repr__(self) -> str:
        return f"<TaskState {self.key!r} {self.state}>"

    # the documented views

    @property
    def prefix(self) -> TaskPrefix:
        """Its group's prefix."""
        return self.group.prefix

    @property
    def group_key(self) -> str:
        """Its group's name."""
        return self.group.name

    @property
    def waiting_on(self) -> set[TaskState]:
        """In state waiting: dependencies that nobody has yet."""
        if self.state != "waiting":
            return set()
        return {d for d in self.dependencies if not d.who_has}

    @property
    def waiters(self) -> set[TaskState]:
        """Dependents in an active state."""
        return {d for d in self.dependents if d.state in ACTIVE_STATES}

    def ensure_details(self) -> TaskDetails:
        """Its details, made now if it had none."""
        if self.details is None:
            self.details = TaskDetails()
        return self.details

    @property
    def exception(self) -> Payload | None:
        """The error, closed."""
        return self.details.exception if self.details is not None else None

    @property
    def traceback(self) -> Payload | None:
        """The error's traceback, closed."""
        return self.details.traceback if self.details is not None else None

    @property
    def exception_text(self) -> str | None:
        """The error in words."""
        return self.details.exception_text if self.details is not None else None

    @property
    def traceback_text(self) -> str | None:
        """The traceback in words."""
        return self.details.traceback_text if self.details is not None else None

    @property
    def exception_blame(self) -> TaskState | None:
        """The task that failed."""
        return self.details.exception_blame if self.details is not None else None

    @property
    def erred_on(self) -> dict[str, None] | None:
        """Addresses of workers on which it erred."""
        return self.details.erred_on if self.details is not None else None

    @property
    def host_restrictions(self) -> dict[str, None] | None:
        """Hosts on which alone it may run."""
        return self.details.host_restrictions if self.details is not None else None

    @property
    def worker_restrictions(self) -> dict[str, None] | None:
        """Worker addresses on which alone it may run."""
        return self.details.worker_restrictions if self.details is not None else None

    @property
    def resource_restrictions(self) -> dict[str, float] | None:
        """Resources it needs."""
        return self.details.resource_restrictions if self.details is not None else None

    @property
    def loose_restrictions(self) -> bool:
        """Whether its restrictions are wishes."""
        return self.details.loose_restrictions if self.details is not None else False

    @property
    def metadata(self) -> dict[str, Any] | None:
        """What workers reported with it."""
        return self.details.metadata if self.details is not None else None


@dataclass(slots=True, eq=False, repr=False)
class ClientState:
    """A client, or what holds keys as one (a queue, a variable, a published dataset).

    Attributes:
        client_key: its name.
        wants_what: tasks it holds futures of.
        versions: of its packages, as it sent them.
        last_seen: when it was last heard of, seconds since the epoch.
        heartbeats: how many of its heartbeats came.
        lapsed: they stopped coming, and that was noticed.
        said_goodbye: it closes: what it holds is let go when its connection ends.
        held_until: it is gone without a goodbye, and what it held is kept until then, seconds since the epoch; 0.0 for others.
    """

    client_key: str
    versions: Any = None
    wants_what: dict[TaskState, None] = field(default_factory=dict)
    last_seen: float = 0.0
    heartbeats: int = 0
    lapsed: bool = False
    said_goodbye: bool = False
    held_until: float = 0.0

    def __repr__(self) -> str:
        return f"<Client {self.client_key!r}>"


@dataclass(slots=True, eq=False, repr=False)
class WorkerState:
    """A worker.

    Attributes:
        address: its contact address; unique.
        address_tuple: ``(address,)``, ready for messages.
        name: what it calls itself (str or int); unique; an alias of its address.
        host: host part of its address.
        nthreads: threads that run tasks.
        memory_limit: bytes, 0 where unlimited.
        status: running, paused, closing, closing_gracefully, init, closed.
        server_id, pid, local_directory, services, nanny, versions, extra: as it registered them.
        index: how many workers registered before it.
        processing: tasks sent to it and not finished, in order.
        long_running: those of them that seceded from the thread pool.
        executing: task -> seconds, as its last heartbeat told.
        executing_seen: keys of ``executing`` at the last heartbeat (some may be gone by now).
        has_what: tasks whose data it holds, in order.
        nbytes: bytes of that data.
        needs_what: dependency not on it -> how many of its processing tasks need it.
        network_occ: bytes of those dependencies.
        known_counts: prefix -> how many of its processing tasks (not seceded) have it, where the duration is known.
        unknown_counts: likewise where nothing is known of the duration yet.
        unknown_total: sum of ``unknown_counts``: thousands of prefixes with one task each cost no more than one.
        actors: actors that live on it.
        resources, used_resources: supplied and taken amounts.
        metrics: of its last heartbeat.
        last_seen, time_delay: seconds.
        memory_unmanaged_old, memory_unmanaged_history: see stock's MemoryState; bytes.
        clogged: its connection takes nothing more: it gets no new tasks.
        task_slots: tasks (less those that seceded) at which it is saturated; may be infinite.
    """

    address: str
    name: Any
    host: str
    nthreads: int
    memory_limit: int = 0
    status: str = "running"
    server_id: str = ""
    pid: int = 0
    local_directory: str = ""
    services: dict[str, int] = field(default_factory=dict)
    nanny: str | None = None
    versions: Any = None
    extra: dict[str, Any] = field(default_factory=dict)
    index: int = 0
    address_tuple: tuple[str, ...] = ()
    processing: dict[TaskState, None] = field(default_factory=dict)
    long_running: dict[TaskState, None] = field(default_factory=dict)
    executing: dict[TaskState, float] = field(default_factory=dict)
    has_what: dict[TaskState, None] = field(default_factory=dict)
    nbytes: int = 0
    needs_what: dict[TaskState, int] = field(default_factory=dict)
    network_occ: int = 0
    known_counts: dict[TaskPrefix, int] = field(default_factory=dict)
    unknown_counts: dict[TaskPrefix, int] = field(default_factory=dict)
    unknown_total: int = 0
    actors: dict[TaskState, None] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)
    used_resources: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    last_seen: float = 0.0
    time_delay: float = 0.0
    memory_unmanaged_old: int = 0
    memory_unmanaged_history: deque[tuple[float, int]] = field(default_factory=deque)
    clogged: bool = False
    task_slots: float = 1

    def __post_init__(self) -> None:
        self.address_tuple = (self.address,)

    @property
    def prefix_counts(self) -> dict[TaskPrefix, int]:
        """Prefix -> how many of its processing tasks (not seceded) have it."""
        return {**self.known_counts, **self.unknown_counts}

    def __repr__(self) -> str:
        name = f", name: {self.name}" if self.name != self.address else ""
        return (
            f"<WorkerState {self.address!r}{name}, status: {self.status}, "
            f"memory: {len(self.has_what)}, processing: {len(self.processing)}>"
        )


@dataclass(slots=True)
class ErredTask:
    """A line of the history of errors (the dashboard's page of exceptions).

    Attributes:
        key: the task that failed.
        timestamp: seconds since the epoch.
        erred_on: addresses.
        exception_text, traceback_text: what went wrong, in words.
    """

    key: Key
    timestamp: float
    erred_on: tuple[str, ...]
    exception_text: str
    traceback_text: str


class SchedulerState:
    """All of it.

    Attributes:
        tasks: key -> TaskState, every one that is not forgotten.
        workers: address -> WorkerState, in order of registration.
        clients: name -> ClientState; ``fire-and-forget`` is always there.
        aliases: worker name -> address.
        host_info: host -> {"addresses": {address: None}, "nthreads": int, "last-seen": float, ...}.
        resources: resource -> {address: supplied amount}.
        running: workers whose status is running.
        idle: workers with too little to do (fewer tasks than threads, or less than half the average).
        idle_load: running workers that may get root-ish tasks, by load.
        saturated: workers with much more to do than the average.
        restless: workers whose load has changed; ``idle_load`` follows before it is read (``placement.follow_loads``).
        unsettled: those whom ``idle_load`` has followed; ``idle`` and ``saturated`` do before they are read
            (``placement.settle``), and when a quarter of a second has passed.
        unrunnable: tasks in state no-worker -> since when (seconds since the epoch).
        queued: tasks in state queued, by priority.
        replicated_tasks: tasks that several workers have.
        task_groups, task_prefixes: by name.
        spans: task groups under the names that clients gave them.
        task_metadata: what clients set (``Client.set_metadata``).
        generation, last_graph_at: of the last graph that opened a generation.
        n_tasks: tasks ever sent to a worker.
        bandwidth: bytes a second between workers, moving average.
        compute_occupancy: sum over prefixes of expected duration times tasks processing, seconds.
        network_occ: bytes that processing tasks still need to fetch, over all workers.
        total_nthreads, total_memory: over all workers.
        backlog: recommendations put off to later turns (``later.py``), in order.
        let_go: tasks that somebody needs no longer, or that lost their data: later turns see what follows.
        departures: workers that are gone, and whose tasks later turns look at (``departures.py``).
        leaving: clients that are gone, and whose wishes later turns end.
        debris: tasks that a restart forgot, to be taken apart in later turns (``restarting.py``).
        steals: tasks that workers were asked to give back for others (``stealing.py``).
        graphs: graphs being taken in, by number.
        dropped_graphs: numbers of graphs that were given up: what still comes of them is ignored.
        domains: which workers read each other's data where it lies.
        commits: graphs whose commit is under way, in order.
        transition_log: the last transitions: (key, start, finish, {key: recommendation}, stimulus_id, time).
        no_workers_since: since when no worker runs, or None.
        idle_since: since when nothing is to be done, or None.
        closing: the scheduler shuts down.
    """

    __slots__ = (
        "aliases", "backlog", "bandwidth", "bandwidth_types", "bandwidth_workers", "client_added_count",
        "client_removed_count", "clients", "commits", "computations", "compute_occupancy", "config",
        "cumulative_worker_metrics", "debris", "departures", "domains", "dropped_graphs", "erred_tasks", "errors", "events",
        "generation", "graphs", "host_info", "idle", "idle_load", "idle_since", "idle_transition_counter",
        "last_graph_at", "leaving", "let_go", "n_tasks", "network_occ", "no_workers_since", "plugins", "queued",
        "replicated_tasks", "resources", "restless", "run_ids", "running", "saturated", "spans", "steals",
        "task_groups", "task_metadata", "task_prefixes", "tasks", "timers", "total_memory", "total_nthreads", "transition_counter",
        "transition_log", "unrunnable", "unsettled", "validate", "worker_added_count", "worker_removed_count", "workers",
    )  # fmt: skip

    def __init__(
        self,
        config: SchedulerConfig,
        events: EventLog,
        errors: ErrorPort,
        plugins: PluginPort | None = None,
    ) -> None:
        self.config = config
        self.events = events
        self.errors = errors
        self.plugins = plugins
        self.validate = config.validate
        self.tasks: dict[Key, TaskState] = {}
        self.workers: dict[str, WorkerState] = {}
        self.clients: dict[str, ClientState] = {"fire-and-forget": ClientState("fire-and-forget")}
        self.aliases: dict[Any, str] = {}
        self.host_info: dict[str, dict[str, Any]] = {}
        self.resources: dict[str, dict[str, float]] = {}
        self.running: dict[WorkerState, None] = {}
        self.idle: IndexedSet[WorkerState] = IndexedSet()
        self.idle_load: LoadBuckets[WorkerState] = LoadBuckets()
        self.saturated: dict[WorkerState, None] = {}
        self.restless: dict[WorkerState, None] = {}
        self.unsettled: dict[WorkerState, None] = {}
        self.unrunnable: dict[TaskState, float] = {}
        self.queued: PriorityQueue[TaskState] = PriorityQueue()
        self.replicated_tasks: dict[TaskState, None] = {}
        self.task_groups: dict[str, TaskGroup] = {}
        self.task_prefixes: dict[str, TaskPrefix] = {}
        self.task_metadata: dict[Any, Any] = {}
        self.spans = SpanTree()
        self.computations: deque[Computation] = deque(maxlen=config.computations_max)
        self.erred_tasks: deque[ErredTask] = deque(maxlen=config.erred_tasks_max)
        self.transition_log: deque[tuple[Any, ...]] = deque(maxlen=config.low_level_log_length)
        self.transition_counter = 0
        self.idle_transition_counter = 0
        self.run_ids = itertools.count(1)
        self.generation = 0.0
        self.last_graph_at = 0.0
        self.n_tasks = 0
        self.bandwidth = config.bandwidth
        self.bandwidth_workers: dict[tuple[str, str], float] = {}
        self.bandwidth_types: dict[str, float] = {}
        self.cumulative_worker_metrics: dict[Any, float] = {}
        self.compute_occupancy = 0.0
        self.network_occ = 0
        self.domains = Domains()
        self.total_nthreads = 0
        self.total_memory = 0
        self.backlog: dict[TaskState, str] = {}
        self.let_go: Trail[TaskState] = Trail()
        self.departures: deque[Departure] = deque()
        self.leaving: deque[ClientState] = deque()
        self.debris: Trail[TaskState] = Trail()
        self.steals = Steals(config.work_stealing_interval_seconds)
        self.graphs: dict[int, PendingGraph] = {}
        self.dropped_graphs: dict[int, None] = {}
        self.commits: deque[PendingGraph] = deque()
        self.timers = Timers()
        self.no_workers_since: float | None = None
        self.idle_since: float | None = None
        self.worker_added_count = 0
        self.worker_removed_count = 0
        self.client_added_count = 0
        self.client_removed_count = 0

    # the documented views

    @property
    def total_occupancy(self) -> float:
        """Seconds of work that is assigned to workers, transfers included."""
        return max(0.0, self.compute_occupancy) + self.network_occ / self.bandwidth

    @property
    def has_unfinished(self) -> bool:
        """Whether later turns have something to look at."""
        return bool(
            self.backlog or self.let_go or self.departures or self.leaving or self.commits
            or self.debris
        )  # fmt: skip

    @property
    def is_idle(self) -> bool:
        """Whether every task there is has finished computing."""
        if self.queued or self.unrunnable or self.backlog or self.departures:
            return False
        return not any(ws.processing for ws in self.workers.values())

    def resolve_worker(self, name: Any) -> WorkerState | None:
        """The worker of this address or alias."""
        ws = self.workers.get(name)
        if ws is None:
            address = self.aliases.get(name)
            if address is not None:
                ws = self.workers.get(address)
        return ws
