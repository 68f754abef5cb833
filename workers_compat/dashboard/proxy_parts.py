"""Parts of ``SchedulerProxy``: workers, tasks, the task stream and the monitor.

Importing this module imports distributed's diagnostics.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from distributed.counter import Counter
from distributed.diagnostics.progress import GroupTiming
from distributed.diagnostics.task_stream import TaskStreamPlugin
from distributed.scheduler import MemoryState

#: Events kept per topic.
EVENTS_MAX = 10_000
#: Measurements of the scheduler's process that are kept.
MONITOR_MAX = 7_200
#: Periods of the event loop's profile that are kept.
PERIODS_MAX = 1_000
#: Seconds of progress that are kept; a page shows the last 180.
TIMING_MAX = 1_000
#: Interval at which request counts move on to longer intervals, seconds, as in stock.
SHIFT_SECONDS = 5.0


class WorkerProxy(SimpleNamespace):
    """A worker, with the attributes of stock's ``WorkerState``."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.address)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkerProxy) and self.address == other.address

    @property
    def memory(self) -> MemoryState:
        """Memory of the worker, as stock's property of this name."""
        spilled = self.metrics.get("spilled_bytes") or {}
        return MemoryState(
            process=self.metrics.get("memory", 0),
            managed=max(0, self.nbytes - spilled.get("memory", 0)),
            spilled=spilled.get("disk", 0),
            unmanaged_old=self.unmanaged_old,
        )


class TaskProxy:
    """A task, with the attributes that the graph page reads."""

    __slots__ = ("dependencies", "dependents", "key", "prefix", "priority", "state")

    def __init__(self, key: Any, prefix: str, state: str, priority: Any) -> None:
        self.key = key
        self.prefix = SimpleNamespace(name=prefix)
        self.state = state
        self.priority = priority
        self.dependencies: set[TaskProxy] = set()
        self.dependents: set[TaskProxy] = set()


class TasksProxy(dict[Any, TaskProxy]):
    """Key -> task, filled only while there are few tasks; the length is that of all tasks.

    Attributes:
        n: number of tasks in the scheduler.
        read: called on each read.
    """

    def __init__(self, read: Callable[[], None]) -> None:
        super().__init__()
        self.n = 0
        self.read = read

    def __len__(self) -> int:
        self.read()
        return self.n

    def __bool__(self) -> bool:
        return self.n > 0


class TaskStreamProxy(TaskStreamPlugin):
    """Stock's task stream, which calls ``read`` when a page reads its index."""

    read: Callable[[], None] | None = None

    @property
    def index(self) -> int:
        """Number of tasks added so far."""
        if self.read is not None:
            self.read()
        return self._index

    @index.setter
    def index(self, value: int) -> None:
        self._index = value


class GroupTimingProxy(GroupTiming):
    """Seconds of compute time by prefix and second, derived from growing sums.

    Stock's plugin has a series per group. Long-running programs have thousands of groups, and a
    browser becomes unresponsive with a few hundred.
    """

    read: Callable[[], None] | None = None

    def __init__(self, scheduler: Any) -> None:
        self._compute_seconds: dict[str, float] = {}
        super().__init__(scheduler)

    @property
    def nthreads(self) -> list[float]:
        """Threads of the cluster by second."""
        if self.read is not None:
            self.read()
        return self._nthreads

    @nthreads.setter
    def nthreads(self, value: list[float]) -> None:
        self._nthreads = value

    def update_sums(self, sums: dict[str, float]) -> None:
        """Add what was computed since the last call to the current second.

        Args:
            sums: prefix -> compute time of its tasks so far, seconds.
        """
        now = time.time()
        self.time[-1] = now
        while self.time[-1] - self.time[-2] > self.dt:
            self.time[-1] = self.time[-2] + self.dt
            self.time.append(now)
            self._nthreads.append(self.scheduler.total_nthreads)
            for series in self.compute.values():
                series.append(0.0)
        if len(self.time) > 2 * TIMING_MAX:
            for series in (self.time, self._nthreads, *self.compute.values()):
                del series[:-TIMING_MAX]
        for name, seconds in sums.items():
            more = seconds - self._compute_seconds.get(name, 0.0)
            self._compute_seconds[name] = seconds
            if more > 0:
                series = self.compute.setdefault(name, [0.0] * len(self.time))
                series[-1] += more


