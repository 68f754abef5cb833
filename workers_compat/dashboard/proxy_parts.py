"""Parts of ``SchedulerProxy``: workers, tasks, the task stream and the monitor.

``read`` of each part is called when a page reads it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from distributed.counter import Counter
from distributed.diagnostics.progress import GroupTiming
from distributed.diagnostics.task_stream import TaskStreamPlugin
from paceline.workers_compat.facade.views import memory_state

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


def _noted(name: str) -> property:
    """Return an attribute that calls ``read`` when it is read. Its value is attribute `name`."""

    def get(part: Any) -> Any:
        part.read()
        return getattr(part, name)

    return property(get, lambda part, value: setattr(part, name, value))


class WorkerProxy(SimpleNamespace):
    """A worker, with the attributes of stock's ``WorkerState``."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]

    #: distributed's ``MemoryState``.
    memory = property(lambda self: memory_state(self.metrics, self.nbytes, self.unmanaged_old))


@dataclass(eq=False, slots=True)
class TaskProxy:
    """A task, with the attributes that the graph page reads."""

    key: Any
    prefix: SimpleNamespace
    state: str
    priority: Any
    dependencies: set[TaskProxy] = field(default_factory=set)
    dependents: set[TaskProxy] = field(default_factory=set)


class TasksProxy(dict[Any, TaskProxy]):
    """Key -> task, filled only while there are few tasks; the length ``n`` is that of all tasks."""

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
    """Stock's task stream."""

    index = _noted("_index")

    def __init__(self, scheduler: Any, read: Callable[[], None]) -> None:
        self.read = read
        super().__init__(scheduler)


class GroupTimingProxy(GroupTiming):
    """Seconds of compute time by prefix and second, derived from growing sums.

    Stock's plugin has a series per group. Long-running programs have thousands of groups, and a
    browser becomes unresponsive with a few hundred.
    """

    nthreads = _noted("_nthreads")

    def __init__(self, scheduler: Any, read: Callable[[], None]) -> None:
        self.read = read
        self._compute_seconds: dict[str, float] = {}
        super().__init__(scheduler)

    def update_sums(self, sums: dict[str, float]) -> None:
        """Add what was computed since the last call. `sums` are prefix -> seconds so far."""
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
        """Count the requests since the last call, given op -> number of requests so far."""
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
        self._read()

    def recent(self) -> dict[str, Any]:
        self._read()
        return {name: values[-1] for name, values in self.quantities.items() if values}

    def range_query(self, start: int) -> dict[str, list[Any]]:
        """Return the values from number ``start`` on."""
        self._read()
        fresh = max(0, self.count - start)
        return {name: list(v)[max(0, len(v) - fresh) :] for name, v in self.quantities.items()}

    def apply(self, update: dict[str, Any]) -> None:
        vars(self).update(update["facts"])
        for name, values in update["values"].items():
            self.quantities.setdefault(name, deque(maxlen=MONITOR_MAX)).extend(values)
        self.count = update["count"]


class SpansProxy:
    """The extension "spans": sums by tags."""

    spans_search_by_tag = _noted("tags")

    def __init__(self, read: Callable[[], None]) -> None:
        self.read = read
        self.tags: list[str] = []
        self.metrics: dict[tuple[str, ...], dict[Any, float]] = {}
        self.selected_at: dict[tuple[str, ...], float] = {}

    @property
    def spans(self) -> bool:
        self.read()
        return bool(self.metrics)

    def merge_all(self) -> Any:
        return SimpleNamespace(cumulative_worker_metrics=self.metrics.get((), {}))

    def merge_by_tags(self, *tags: str) -> Any:
        """Return the sum of these spans; until the next update, of all, as plots need data."""
        self.selected_at[tags] = time.monotonic()
        found = self.metrics.get(tags, self.metrics.get((), {}))
        return SimpleNamespace(cumulative_worker_metrics=found)


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
    """The data of all workers, as one task per prefix, for the plot of memory by key."""

    def __init__(self, read: Callable[[], None]) -> None:
        self._read = read
        self.nbytes: dict[str, int] = {}

    def __iter__(self) -> Iterator[Any]:
        self._read()
        return iter([SimpleNamespace(key=name, nbytes=n) for name, n in self.nbytes.items()])
