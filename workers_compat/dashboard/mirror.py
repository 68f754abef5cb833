"""The scheduler as distributed's dashboard reads it, in the dashboard's own process: kept up to date by news.

What pages read is noted, so that only that is asked for. Importing this imports bokeh.

Must not know: how news travel (``__main__.py``); how they are gathered (``snapshots.py``).
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from distributed.core import Status
from distributed.counter import Counter
from distributed.diagnostics.progress import GroupTiming
from distributed.diagnostics.task_stream import TaskStreamPlugin
from distributed.scheduler import MemoryState

logger = logging.getLogger("distributed.scheduler")

#: A topic that no page has read for so long is not asked for, seconds. The slowest page reads every 5 s.
WANTED_SECONDS = 11.0
#: Events that are kept of a topic.
EVENTS_MAX = 10_000
#: Measurements of the scheduler's process that are kept.
MONITOR_MAX = 7_200
#: Periods of the event loop's profile that are kept.
PERIODS_MAX = 1_000
#: Seconds of progress that are kept; a page shows the last 180.
TIMING_MAX = 1_000
#: What was counted passes on to longer intervals so often, seconds, as in stock.
SHIFT_SECONDS = 5.0
#: Tasks in a graph, unless dask's configuration says otherwise.
GRAPH_MAX = 5_000


class MirrorWorker(SimpleNamespace):
    """A worker; attributes as of stock's ``WorkerState``."""

    def __hash__(self) -> int:
        return hash(self.address)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MirrorWorker) and self.address == other.address

    @property
    def memory(self) -> MemoryState:
        """As stock's."""
        spilled = self.metrics.get("spilled_bytes") or {}
        return MemoryState(
            process=self.metrics.get("memory", 0),
            managed=max(0, self.nbytes - spilled.get("memory", 0)),
            spilled=spilled.get("disk", 0),
            unmanaged_old=self.unmanaged_old,
        )


class MirrorTask:
    """A task, as the graph draws it."""

    __slots__ = ("dependencies", "dependents", "key", "prefix", "priority", "state")

    def __init__(self, key: Any, prefix: str, state: str, priority: Any) -> None:
        self.key = key
        self.prefix = SimpleNamespace(name=prefix)
        self.state = state
        self.priority = priority
        self.dependencies: set[MirrorTask] = set()
        self.dependents: set[MirrorTask] = set()


class MirrorTasks(dict[Any, MirrorTask]):
    """Key -> task, where they are few; its length is that of all.

    Attributes:
        n: tasks that the scheduler has.
        read: called when somebody reads.
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


class MirrorTaskStream(TaskStreamPlugin):
    """The task stream; whoever looks at its index reads it."""

    read: Callable[[], None] | None = None

    @property
    def index(self) -> int:
        """Tasks ever seen."""
        if self.read is not None:
            self.read()
        return self._index

    @index.setter
    def index(self, value: int) -> None:
        self._index = value


class MirrorGroupTiming(GroupTiming):
    """Seconds of computing by prefix and second, from sums that grow.

    Stock's knows groups; a browser that draws each of some hundred groups stands still, and programs that run for long
    have thousands.
    """

    read: Callable[[], None] | None = None

    def __init__(self, scheduler: Any) -> None:
        self._spent: dict[str, float] = {}
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

    def grew(self, spent: dict[str, float]) -> None:
        """Prefix -> seconds that its tasks computed in all."""
        now = time.time()
        self.time[-1] = now
        while self.time[-1] - self.time[-2] > self.dt:
            self.time[-1] = self.time[-2] + self.dt
            self.time.append(now)
            self._nthreads.append(self.scheduler._base["total_nthreads"])
            for series in self.compute.values():
                series.append(0.0)
        if len(self.time) > 2 * TIMING_MAX:
            for kept in (self.time, self._nthreads, *self.compute.values()):
                del kept[:-TIMING_MAX]
        for name, seconds in spent.items():
            more = seconds - self._spent.get(name, 0.0)
            self._spent[name] = seconds
            if more > 0:
                series = self.compute.setdefault(name, [0.0] * len(self.time))
                series[-1] += more


class MirrorProfile(deque[Any]):
    """The profile of the scheduler's event loop: (time, tree) of each period. Whoever walks over it reads it."""

    def __init__(self, read: Callable[[], None]) -> None:
        super().__init__(maxlen=PERIODS_MAX)
        self._read = read

    def __iter__(self) -> Iterator[Any]:
        self._read()
        return super().__iter__()

    def __len__(self) -> int:
        self._read()
        return super().__len__()


