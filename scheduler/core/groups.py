"""Groups of tasks, by their keys: groups, prefixes, and what was computed together.

What can be summed up from groups is summed up when somebody looks.

Must not know: what a task's state means; how a decision is taken.
"""

from __future__ import annotations

from collections.abc import KeysView
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .spans import Totals, add_up, note_code

if TYPE_CHECKING:
    from .state import WorkerState

#: Every state a task can be in, as Dask names them.
TASK_STATES = (
    "released",
    "waiting",
    "no-worker",
    "queued",
    "processing",
    "memory",
    "erred",
    "forgotten",
)


@dataclass(slots=True, eq=False, repr=False)
class TaskGroup:
    """Tasks whose keys differ in their index only, as ``('x-123', 0)`` and ``('x-123', 1)``.

    Attributes:
        name: what their keys share.
        prefix: its TaskPrefix.
        states: state -> how many of its tasks are in it; forgotten ones stay counted.
        n_added: tasks ever added; ``len(group)``.
        dependency_table: groups its tasks depend on, in order of arrival.
        nbytes_total: bytes ever reported for its data, less corrections.
        duration: seconds its tasks took in all.
        start, stop: earliest start and latest stop of its tasks (seconds since the epoch; 0 before).
        all_durations: action -> seconds.
        type_counts: name of a result's type -> how many tasks have it.
        last_worker, last_worker_tasks_left: where its next root-ish tasks go when queuing is off.
        span_id: the span it belongs to.
    """

    name: str
    prefix: TaskPrefix
    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TASK_STATES, 0))
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

    def __len__(self) -> int:
        return self.n_added

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        counts = " ".join(f"{k}: {v}" for k, v in self.states.items() if v)
        return f"<{self.name or 'no-group'}: {counts}>"

    @property
    def dependencies(self) -> KeysView[TaskGroup]:
        """Groups its tasks depend on: a set to those who look, in order of arrival."""
        return self.dependency_table.keys()

    @property
    def types(self) -> KeysView[str]:
        """Names of its results' types."""
        return self.type_counts.keys()

    @property
    def done(self) -> bool:
        """Whether none of its tasks waits or runs."""
        states = self.states
        return not (
            states["waiting"] or states["processing"] or states["queued"] or states["no-worker"]
        )

    @property
    def empty(self) -> bool:
        """Whether all of its tasks are forgotten."""
        return self.states["forgotten"] == self.n_added


@dataclass(slots=True, eq=False, repr=False)
class TaskPrefix:
    """Tasks that do the same to different data, as ``x-123`` and ``x-456``.

    Attributes:
        name: the prefix.
        duration_average: moving average of how long its tasks compute, seconds; -1 before the first.
        duration_before: the average as it was when a task was seen to execute for much longer; -1 where none was.
        outliers: tasks that took much longer than the average, one after the other, up to now.
        max_exec_time: longest time a task was seen executing unfinished, seconds; -1 before.
        group_table: its groups that have tasks, in order of arrival.
        state_counts: state -> how often a task entered it.
        suspicious: how often its tasks were blamed for a worker's death.
        durations_over: action -> seconds, of groups that it has no more.
        processing_count: its tasks that are processing and have not seceded, on all workers.
    """

    name: str
    duration_average: float = -1.0
    duration_before: float = -1.0
    outliers: int = 0
    max_exec_time: float = -1.0
    group_table: dict[TaskGroup, None] = field(default_factory=dict)
    state_counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TASK_STATES, 0))
    suspicious: int = 0
    durations_over: dict[str, float] = field(default_factory=dict)
    processing_count: int = 0

    def __repr__(self) -> str:
        counts = " ".join(f"{k}: {v}" for k, v in self.states.items() if v)
        return f"<{self.name}: {counts}>"

    def __len__(self) -> int:
        return sum(group.n_added for group in self.groups)

    def __bool__(self) -> bool:
        return True

    @property
    def groups(self) -> KeysView[TaskGroup]:
        """Its groups that have tasks: a set to those who look, in order of arrival."""
        return self.group_table.keys()

    @property
    def states(self) -> dict[str, int]:
        """State -> how many tasks of its present groups are in it."""
        out = dict.fromkeys(TASK_STATES, 0)
        for group in self.groups:
            add_up(out, group.states)
        return out

    @property
    def all_durations(self) -> dict[str, float]:
        """Action -> seconds, of all its groups ever."""
        out = dict(self.durations_over)
        for group in self.groups:
            add_up(out, group.all_durations)
        return out

    @property
    def nbytes_total(self) -> int:
        """Bytes ever reported for data of its present groups, less corrections."""
        return sum(group.nbytes_total for group in self.groups)

    @property
    def types(self) -> KeysView[str]:
        """Names of the types of its present groups' results."""
        return {name: None for group in self.groups for name in group.type_counts}.keys()

    @property
    def duration(self) -> float:
        """Seconds its tasks took in all."""
        return sum(group.duration for group in self.groups)


@dataclass(slots=True, eq=False)
class Computation:
    """Graphs that came while the cluster was busy with one another.

    Attributes:
        start: seconds since the epoch.
        groups: task groups it brought.
        codes: source lines of clients, as sent, each once.
        id: its number as a string.
        annotations: global annotations of its graphs.
        over: sums of groups that were let go.
    """

    start: float
    id: str
    groups: dict[TaskGroup, None] = field(default_factory=dict)
    codes: dict[bytes, Any] = field(default_factory=dict)
    annotations: dict[str, Any] = field(default_factory=dict)
    over: Totals | None = None

    @property
    def stop(self) -> float:
        """When a task of it finished last, seconds since the epoch; -1 without tasks."""
        over = -1.0 if self.over is None else self.over.stop
        return max([over, *(group.stop for group in self.groups)])

    def let_go(self, group: TaskGroup) -> bool:
        """Keep the sums of a group of it, and no more. False: it is none of its."""
        if group not in self.groups:
            return False
        del self.groups[group]
        self.over = self.over or Totals()
        self.over.add_group(group)
        return True

    def add_code(self, code: Any) -> None:
        """Keep source lines, where they are new."""
        note_code(self.codes, code)

    @property
    def states(self) -> dict[str, int]:
        """State -> how many of its tasks."""
        out = dict.fromkeys(TASK_STATES, 0)
        if self.over is not None:
            out.update(self.over.states)
        for group in self.groups:
            add_up(out, group.states)
        return out
