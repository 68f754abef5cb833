"""Proxy of the scheduler for distributed's dashboard in another process, kept current by updates.

Topics that pages read are noted, so that only these are requested. Importing this module imports
distributed's diagnostics.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from distributed.core import Status
from distributed.scheduler import MemoryState

from .proxy_parts import (
    GroupTimingProxy,
    MonitorProxy,
    ProfileProxy,
    RequestsProxy,
    SpansProxy,
    StoredByPrefix,
    TaskProxy,
    TasksProxy,
    TaskStreamProxy,
    TopicsProxy,
    WorkerProxy,
)

logger = logging.getLogger("distributed.scheduler")

#: Topics that no page has read for this time are not requested, seconds. The slowest page reads
#: every 5 s.
READ_SECONDS = 11.0
#: Number of tasks up to which the graph is shown, if dask's configuration does not set it.
GRAPH_MAX = 5_000


class SchedulerProxy:
    """The scheduler for distributed's components.

    Args:
        call: sends a call to the scheduler: (method, options) -> a future.
        loop: tornado's loop of this process.
        jupyter: whether the scheduler serves Jupyter.
        facts: address and id of the scheduler.

    Attributes:
        http_server: has the ``port`` that browsers connect to.
    """

    http_server: Any

    def __init__(
        self,
        call: Callable[[str, dict[str, Any]], Any],
        loop: Any,
        jupyter: bool,
        facts: dict[str, Any],
    ) -> None:
        self._call = call
        self._read_at: dict[str, float] = {}
        self._base: dict[str, Any] = {"total_nthreads": 0, "transition_counter": 0, "bandwidth": 1}
        self._workers: dict[str, WorkerProxy] = {}
        self._idle: set[WorkerProxy] = set()
        self._saturated: set[WorkerProxy] = set()
        self._prefixes: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        self._links: dict[str, list[str]] = {}
        self._bandwidths: tuple[dict[Any, float], dict[str, float]] = ({}, {})
        self._metrics: defaultdict[Any, float] = defaultdict(float)
        self._errors: deque[Any] = deque()
        self._shuffles: dict[Any, Any] = {}
        self._stored: dict[str, int] = {}
        self._topics_read_at: dict[str, float] = {}
        self._layouts: dict[str, Any] = {}
        self.jupyter = jupyter
        self.address = facts.get("address", "")
        self.id = facts.get("id", "")
        self.loop = self.io_loop = loop
        self._profile = loop.profile = ProfileProxy(lambda: self.read("profile"))
        self._requests = RequestsProxy()
        self.digests = None
        self.tasks = TasksProxy(lambda: self.read("tasks"))
        self.monitor = MonitorProxy(lambda: self.read("monitor"))
        self.proc = SimpleNamespace(cpu_percent=lambda: self._base.get("cpu", 0.0))
        stream, timing = TaskStreamProxy(self), GroupTimingProxy(self)
        stream.read = lambda: self.read("stream")
        timing.read = lambda: self.read("prefixes")
        self.plugins: dict[str, Any] = {stream.name: stream, timing.name: timing}
        self._stream, self._timing = stream, timing
        self._topics = TopicsProxy(self._read_topic)
        self._broker = SimpleNamespace(_topics=self._topics)
        self.spans = SpansProxy(lambda: self.read("spans"))
        from distributed.stealing import WorkStealing

        costs = getattr(WorkStealing, "cost_multipliers", None) or [1.0] * 15
        self._extensions = {
            "stealing": SimpleNamespace(cost_multipliers=costs),
            "spans": self.spans,
        }

    # topics

    def read(self, topic: str) -> None:
        """Note that a page reads ``topic``: it is requested for the next ``READ_SECONDS``."""
        self._read_at[topic] = time.monotonic()

    def _read_topic(self, name: str) -> None:
        self.read("events")
        self._topics_read_at[name] = time.monotonic()

    def wanted(self) -> dict[str, Any]:
        """Return topic -> its detail, for the topics read in the last ``READ_SECONDS``."""
        since = time.monotonic() - READ_SECONDS
        found: dict[str, Any] = {
            topic: None for topic, when in self._read_at.items() if when > since
        }
        if "tasks" in found:
            import dask

            found["tasks"] = dask.config.get("distributed.dashboard.graph-max-items", GRAPH_MAX)
        if "events" in found:
            found["events"] = [name for name, when in self._topics_read_at.items() if when > since]
        if "spans" in found:
            found["spans"] = [tags for tags, when in self.spans.selected_at.items() if when > since]
        return found

    @property
    def workers(self) -> dict[str, WorkerProxy]:
        """Address -> worker."""
        self.read("workers")
        return self._workers

    @property
    def idle(self) -> set[WorkerProxy]:
        """Idle workers."""
        return self._idle

    @property
    def saturated(self) -> set[WorkerProxy]:
        """Saturated workers."""
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
        """Stock's counters: "op" counts requests. Empty before the first request."""
        self.read("requests")
        return dict.fromkeys(("op",), self._requests) if self._requests.sums else {}

    @property
    def bandwidth_workers(self) -> dict[Any, float]:
        """(address, address) -> bytes per second."""
        self.read("bandwidths")
        return self._bandwidths[0]

    @property
    def bandwidth_types(self) -> dict[str, float]:
        """Name of a type -> bytes per second."""
        self.read("bandwidths")
        return self._bandwidths[1]

    @property
    def cumulative_worker_metrics(self) -> dict[Any, float]:
        """Sums of the workers' metrics."""
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
        """Memory of all workers."""
        return MemoryState.sum(*(ws.memory for ws in self.workers.values()))

    @property
    def total_nthreads(self) -> int:
        """Threads of all workers."""
        return int(self._base["total_nthreads"])

    @property
    def transition_counter(self) -> int:
        """Number of transitions so far."""
        return int(self._base["transition_counter"])

    @property
    def bandwidth(self) -> float:
        """Bytes per second between workers."""
        return float(self._base["bandwidth"])

    @property
    def _tick_interval_observed(self) -> float:
        return float(self._base.get("tick_seconds", 0.0))

    # methods that pages call

    def add_plugin(self, plugin: Any = None, name: str | None = None, **_: Any) -> None:
        """Add the plugin of a component: the layout of a graph."""
        self.plugins[name or plugin.name] = plugin
        self._layouts[name or plugin.name] = plugin

    def remove_plugin(self, name: str | None = None, **_: Any) -> None:
        """Remove a plugin that a component added."""
        self.plugins.pop(str(name), None)
        self._layouts.pop(str(name), None)

    def benchmark_hardware(self) -> Any:
        """Return an awaitable of the workers' bandwidths."""
        return self._call("benchmark_hardware", {})

    def get_profile(self, **options: Any) -> Any:
        """Return an awaitable of the merged profiles of workers."""
        return self._call("profile", options)

    def get_profile_metadata(self, **options: Any) -> Any:
        """Return an awaitable of the number of profile samples over time."""
        return self._call("profile_metadata", options)

    def get_logs(self, **_: Any) -> list[Any]:
        """Return an empty list: the scheduler's own process serves the page of logs."""
        return []

    # updates

    def apply(self, updates: dict[str, Any]) -> None:
        """Apply updates of ``StateDeltas.updates``: topic -> changes."""
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
            if topic in updates:
                apply(updates[topic])
        self._bandwidths = updates.get("bandwidths", self._bandwidths)
        self._shuffles = updates.get("shuffles", self._shuffles)
        self._stored = updates.get("stored", self._stored)
        if "requests" in updates:
            self._requests.update_sums(updates["requests"])
        self._profile.extend(updates.get("profile", ()))
        if "metrics" in updates:
            self._metrics = defaultdict(float, updates["metrics"])
        if "spans" in updates:
            self.spans.tags = updates["spans"]["tags"]
            self.spans.metrics = updates["spans"]["metrics"]
        if "errors" in updates:
            names = ("key", "timestamp", "erred_on", "exception_text", "traceback_text")
            self._errors = deque(
                SimpleNamespace(**dict(zip(names, e, strict=True))) for e in updates["errors"]
            )

    def _apply_base(self, base: dict[str, Any]) -> None:
        self._base = base
        self.tasks.n = base["n_tasks"]
        known = self._workers
        self._idle = {known[a] for a in base["idle"] if a in known}
        self._saturated = {known[a] for a in base["saturated"] if a in known}

    def _apply_workers(self, updates: dict[str, Any]) -> None:
        for address in updates["gone"]:
            self._workers.pop(address, None)
        for facts in updates["new"]:
            extra = {
                "metrics": {},
                "last_seen": 0.0,
                "unmanaged_old": 0,
                "nbytes": 0,
                "has_what": (),
            }
            self._workers[facts["address"]] = WorkerProxy(**facts, **extra, status=Status.running)
        for address, metrics, last_seen, unmanaged_old in updates["metrics"]:
            ws = self._workers[address]
            ws.metrics, ws.last_seen, ws.unmanaged_old = metrics, last_seen, unmanaged_old
        for address, status, n_processing, occupancy, nbytes, nthreads in updates["counts"]:
            ws = self._workers[address]
            ws.status = Status.lookup.get(status, Status.undefined)
            ws.processing, ws.occupancy = range(n_processing), occupancy
            ws.nbytes, ws.nthreads = nbytes, nthreads
        for number, ws in enumerate(self._workers.values()):
            ws.has_what = StoredByPrefix(self.stored) if number == 0 else ()

    def stored(self) -> Iterator[Any]:
        """Iterate over the data in memory, as one task per prefix."""
        self.read("stored")
        return iter([SimpleNamespace(key=name, nbytes=n) for name, n in self._stored.items()])

    def _apply_prefixes(self, updates: dict[str, Any]) -> None:
        for name in updates["gone"]:
            self._prefixes.pop(name, None)
        for name, facts in updates["changed"].items():
            self._prefixes[name] = SimpleNamespace(name=name, **facts)
        sums = {name: p.all_durations.get("compute", 0.0) for name, p in self._prefixes.items()}
        self._timing.update_sums(sums)

    def _apply_groups(self, updates: dict[str, Any]) -> None:
        for name in updates["gone"]:
            self._groups.pop(name, None)
            self._links.pop(name, None)
        for name, facts in updates["changed"].items():
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

    def _apply_events(self, updates: dict[str, Any]) -> None:
        for name, (count, events) in updates.items():
            topic = self._topics[name]
            topic.events.extend(events)
            topic.count = count

    def _apply_tasks(self, updates: dict[str, Any]) -> None:
        self.tasks.n = updates["n"]
        for key in updates.get("gone", ()):
            self._forget(key)
        made = {}
        for key, prefix, state, priority, _ in updates.get("new", ()):
            made[key] = self.tasks[key] = TaskProxy(key, prefix, state, priority)
        for key, *_, dependencies in updates.get("new", ()):
            for other in (self.tasks.get(each) for each in dependencies):
                if other is not None:
                    made[key].dependencies.add(other)
                    other.dependents.add(made[key])
        if made:
            priority = {key: ts.priority for key, ts in made.items()}
            self._call_layouts(
                "update_graph", self, client="", keys=set(), tasks=list(made), priority=priority
            )
        for key, state in updates.get("moved", ()):
            before, self.tasks[key].state = self.tasks[key].state, state
            self._call_layouts("transition", key, before, state)

    def _forget(self, key: Any) -> None:
        ts = self.tasks.get(key)
        if ts is None:
            return
        self._call_layouts("transition", key, ts.state, "forgotten")
        for other in ts.dependencies:
            other.dependents.discard(ts)
        for other in ts.dependents:
            other.dependencies.discard(ts)
        del self.tasks[key]

    def _call_layouts(self, hook: str, *args: Any, **kwargs: Any) -> None:
        for plugin in list(self._layouts.values()):
            try:
                getattr(plugin, hook)(*args, **kwargs)
            except Exception:
                logger.debug("Plugin %r failed in %s", plugin, hook, exc_info=True)