class MirrorRequests(Counter):
    """Requests by op, of late and for longer, as stock's counter of a server; from sums that grow."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, int] = {}
        self._shifted = time.monotonic()

    def grew(self, asked: dict[str, int]) -> None:
        """Op -> how often it was asked for, ever."""
        for op, n in asked.items():
            self.components[0][op] += n - self.asked.get(op, 0)
        self.asked = asked
        if time.monotonic() - self._shifted > SHIFT_SECONDS:
            self._shifted = time.monotonic()
            self.shift()


class MirrorMonitor:
    """distributed's ``SystemMonitor``, measured elsewhere."""

    def __init__(self, read: Callable[[], None]) -> None:
        self._read = read
        self.count = 0
        self.quantities: dict[str, deque[Any]] = {}
        self.monitor_gil_contention = False
        self.last_time = 0.0

    def update(self) -> None:
        """Somebody is about to look."""
        self._read()

    def recent(self) -> dict[str, Any]:
        """The last values."""
        self._read()
        return {name: values[-1] for name, values in self.quantities.items() if values}

    def range_query(self, start: int) -> dict[str, list[Any]]:
        """Values since the ``start``-th."""
        self._read()
        out = {}
        for name, values in self.quantities.items():
            n = max(0, min(self.count - start, len(values)))
            out[name] = list(values)[len(values) - n :]
        return out

    def apply(self, news: dict[str, Any]) -> None:
        """More was measured."""
        vars(self).update(news["facts"])
        for name, values in news["values"].items():
            self.quantities.setdefault(name, deque(maxlen=MONITOR_MAX)).extend(values)
        self.count = news["count"]


class MirrorSpans:
    """The extension "spans": sums by tags."""

    def __init__(self, scheduler: MirrorScheduler) -> None:
        self._scheduler = scheduler
        self.tags: list[str] = []
        self.metrics: dict[tuple[str, ...], dict[Any, float]] = {}
        self.chosen: dict[tuple[str, ...], float] = {}

    @property
    def spans(self) -> bool:
        """Whether there are any."""
        self._scheduler.read("spans")
        return bool(self.metrics)

    @property
    def spans_search_by_tag(self) -> list[str]:
        """Tags."""
        self._scheduler.read("spans")
        return self.tags

    def merge_all(self) -> Any:
        """All spans as one."""
        return SimpleNamespace(cumulative_worker_metrics=self.metrics.get((), {}))

    def merge_by_tags(self, *tags: str) -> Any:
        """Spans with these tags as one; all of them until the next news: a plot of nothing does not come back."""
        self.chosen[tags] = time.monotonic()
        return SimpleNamespace(cumulative_worker_metrics=self.metrics.get(tags, self.metrics.get((), {})))


class Topics(dict[str, Any]):
    """Logged events by topic; what is looked at is asked for."""

    def __init__(self, read: Callable[[str], None]) -> None:
        super().__init__()
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read(name)
        if name not in self:
            self[name] = SimpleNamespace(events=deque(maxlen=EVENTS_MAX), count=0)
        return super().__getitem__(name)


