"""Proxy of the scheduler for distributed's dashboard in another process, kept current by updates.

Topics that pages read are noted, so that only these are requested.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial, partialmethod
from types import SimpleNamespace
from typing import Any

import dask.config
from distributed.core import Status
from distributed.scheduler import MemoryState
from distributed.stealing import WorkStealing

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
#: Attribute -> the topic that is requested because a page reads it; None if it is in each update.
TOPICS = {
    **dict.fromkeys(("idle", "saturated", "total_nthreads", "transition_counter", "bandwidth")),
    **dict.fromkeys(("bandwidth_workers", "bandwidth_types"), "bandwidths"),
    "workers": "workers",
    "task_prefixes": "prefixes",
    "task_groups": "groups",
    "cumulative_worker_metrics": "metrics",
    "erred_tasks": "errors",
    "share_report": "shares",
    "memory_report": "memory",
}
#: Attributes of a worker that each update contains, after the status and the number of tasks.
COUNT_FIELDS = ("occupancy", "nbytes", "nthreads")


class SchedulerProxy:
    """The scheduler for distributed's components.

    Args:
        call: sends a call to the scheduler: (method, options) -> a future.
        loop: tornado's loop of this process.
    """

    http_server: Any
    digests = None

    def __init__(
        self,
        call: Callable[[str, dict[str, Any]], Any],
        loop: Any,
        jupyter: bool,
    ) -> None:
        self._call = call
        self._read_at: dict[str, float] = {}
        self._topics_read_at: dict[str, float] = {}
        self._workers: dict[str, WorkerProxy] = {}
        self._prefixes: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        self._links: dict[str, list[str]] = {}
        self._values: dict[str, Any] = {
            "workers": self._workers,
            "task_prefixes": self._prefixes,
            "task_groups": self._groups,
            "idle": set(),
            "saturated": set(),
            **dict.fromkeys(("total_nthreads", "transition_counter", "cpu", "tick_seconds"), 0),
            "bandwidth": 1,
            "bandwidth_workers": {},
            "bandwidth_types": {},
            "cumulative_worker_metrics": defaultdict(float),
            "erred_tasks": deque(),
            "share_report": {},
            "memory_report": {},
        }
        self.jupyter = jupyter
        self.loop = self.io_loop = loop
        self._profile = loop.profile = ProfileProxy(partial(self.read, "profile"))
        self._requests = RequestsProxy()
        self.tasks = TasksProxy(partial(self.read, "tasks"))
        self.monitor = MonitorProxy(partial(self.read, "monitor"))
        self.proc = SimpleNamespace(cpu_percent=lambda: self._values["cpu"])
        self._stream = TaskStreamProxy(self, partial(self.read, "stream"))
        self._timing = GroupTimingProxy(self, partial(self.read, "prefixes"))
        self.plugins: dict[str, Any] = {each.name: each for each in (self._stream, self._timing)}
        self._topics = TopicsProxy(self._read_topic)
        self._broker = SimpleNamespace(_topics=self._topics)
        self.spans = SpansProxy(partial(self.read, "spans"))
        self._stored = StoredByPrefix(partial(self.read, "stored"))
        self._shuffle = SimpleNamespace(heartbeats={})
        self._extensions = {
            "stealing": SimpleNamespace(cost_multipliers=WorkStealing.cost_multipliers),
            "spans": self.spans,
            "shuffle": self._shuffle,
        }
        #: Topic -> the function that applies its updates, of topics without a method.
        self._appliers: dict[str, Callable[[Any], object]] = {
            "monitor": self.monitor.apply,
            "profile": self._profile.extend,
            "requests": self._requests.update_sums,
            "shuffles": vars(self._shuffle).update,
            "spans": vars(self.spans).update,
            "stored": vars(self._stored).update,
        }

    # topics

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of ``TOPICS``, and note that a page reads its topic."""
        if name not in TOPICS:
            raise AttributeError(name)
        topic = TOPICS[name]
        if topic is not None:
            self.read(topic)
        return self._values[name]

    def read(self, topic: str) -> None:
        """Note that a page reads ``topic``: it is requested for the next ``READ_SECONDS``."""
        self._read_at[topic] = time.monotonic()

    def _read_topic(self, name: str) -> None:
        self.read("events")
        self._topics_read_at[name] = time.monotonic()

    def wanted(self) -> dict[str, Any]:
        """Return topic -> its detail, for the topics read in the last ``READ_SECONDS``."""
        found: dict[str, Any] = dict.fromkeys(_recent(self._read_at))
        if "tasks" in found:
            found["tasks"] = dask.config.get("distributed.dashboard.graph-max-items", GRAPH_MAX)
        if "events" in found:
            found["events"] = _recent(self._topics_read_at)
        if "spans" in found:
            found["spans"] = _recent(self.spans.selected_at)
        return found

    @property
    def counters(self) -> dict[str, Any]:
        """Stock's counters: "op" counts requests. Empty before the first request."""
        self.read("requests")
        return dict.fromkeys(("op",), self._requests) if self._requests.sums else {}

    @property
    def extensions(self) -> dict[str, Any]:
        self.read("shuffles")
        return self._extensions

    memory = property(lambda self: MemoryState.sum(*(ws.memory for ws in self.workers.values())))
    _tick_interval_observed = property(lambda self: self._values["tick_seconds"])

    # methods that pages call

    def add_plugin(self, plugin: Any = None, name: str | None = None, **_: Any) -> None:
        """Add the plugin of a component: the layout of a graph."""
        self.plugins[name or plugin.name] = plugin

    def remove_plugin(self, name: str | None = None, **_: Any) -> None:
        self.plugins.pop(str(name), None)

    def _request(self, method: str, **options: Any) -> Any:
        return self._call(method, options)

    benchmark_hardware = partialmethod(_request, "benchmark_hardware")
    get_profile = partialmethod(_request, "profile")
    get_profile_metadata = partialmethod(_request, "profile_metadata")

    # updates

    def apply(self, updates: dict[str, Any]) -> None:
        """Apply updates of ``StateDeltas.updates``: topic -> changes."""
        for topic, changes in updates.items():
            apply = self._appliers.get(topic) or getattr(self, f"_apply_{topic}", None)
            # without either they are new values of attributes
            (apply or self._values.update)(changes)

    def _apply_base(self, base: dict[str, Any]) -> None:
        self.tasks.n = base["n_tasks"]
        self._values.update(base)
        for name in ("idle", "saturated"):
            known = (self._workers.get(address) for address in base[name])
            self._values[name] = {ws for ws in known if ws is not None}

    def _apply_workers(self, updates: dict[str, Any]) -> None:
        for address in updates["gone"]:
            self._workers.pop(address, None)
        for facts in updates["changed"]:
            ws = self._workers.setdefault(facts["address"], WorkerProxy(has_what=()))
            vars(ws).update(facts)
        for address, status, n_processing, *values in updates["counts"]:
            ws = self._workers[address]
            ws.status = Status.lookup.get(status, Status.undefined)
            ws.processing = range(n_processing)
            vars(ws).update(zip(COUNT_FIELDS, values))
        for ws in list(self._workers.values())[:1]:
            ws.has_what = self._stored

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
            topic = dict.__getitem__(self._topics, name)  # without noting a read
            topic.events.extend(events)
            topic.count = count

    def _apply_tasks(self, updates: dict[str, Any]) -> None:
        self.tasks.n = updates["n"]
        for key in updates.get("gone", ()):
            self._forget(key)
        made = {}
        for key, prefix, state, priority, _ in updates.get("new", ()):
            ts = TaskProxy(key, SimpleNamespace(name=prefix), state, priority)
            made[key] = self.tasks[key] = ts
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
        for plugin in [p for p in self.plugins.values() if p not in (self._stream, self._timing)]:
            try:
                getattr(plugin, hook)(*args, **kwargs)
            except Exception:
                logger.debug("Plugin %r failed in %s", plugin, hook, exc_info=True)


def _recent(read_at: Mapping[Any, float]) -> list[Any]:
    """Return what was read in the last ``READ_SECONDS``."""
    since = time.monotonic() - READ_SECONDS
    return [name for name, when in read_at.items() if when > since]