class ProfileProxy(deque[Any]):
    """(time, profile) of each period of the scheduler's event loop. Calls ``read`` on each read."""

    def __init__(self, read: Callable[[], None]) -> None:
        super().__init__(maxlen=PERIODS_MAX)
        self._read = read

    def __iter__(self) -> Iterator[Any]:
        self._read()
        return super().__iter__()

    def __len__(self) -> int:
        self._read()
        return super().__len__()


class RequestsProxy(Counter):
    """Requests by op and interval, as stock's counter of a server, derived from growing sums."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[str, int] = {}
        self._shifted_at = time.monotonic()

    def update_sums(self, sums: dict[str, int]) -> None:
        """Count the requests since the last call.

        Args:
            sums: op -> number of requests so far.
        """
        for op, n in sums.items():
            self.components[0][op] += n - self.sums.get(op, 0)
        self.sums = sums
        if time.monotonic() - self._shifted_at > SHIFT_SECONDS:
            self._shifted_at = time.monotonic()
            self.shift()


class MonitorProxy:
    """distributed's ``SystemMonitor`` of the scheduler's process."""

    def __init__(self, read: Callable[[], None]) -> None:
        self._read = read
        self.count = 0
        self.quantities: dict[str, deque[Any]] = {}
        self.monitor_gil_contention = False
        self.last_time = 0.0

    def update(self) -> None:
        """Note that a page is about to read values."""
        self._read()

    def recent(self) -> dict[str, Any]:
        """Return the last values."""
        self._read()
        return {name: values[-1] for name, values in self.quantities.items() if values}

    def range_query(self, start: int) -> dict[str, list[Any]]:
        """Return the values from number ``start`` on."""
        self._read()
        out = {}
        for name, values in self.quantities.items():
            n = max(0, min(self.count - start, len(values)))
            out[name] = list(values)[len(values) - n :]
        return out

    def apply(self, update: dict[str, Any]) -> None:
        """Add new measurements."""
        vars(self).update(update["facts"])
        for name, values in update["values"].items():
            self.quantities.setdefault(name, deque(maxlen=MONITOR_MAX)).extend(values)
        self.count = update["count"]


class SpansProxy:
    """The extension "spans": sums by tags."""

    def __init__(self, read: Callable[[], None]) -> None:
        self._read = read
        self.tags: list[str] = []
        self.metrics: dict[tuple[str, ...], dict[Any, float]] = {}
        self.selected_at: dict[tuple[str, ...], float] = {}

    @property
    def spans(self) -> bool:
        """Whether there are any spans."""
        self._read()
        return bool(self.metrics)

    @property
    def spans_search_by_tag(self) -> list[str]:
        """All tags."""
        self._read()
        return self.tags

    def merge_all(self) -> Any:
        """Return all spans merged into one."""
        return SimpleNamespace(cumulative_worker_metrics=self.metrics.get((), {}))

    def merge_by_tags(self, *tags: str) -> Any:
        """Return the spans with these tags merged into one.

        Until the next update this is all spans: a plot without data is not drawn again.
        """
        self.selected_at[tags] = time.monotonic()
        return SimpleNamespace(
            cumulative_worker_metrics=self.metrics.get(tags, self.metrics.get((), {}))
        )


class TopicsProxy(dict[str, Any]):
    """Logged events by topic. Calls ``read`` with the name of each topic that is read."""

    def __init__(self, read: Callable[[str], None]) -> None:
        super().__init__()
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read(name)
        if name not in self:
            self[name] = SimpleNamespace(events=deque(maxlen=EVENTS_MAX), count=0)
        return super().__getitem__(name)


class StoredByPrefix:
    """The data of all workers, for the plot of memory by key."""

    def __init__(self, stored: Callable[[], Iterator[Any]]) -> None:
        self._stored = stored

    def __iter__(self) -> Iterator[Any]:
        return self._stored()