class MirrorScheduler:
    """The scheduler for distributed's components.

    Args:
        ask: carries a question to the scheduler: (what, options) -> a future.
        loop: tornado's loop of this process.
        facts: address, id, ...
    """

    def __init__(
        self, ask: Callable[[str, dict[str, Any]], Any], loop: Any, jupyter: bool, facts: dict[str, Any]
    ) -> None:
        self._ask = ask
        self._read_at: dict[str, float] = {}
        self._base: dict[str, Any] = {"total_nthreads": 0, "transition_counter": 0, "bandwidth": 1}
        self._workers: dict[str, MirrorWorker] = {}
        self._idle: set[MirrorWorker] = set()
        self._saturated: set[MirrorWorker] = set()
        self._prefixes: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        self._links: dict[str, list[str]] = {}
        self._bandwidths: tuple[dict[Any, float], dict[str, float]] = ({}, {})
        self._metrics: defaultdict[Any, float] = defaultdict(float)
        self._errors: deque[Any] = deque()
        self._shuffles: dict[Any, Any] = {}
        self._stored: dict[str, int] = {}
        self._event_topics: dict[str, float] = {}
        self._layouts: dict[str, Any] = {}
        self.jupyter = jupyter
        self.address = facts.get("address", "")
        self.id = facts.get("id", "")
        self.loop = self.io_loop = loop
        self._profile = loop.profile = MirrorProfile(lambda: self.read("profile"))
        self._requests = MirrorRequests()
        self.digests = None
        self.tasks = MirrorTasks(lambda: self.read("tasks"))
        self.monitor = MirrorMonitor(lambda: self.read("monitor"))
        self.proc = SimpleNamespace(cpu_percent=lambda: self._base.get("cpu", 0.0))
        stream, timing = MirrorTaskStream(self), MirrorGroupTiming(self)
        stream.read = lambda: self.read("stream")
        timing.read = lambda: self.read("prefixes")
        self.plugins: dict[str, Any] = {stream.name: stream, timing.name: timing}
        self._stream, self._timing = stream, timing
        self._broker = SimpleNamespace(_topics=Topics(self._read_topic))
        self.spans = MirrorSpans(self)
        from distributed.stealing import WorkStealing

        costs = getattr(WorkStealing, "cost_multipliers", None) or [1.0] * 15
        self._extensions = {"stealing": SimpleNamespace(cost_multipliers=costs), "spans": self.spans}

    # what is read

    def read(self, topic: str) -> None:
        """A page reads this topic: it is asked for, for a while."""
        self._read_at[topic] = time.monotonic()

    def _read_topic(self, name: str) -> None:
        self.read("events")
        self._event_topics[name] = time.monotonic()

    def wanted(self) -> dict[str, Any]:
        """Topic -> what of it, of those that pages have read of late."""
        since = time.monotonic() - WANTED_SECONDS
        found: dict[str, Any] = {
            topic: None for topic, when in self._read_at.items() if when > since
        }
        if "tasks" in found:
            import dask

            found["tasks"] = dask.config.get("distributed.dashboard.graph-max-items", GRAPH_MAX)
        if "events" in found:
            found["events"] = [name for name, when in self._event_topics.items() if when > since]
        if "spans" in found:
            found["spans"] = [tags for tags, when in self.spans.chosen.items() if when > since]
        return found

    @property
    def workers(self) -> dict[str, MirrorWorker]:
        """Address -> worker."""
        self.read("workers")
        return self._workers

    @property
    def idle(self) -> set[MirrorWorker]:
        """Workers with too little to do."""
        return self._idle

    @property
    def saturated(self) -> set[MirrorWorker]:
        """Workers with much more to do than others."""
        return self._saturated

    @property
    def task_prefixes(self) -> dict[str, Any]:
        """Name -> prefix."""
        self.read("prefixes")
        return self._prefixes

    @property
    def task_groups(self) -> dict[str, Any]:
        """Name -> group."""
        self.read("groups")
        return self._groups

    @property
    def counters(self) -> dict[str, Any]:
        """Stock's counters: "op" counts requests. There is none while nobody asked for anything."""
        self.read("requests")
        return dict.fromkeys(("op",), self._requests) if self._requests.asked else {}

    @property
    def bandwidth_workers(self) -> dict[Any, float]:
        """(address, address) -> bytes a second."""
        self.read("bandwidths")
        return self._bandwidths[0]

    @property
    def bandwidth_types(self) -> dict[str, float]:
        """Name of a type -> bytes a second."""
        self.read("bandwidths")
        return self._bandwidths[1]

    @property
    def cumulative_worker_metrics(self) -> dict[Any, float]:
        """Sums of what workers measured."""
        self.read("metrics")
        return self._metrics

    @property
    def erred_tasks(self) -> deque[Any]:
        """The last errors, newest first."""
        self.read("errors")
        return self._errors

    @property
    def extensions(self) -> dict[str, Any]:
        """Name -> extension."""
        self.read("shuffles")
        return {**self._extensions, "shuffle": SimpleNamespace(heartbeats=self._shuffles)}

    @property
    def memory(self) -> MemoryState:
        """Of all workers."""
        return MemoryState.sum(*(ws.memory for ws in self.workers.values()))

    @property
    def total_nthreads(self) -> int:
        """Of all workers."""
        return int(self._base["total_nthreads"])

    @property
    def transition_counter(self) -> int:
        """Transitions ever made."""
        return int(self._base["transition_counter"])

    @property
    def bandwidth(self) -> float:
        """Bytes a second between workers."""
        return float(self._base["bandwidth"])

    @property
    def _tick_interval_observed(self) -> float:
        return float(self._base.get("tick_seconds", 0.0))

    # what pages do

    def add_plugin(self, plugin: Any = None, name: str | None = None, **_: Any) -> None:
        """A component brings a plugin: the layout of a graph."""
        self.plugins[name or plugin.name] = plugin
        self._layouts[name or plugin.name] = plugin

    def remove_plugin(self, name: str | None = None, **_: Any) -> None:
        """It takes it away again."""
        self.plugins.pop(str(name), None)
        self._layouts.pop(str(name), None)

    def benchmark_hardware(self) -> Any:
        """Bandwidths of workers; to be awaited."""
        return self._ask("benchmark_hardware", {})

    def get_profile(self, **options: Any) -> Any:
        """Merged profiles of workers; to be awaited."""
        return self._ask("profile", options)

    def get_profile_metadata(self, **options: Any) -> Any:
        """How many samples were taken when; to be awaited."""
        return self._ask("profile_metadata", options)

    def get_logs(self, **_: Any) -> list[Any]:
        """Nothing: logs are a page of the scheduler's own."""
        return []

    # what is new

    def apply(self, news: dict[str, Any]) -> None:
        """Take in what is new."""
        appliers: dict[str, Callable[[Any], None]] = {
            "workers": self._apply_workers,
            "base": self._apply_base,
            "prefixes": self._apply_prefixes,
            "groups": self._apply_groups,
            "tasks": self._apply_tasks,
            "stream": self._apply_stream,
            "monitor": self.monitor.apply,
            "events": self._apply_events,
        }
        for topic, apply in appliers.items():
            if topic in news:
                apply(news[topic])
        self._bandwidths = news.get("bandwidths", self._bandwidths)
        self._shuffles = news.get("shuffles", self._shuffles)
        self._stored = news.get("stored", self._stored)
        if "requests" in news:
            self._requests.grew(news["requests"])
        self._profile.extend(news.get("profile", ()))
        if "metrics" in news:
            self._metrics = defaultdict(float, news["metrics"])
        if "spans" in news:
            self.spans.tags = news["spans"]["tags"]
            self.spans.metrics = news["spans"]["metrics"]
        if "errors" in news:
            names = ("key", "timestamp", "erred_on", "exception_text", "traceback_text")
            self._errors = deque(SimpleNamespace(**dict(zip(names, e, strict=True))) for e in news["errors"])

    def _apply_base(self, base: dict[str, Any]) -> None:
        self._base = base
        self.tasks.n = base["n_tasks"]
        known = self._workers
        self._idle = {known[a] for a in base["idle"] if a in known}
        self._saturated = {known[a] for a in base["saturated"] if a in known}

    def _apply_workers(self, news: dict[str, Any]) -> None:
        for address in news["gone"]:
            self._workers.pop(address, None)
        for facts in news["new"]:
            extra = {"metrics": {}, "last_seen": 0.0, "unmanaged_old": 0, "nbytes": 0, "has_what": ()}
            self._workers[facts["address"]] = MirrorWorker(**facts, **extra, status=Status.running)
        for address, metrics, last_seen, unmanaged_old in news["metrics"]:
            ws = self._workers[address]
            ws.metrics, ws.last_seen, ws.unmanaged_old = metrics, last_seen, unmanaged_old
        for address, status, n_processing, occupancy, nbytes, nthreads in news["counts"]:
            ws = self._workers[address]
            ws.status = Status.lookup.get(status, Status.undefined)  # type: ignore[attr-defined]
            ws.processing, ws.occupancy = range(n_processing), occupancy
            ws.nbytes, ws.nthreads = nbytes, nthreads
        for place, ws in enumerate(self._workers.values()):
            ws.has_what = StoredByPrefix(self) if place == 0 else ()

    def stored(self) -> Iterator[Any]:
        """What is in memory, as if the data of each prefix were one task's."""
        self.read("stored")
        return iter([SimpleNamespace(key=name, nbytes=n) for name, n in self._stored.items()])

    def _apply_prefixes(self, news: dict[str, Any]) -> None:
        for name in news["gone"]:
            self._prefixes.pop(name, None)
        for name, facts in news["changed"].items():
            self._prefixes[name] = SimpleNamespace(name=name, **facts)
        spent = {name: p.all_durations.get("compute", 0.0) for name, p in self._prefixes.items()}
        self._timing.grew(spent)

    def _apply_groups(self, news: dict[str, Any]) -> None:
        for name in news["gone"]:
            self._groups.pop(name, None)
            self._links.pop(name, None)
        for name, facts in news["changed"].items():
            self._links[name] = facts["dependencies"]
            group = self._groups.setdefault(name, SimpleNamespace(name=name))
            vars(group).update(facts, prefix=SimpleNamespace(name=facts["prefix"]))
        groups = self._groups
        for name, others in self._links.items():
            groups[name].dependencies = [groups[other] for other in others if other in groups]

    def _apply_stream(self, records: Iterable[tuple[Any, ...]]) -> None:
        for key, worker, thread, ok, startstops in records:
            self._stream.transition(
                key,
                "processing",
                "memory" if ok else "erred",
                worker=worker,
                thread=thread,
                status="OK" if ok else "error",
                startstops=[{"action": a, "start": b, "stop": e} for a, b, e in startstops],
            )

    def _apply_events(self, news: dict[str, Any]) -> None:
        for name, (count, events) in news.items():
            topic = self._broker._topics[name]
            topic.events.extend(events)
            topic.count = count

    def _apply_tasks(self, news: dict[str, Any]) -> None:
        self.tasks.n = news["n"]
        for key in news.get("gone", ()):
            self._forget(key)
        made = {}
        for key, prefix, state, priority, _ in news.get("new", ()):
            made[key] = self.tasks[key] = MirrorTask(key, prefix, state, priority)
        for key, *_, dependencies in news.get("new", ()):
            for other in (self.tasks.get(each) for each in dependencies):
                if other is not None:
                    made[key].dependencies.add(other)
                    other.dependents.add(made[key])
        if made:
            priority = {key: ts.priority for key, ts in made.items()}
            self._tell("update_graph", self, client="", keys=set(), tasks=list(made), priority=priority)
        for key, state in news.get("moved", ()):
            before, self.tasks[key].state = self.tasks[key].state, state
            self._tell("transition", key, before, state)

    def _forget(self, key: Any) -> None:
        ts = self.tasks.get(key)
        if ts is None:
            return
        self._tell("transition", key, ts.state, "forgotten")
        for other in ts.dependencies:
            other.dependents.discard(ts)
        for other in ts.dependents:
            other.dependencies.discard(ts)
        del self.tasks[key]

    def _tell(self, hook: str, *args: Any, **kwargs: Any) -> None:
        for plugin in list(self._layouts.values()):
            try:
                getattr(plugin, hook)(*args, **kwargs)
            except Exception:
                logger.debug("The layout of a graph failed", exc_info=True)


class StoredByPrefix:
    """What all workers hold, for the plot of memory by key, which walks over each worker's data."""

    def __init__(self, scheduler: MirrorScheduler) -> None:
        self._scheduler = scheduler

    def __iter__(self) -> Iterator[Any]:
        return self._scheduler.stored()
