"""The objects of the scheduler's state: tasks, groups, prefixes, workers and clients.

Attributes have the names that Dask documents; those that are not stored are properties. Paired ones
(such as ``who_has`` and ``has_what``) and ``TaskState.state`` are changed only in ``lifecycle/``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import KeysView
from dataclasses import dataclass, field
from typing import Any

from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload

from .admission import UNLIMITED_NBYTES, TaskMemory
from .containers import SmallSet, add_up
from .sharing.accounts import Account
from .task_policies import TaskPolicies
from .task_states import ACTIVE_STATES, STATE_NUMBERS, TASK_STATES, count_in


@dataclass(slots=True, eq=False, repr=False)
class TaskPrefix:
    """Tasks of the same function on different data, such as ``x-123`` and ``x-456``.

    Attributes:
        name: the prefix.
        duration_average: moving average of the compute time in seconds; -1 before the first task.
        duration_before: the average before a task executed for much longer; -1 if none did.
        outliers: number of latest tasks in a row that took much longer than the average.
        max_exec_time: longest time that an unfinished task was seen executing in seconds, or -1.
        group_table: groups with tasks, in order of arrival.
        entered: number of times that a task entered each state, in the order of TASK_STATES.
        suspicious: number of times that tasks were blamed for the loss of a worker.
        durations_over: action -> seconds of groups that were dropped.
        processing_count: number of tasks that are processing and have not seceded, on all workers.
        memory: what a task is expected to take in memory.
    """

    name: str
    duration_average: float = -1.0
    duration_before: float = -1.0
    outliers: int = 0
    max_exec_time: float = -1.0
    group_table: dict[TaskGroup, None] = field(default_factory=dict)
    entered: list[int] = field(default_factory=lambda: [0] * len(TASK_STATES))
    suspicious: int = 0
    durations_over: dict[str, float] = field(default_factory=dict)
    processing_count: int = 0
    memory: TaskMemory = field(default_factory=TaskMemory)

    def __repr__(self) -> str:
        counts = " ".join(f"{k}: {v}" for k, v in self.states.items() if v)
        return f"<{self.name}: {counts}>"

    def __len__(self) -> int:
        return sum(group.n_added for group in self.groups)

    def __bool__(self) -> bool:
        return True

    @property
    def groups(self) -> KeysView[TaskGroup]:
        """Groups with tasks, in order of arrival."""
        return self.group_table.keys()

    @property
    def states(self) -> dict[str, int]:
        """State -> number of tasks in it, over the current groups."""
        out = dict.fromkeys(TASK_STATES, 0)
        for group in self.groups:
            add_up(out, group.states)
        return out

    @property
    def state_counts(self) -> dict[str, int]:
        """State -> number of times that a task entered it."""
        return dict(zip(TASK_STATES, self.entered, strict=True))

    @property
    def all_durations(self) -> dict[str, float]:
        """Action -> seconds, over all groups ever."""
        out = dict(self.durations_over)
        for group in self.groups:
            add_up(out, group.all_durations)
        return out

    @property
    def nbytes_total(self) -> int:
        """Bytes ever reported for the results of the current groups, less corrections."""
        return sum(group.nbytes_total for group in self.groups)

    @property
    def types(self) -> KeysView[str]:
        """Type names of the results of the current groups."""
        return {name: None for group in self.groups for name in group.type_counts}.keys()

    @property
    def duration(self) -> float:
        """Total run time of the tasks of the current groups in seconds."""
        return sum(group.duration for group in self.groups)


@dataclass(slots=True, eq=False, repr=False)
class TaskGroup:
    """Tasks whose keys differ only in their index, such as ``('x-123', 0)`` and ``('x-123', 1)``.

    Attributes:
        name: the common part of the keys; of any type that a key has as its first element.
        prefix: the TaskPrefix of the group.
        counts: number of tasks in each state, in the order of TASK_STATES; forgotten ones, too.
        n_added: number of tasks ever added; ``len(group)``.
        dependency_table: groups that the tasks depend on, in order of arrival.
        nbytes_total: bytes ever reported for the results, less corrections.
        duration: total run time of the tasks in seconds.
        start, stop: earliest start and latest stop of the tasks in seconds since the epoch, or 0.
        all_durations: action -> seconds.
        type_counts: type name of a result -> number of tasks.
        last_worker, last_worker_tasks_left: where root-ish tasks go without queuing, and how many.
        span_id: id of the span that the group belongs to.
        own_memory: expected memory use of a task if it differs from that of the prefix, or None.
    """

    name: Any
    prefix: TaskPrefix
    counts: list[int] = field(default_factory=lambda: [0] * len(TASK_STATES))
    n_added: int = 0
    dependency_table: dict[TaskGroup, None] = field(default_factory=dict)
    nbytes_total: int = 0
    duration: float = 0.0
    start: float = 0.0
    stop: float = 0.0
    all_durations: dict[str, float] = field(default_factory=dict)
    type_counts: dict[str, int] = field(default_factory=dict)
    last_worker: WorkerState | None = None
    last_worker_tasks_left: int = 0
    span_id: str | None = None
    own_memory: TaskMemory | None = None

    def __len__(self) -> int:
        return self.n_added

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        counts = " ".join(f"{k}: {v}" for k, v in self.states.items() if v)
        return f"<{self.name or 'no-group'}: {counts}>"

    @property
    def dependencies(self) -> KeysView[TaskGroup]:
        return self.dependency_table.keys()

    @property
    def types(self) -> KeysView[str]:
        return self.type_counts.keys()

    @property
    def states(self) -> dict[str, int]:
        """State -> number of tasks in it; forgotten tasks stay counted."""
        return dict(zip(TASK_STATES, self.counts, strict=True))

    @property
    def done(self) -> bool:
        """Return whether no task of the group is waiting, queued or running."""
        return not count_in(self.counts, *ACTIVE_STATES)

    @property
    def empty(self) -> bool:
        """Return whether all tasks of the group are forgotten."""
        return self.counts[STATE_NUMBERS["forgotten"]] == self.n_added


@dataclass(slots=True)
class TaskDetails:
    """Attributes that few tasks have, stored apart to keep TaskState small.

    Attributes:
        exception, traceback, exception_text, traceback_text: the error, serialized and as text.
        exception_blame: the task whose failure made this one err; it may be the task itself.
        erred_on: addresses of the workers on which the task erred, in order.
        host_restrictions, worker_restrictions: the only hosts and addresses that may run the task.
        resource_restrictions: resource -> amount needed.
        loose_restrictions: whether others may run it if none of these hosts and addresses can.
        metadata: metadata that the worker reported with the finished task.
        worker_losses: number of workers lost unexpectedly while the task was processing there.
        policies: the policies of the task, and what they have done; None without policies.
        parent_run_id: the latest run of the task that has submitted tasks; -1 without one.
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
    worker_losses: int = 0
    policies: TaskPolicies | None = None
    parent_run_id: int = -1


