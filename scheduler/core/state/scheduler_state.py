"""The state of the cluster: tasks, workers and clients.

See ``model.py`` for the names of attributes, and for the code that changes them.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from paceline.protocol.keys import Key
from paceline.scheduler.core.config import SchedulerConfig

from .admission import Admission
from .deferred import Deferred
from .event_log import ErredTask, EventLog
from .graphs.computations import Computation
from .graphs.pending_graph import PendingGraph
from .graphs.spans import SpanTree
from .model import ClientState, TaskGroup, TaskPrefix, TaskState, WorkerState
from .second_copies import SecondCopies
from .sharing.accounts import Shares
from .sharing.fair_queue import FairQueue
from .task_policies import Policies
from .task_states import count_in
from .workers.comparison import Comparisons
from .workers.ends import WorkerEnds
from .workers.loads import WorkerLoads
from .workers.locality import SharedMemoryDomains
from .workers.scaling import Scaling
from .workers.stealing import StealingState
from .workers.whole_workers import WholeWorkers

if TYPE_CHECKING:
    from paceline.scheduler.core.ports import ErrorPort, PluginPort

#: Name of the client that holds keys submitted with ``fire_and_forget``.
FIRE_AND_FORGET: Final = "fire-and-forget"


class SchedulerState:
    """The state that stimuli change.

    Attributes:
        config: the settings of the core.
        now: time of the current or last turn in seconds since the epoch.
        events: the event log.
        errors: makes the exceptions that clients deserialize.
        plugins: calls the hooks of scheduler plugins, or None.
        tasks: key -> TaskState, for all tasks that are not forgotten.
        workers: address -> WorkerState, in order of registration.
        clients: name -> ClientState; always has ``fire-and-forget``.
        aliases: worker name -> address.
        host_info: host -> {"addresses": {address: None}, "nthreads": int, "last-seen": float,
            ...}.
        resources: resource -> {address: supplied amount}.
        running: workers that are running and can be sent tasks (``is_available``).
        loads: workers by load: idle, saturated, and those with free slots.
        admission: whether the memory of workers limits which tasks they are sent.
        worker_ends: workers that reported when they end.
        whole_workers: tasks whose worker ran out of memory, and workers that are reserved for them.
        scaling: requests of an adaptive cluster.
        unrunnable: task in state no-worker -> time at which it entered it, in seconds since the
            epoch.
        shares: share groups, and the accounts of clients in them.
        queued: tasks in state queued, by share group and priority.
        replicated_tasks: tasks that several workers hold.
        drops_replicas: whether the active memory manager runs.
        task_groups, task_prefixes: by name.
        idle_prefixes: names of prefixes without groups, the least recently used first.
        dropped_prefixes: sums over prefixes that were dropped.
        computations: the latest computations, oldest first.
        erred_tasks: the latest errors, newest first.
        spans: task groups by the spans that clients put them in.
        task_metadata: metadata that clients set (``Client.set_metadata``).
        generation, last_graph_at: of the last graph that started a generation.
        n_tasks: number of tasks ever sent to a worker.
        run_ids: source of the numbers of ``compute-task`` messages.
        bandwidth: bytes per second between workers, moving average.
        bandwidth_workers, bandwidth_types: the same by (receiver, sender) and by type name.
        cumulative_worker_metrics: metrics summed over the heartbeats of all workers.
        compute_occupancy: expected duration times the number of processing tasks, summed over
            prefixes, in seconds.
        network_occ: bytes that processing tasks still have to fetch, over all workers.
        total_nthreads, total_memory: over all workers.
        deferred: work that later turns continue.
        stealing: tasks that workers were asked to give back, and the state of the balancer.
        graphs: number -> graph that is being received or committed.
        dropped_graphs: numbers of graphs that were dropped; their later chunks are ignored.
        domains: which workers read each other's data in place.
        timers: number -> function that is called with the turn in which the timer is due; the
            driver has the clock.
        timer_ids: source of the numbers of timers.
        task_policies: timeouts, deadlines and other policies of tasks.
        second_copies: results that may get a second copy.
        comparisons: comparisons of the state of workers with the scheduler's.
        transition_counter, idle_transition_counter: number of transitions made, and its value at
            the last check for idleness.
        transition_log: the latest transitions: (key, start, finish, {task: recommendation},
            stimulus_id, time).
        no_workers_since: time since which no worker runs, or None.
        idle_since: time since which the scheduler is idle, or None.
        worker_added_count, worker_removed_count, client_added_count, client_removed_count: numbers
            ever.
    """

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
        self.tasks: dict[Key, TaskState] = {}
        self.workers: dict[str, WorkerState] = {}
        self.clients: dict[str, ClientState] = {FIRE_AND_FORGET: ClientState(FIRE_AND_FORGET)}
        self.aliases: dict[Any, str] = {}
        self.host_info: dict[str, dict[str, Any]] = {}
        self.resources: dict[str, dict[str, float]] = {}
        self.running: dict[WorkerState, None] = {}
        self.loads = WorkerLoads(self.workers)
        self.admission = Admission(float(config.memory_admission or 0.0))
        self.worker_ends = WorkerEnds()
        self.whole_workers = WholeWorkers()
        self.scaling = Scaling()
        self.unrunnable: dict[TaskState, float] = {}
        self.shares = Shares(config)
        self.queued = FairQueue(self.shares)
        self.replicated_tasks: dict[TaskState, None] = {}
        self.drops_replicas = False
        self.task_groups: dict[Any, TaskGroup] = {}
        self.task_prefixes: dict[str, TaskPrefix] = {}
        self.idle_prefixes: dict[str, None] = {}
        self.dropped_prefixes = TaskPrefix("(other)")
        self.task_metadata: dict[Any, Any] = {}
        self.spans = SpanTree()
        self.computations: deque[Computation] = deque(maxlen=config.computations_max)
        self.erred_tasks: deque[ErredTask] = deque(maxlen=config.erred_tasks_max)
        self.transition_log: deque[tuple[Any, ...]] = deque(maxlen=config.low_level_log_length)
        self.transition_counter = self.idle_transition_counter = 0
        self.run_ids = itertools.count(1)
        self.generation = self.last_graph_at = self.now = 0.0
        self.bandwidth = config.bandwidth
        self.bandwidth_workers: dict[tuple[str, str], float] = {}
        self.bandwidth_types: dict[str, float] = {}
        self.cumulative_worker_metrics: dict[Any, float] = {}
        self.compute_occupancy = 0.0
        self.network_occ = self.total_nthreads = self.total_memory = 0
        self.domains = SharedMemoryDomains(self.workers)
        self.deferred = Deferred()
        self.stealing = StealingState(config.work_stealing_interval_seconds, self.workers)
        self.graphs: dict[int, PendingGraph] = {}
        self.dropped_graphs: dict[int, None] = {}
        self.timers: dict[int, Callable[[Any], None]] = {}
        self.timer_ids = itertools.count(1)
        self.task_policies = Policies()
        self.second_copies = SecondCopies()
        self.comparisons = Comparisons()
        self.no_workers_since: float | None = None
        self.idle_since: float | None = None
        self.n_tasks = self.worker_added_count = self.worker_removed_count = 0
        self.client_added_count = self.client_removed_count = 0

    @property
    def total_occupancy(self) -> float:
        """Seconds of work assigned to workers, transfers included."""
        return max(0.0, self.compute_occupancy) + self.network_occ / self.bandwidth

    @property
    def is_idle(self) -> bool:
        """Return whether no task is queued, unrunnable, processing or about to be rescheduled."""
        if (
            self.queued
            or self.unrunnable
            or self.deferred.recommendations
            or self.deferred.worker_removals
        ):
            return False
        return not any(ws.processing for ws in self.workers.values())

    @property
    def has_waiting_tasks(self) -> bool:
        """Return whether a task is in state waiting, for its dependencies or for its retry."""
        return any(count_in(group.counts, "waiting") for group in self.task_groups.values())

    def resolve_worker(self, name: Any) -> WorkerState | None:
        """Return the worker with the address or alias `name`, or None."""
        return self.workers.get(name) or self.workers.get(self.aliases.get(name, ""))