@dataclass(slots=True, init=False, eq=False, repr=False)
class TaskState:
    """A task. It compares and hashes by identity; ``key`` is unique in ``SchedulerState.tasks``.

    Attributes:
        key: the key of the task.
        group, account: the TaskGroup, which never changes, and the Account that pays for the task.
        run_spec: the header frame of the pickled specification, or the whole payload if it has
            buffers; None for pure data and for keys whose graph has not arrived.
        state: one of TASK_STATES; assigned only in the transitions.
        priority: (-user priority, generation, position in dask's order); None without a graph.
        dependencies: tasks whose results the task takes; fixed by its graph, less forgotten ones.
        dependents: tasks that take the result.
        who_wants: clients with a future of the task.
        who_has: workers that hold the result. Not empty exactly in state memory, and between the
            loss of a worker and the release that follows.
        processing_on: the worker the task was sent to; set exactly in state processing.
        waiting_count: in state waiting, the number of dependencies without data.
        waiters_count: the number of dependents in an active state.
        nbytes: size of the result in bytes; -1 if unknown.
        run_id: number of the last ``compute-task`` message sent for the task.
        type: type name of the result.
        retries: number of times that the task may still err.
        suspicious: number of unexpected worker losses that the task was blamed for.
        actor: whether the task creates an actor.
        data_producer: whether it is marked as only producing data, which makes it root-ish.
        has_lost_dependencies: whether a dependency was forgotten; the task can never run again.
        queueable: whether the task may be held back on the scheduler.
        annotations: the annotations sent to the worker, plain or serialized; may be shared.
        details: attributes that few tasks have, or None.
    """

    key: Key
    group: TaskGroup
    account: Account
    run_spec: bytes | Payload | None
    state: str
    priority: tuple[float, ...] | None
    dependencies: tuple[TaskState, ...]
    dependents: SmallSet[TaskState]
    who_wants: SmallSet[ClientState]
    who_has: SmallSet[WorkerState]
    processing_on: WorkerState | None
    waiting_count: int
    waiters_count: int
    nbytes: int
    run_id: int
    type: str | None
    retries: int
    suspicious: int
    actor: bool
    data_producer: bool
    has_lost_dependencies: bool
    queueable: bool
    annotations: Any
    details: TaskDetails | None

    def __init__(  # written out, so that mypyc compiles it
        self,
        key: Key,
        group: TaskGroup,
        account: Account,
        run_spec: bytes | Payload | None = None,
        state: str = "released",
    ) -> None:
        self.key = key
        self.group = group
        self.account = account
        self.run_spec = run_spec
        self.state = state
        self.priority = None
        self.dependencies = ()
        self.dependents = ()
        self.who_wants = ()
        self.who_has = ()
        self.processing_on = None
        self.waiting_count = 0
        self.waiters_count = 0
        self.nbytes = -1
        self.run_id = 0
        self.type = None
        self.retries = 0
        self.suspicious = 0
        self.actor = False
        self.data_producer = False
        self.has_lost_dependencies = False
        self.queueable = True
        self.annotations = None
        self.details = None

    def __repr__(self) -> str:
        return f"<TaskState {self.key!r} {self.state}>"

    @property
    def prefix(self) -> TaskPrefix:
        return self.group.prefix

    @property
    def group_key(self) -> Any:
        return self.group.name

    @property
    def waiting_on(self) -> set[TaskState]:
        """In state waiting, the dependencies without data."""
        return {d for d in self.dependencies if self.state == "waiting" and not d.who_has}

    @property
    def waiters(self) -> set[TaskState]:
        """Dependents in an active state."""
        return {d for d in self.dependents if d.state in ACTIVE_STATES}

    def run_spec_payload(self) -> Payload | None:
        """Return `run_spec` as a payload of kind "pickled"."""
        spec = self.run_spec
        return Payload("pickled", spec, ()) if isinstance(spec, bytes) else spec

    def ensure_details(self) -> TaskDetails:
        """Return the details of the task; create them if there are none."""
        if self.details is None:
            self.details = TaskDetails()
        return self.details

    @property
    def exception(self) -> Payload | None:
        return self.details.exception if self.details is not None else None

    @property
    def traceback(self) -> Payload | None:
        return self.details.traceback if self.details is not None else None

    @property
    def exception_text(self) -> str | None:
        return self.details.exception_text if self.details is not None else None

    @property
    def traceback_text(self) -> str | None:
        return self.details.traceback_text if self.details is not None else None

    @property
    def exception_blame(self) -> TaskState | None:
        return self.details.exception_blame if self.details is not None else None

    @property
    def erred_on(self) -> dict[str, None] | None:
        return self.details.erred_on if self.details is not None else None

    @property
    def host_restrictions(self) -> dict[str, None] | None:
        return self.details.host_restrictions if self.details is not None else None

    @property
    def worker_restrictions(self) -> dict[str, None] | None:
        return self.details.worker_restrictions if self.details is not None else None

    @property
    def resource_restrictions(self) -> dict[str, float] | None:
        return self.details.resource_restrictions if self.details is not None else None

    @property
    def metadata(self) -> dict[str, Any] | None:
        return self.details.metadata if self.details is not None else None

    @property
    def policies(self) -> TaskPolicies | None:
        return self.details.policies if self.details is not None else None

    @property
    def loose_restrictions(self) -> bool:
        return self.details.loose_restrictions if self.details is not None else False


@dataclass(slots=True, eq=False, repr=False)
class ClientState:
    """A client, or an extension that holds keys like one (queues, variables, published datasets).

    Attributes:
        client_key, versions: the name of the client; package versions as it sent them.
        wants_what: tasks that the client has futures of.
        last_seen: time of the last message in seconds since the epoch.
        heartbeats, heartbeat_overdue: number received; whether they stopped and this was logged.
        closed_cleanly: whether it announced that it closes, so that its desires are not retained.
        grace_deadline: for a client that disconnected without closing, the time in seconds since
            the epoch until which its desires are kept; 0.0 for others.
    """

    client_key: str
    versions: Any = None
    wants_what: dict[TaskState, None] = field(default_factory=dict)
    last_seen: float = 0.0
    heartbeats: int = 0
    heartbeat_overdue: bool = False
    closed_cleanly: bool = False
    grace_deadline: float = 0.0

    def __repr__(self) -> str:
        return f"<Client {self.client_key!r}>"


@dataclass(slots=True, eq=False, repr=False)
class WorkerState:
    """A worker.

    Attributes:
        address, address_tuple: the contact address, which is unique; ``(address,)``, for messages.
        name, host: unique alias of the address (str or int); the host part of the address.
        nthreads, memory_limit: number of threads that run tasks; bytes, 0 if unlimited.
        status: running, paused, closing, closing_gracefully, init or closed.
        status_before: status to which it returns if its retirement is given up; "" without one.
        server_id, pid, local_directory, services, nanny, versions, extra: as sent at registration.
        index: number of workers that registered before.
        processing: tasks sent to the worker and not finished, in order -> expected seconds.
        long_running: the tasks in `processing` that seceded from the thread pool.
        executing, executing_at: task -> seconds, as of the last heartbeat; time of that, 0 if none.
        released_runs: key of a released task that it had and may still execute -> account.
        extra_runs: key of a run that occupies a thread besides those of `processing` -> account.
        stuck_runs: key in `extra_runs` of a run that timed out -> time of the next restart for it.
        has_what, actors: tasks whose results the worker holds, in order; those that are actors.
        nbytes, heartbeat_nbytes: bytes of those results now, and at the last heartbeat.
        spilled_nbytes: bytes of them that it is expected to have spilled.
        reported_nbytes: bytes that it reported to hold when it last measured its memory.
        needs_what: dependency that the worker lacks -> number of processing tasks that need it.
        network_occ: size of those dependencies in bytes.
        task_prefix_count: prefix with a known duration -> processing tasks that have not seceded.
        unknown_duration_count, unknown_duration_total: the same for the other prefixes; its sum.
        resources, used_resources: resource -> amount supplied, and amount in use.
        metrics, last_seen, time_delay: of the last heartbeat, its time, lag of the clock; seconds.
        memory_unmanaged_old, memory_unmanaged_history: see stock's MemoryState; bytes.
        idle_nbytes: memory that its process used besides results when it was idle; -1 if unknown.
        watched_nbytes: bytes of present and expected results from which ``Admission`` is short.
        backpressured: whether its connection accepts no more messages, so no tasks are sent to it.
        task_slots: number of tasks that have not seceded at which it is full; may be infinite.
        ends_at: time at which the worker ends in seconds since the epoch; 0 if it reports none.
        reserved_for: the only task that may be sent to it (``WholeWorkers``), or None.
    """

    address: str
    name: Any
    host: str
    nthreads: int
    memory_limit: int = 0
    status: str = "running"
    status_before: str = ""
    server_id: str = ""
    pid: int = 0
    local_directory: str = ""
    services: dict[str, int | str | None] = field(default_factory=dict)
    nanny: str | None = None
    versions: Any = None
    extra: dict[str, Any] = field(default_factory=dict)
    index: int = 0
    address_tuple: tuple[str, ...] = ()
    processing: dict[TaskState, float] = field(default_factory=dict)
    long_running: dict[TaskState, None] = field(default_factory=dict)
    executing: dict[TaskState, float] = field(default_factory=dict)
    executing_at: float = 0.0
    released_runs: dict[Key, Account] = field(default_factory=dict)
    extra_runs: dict[Key, Account] = field(default_factory=dict)
    stuck_runs: dict[Key, float] = field(default_factory=dict)
    has_what: dict[TaskState, None] = field(default_factory=dict)
    nbytes: int = 0
    needs_what: dict[TaskState, int] = field(default_factory=dict)
    network_occ: int = 0
    task_prefix_count: dict[TaskPrefix, int] = field(default_factory=dict)
    unknown_duration_count: dict[TaskPrefix, int] = field(default_factory=dict)
    unknown_duration_total: int = 0
    actors: dict[TaskState, None] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)
    used_resources: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    last_seen: float = 0.0
    time_delay: float = 0.0
    memory_unmanaged_old: int = 0
    memory_unmanaged_history: deque[tuple[float, int]] = field(default_factory=deque)
    idle_nbytes: int = -1
    reported_nbytes: int = 0
    heartbeat_nbytes: int = 0
    spilled_nbytes: int = 0
    watched_nbytes: int = UNLIMITED_NBYTES
    backpressured: bool = False
    task_slots: float = 1
    ends_at: float = 0.0
    reserved_for: TaskState | None = None

    def __post_init__(self) -> None:
        self.address_tuple = (self.address,)

    def __repr__(self) -> str:
        name = f", name: {self.name}" if self.name != self.address else ""
        return (
            f"<WorkerState {self.address!r}{name}, status: {self.status}, "
            f"memory: {len(self.has_what)}, processing: {len(self.processing)}>"
        )
