"""News of the scheduler for its dashboard: what changed since the last time, of what open pages read, as plain data.

Nothing is gathered while nobody asks. While a task stream is open, the batches that workers sent last are kept as they came, and
read when the stream is told: a task costs nothing until then.

Must not know: pages; how news travel. The mirror of it is ``mirror.py``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from paceline.protocol.keys import Key
from paceline.protocol.messages import TaskErred, TaskFinished
from paceline.scheduler.core import mirrors
from paceline.scheduler.core.groups import TaskGroup, TaskPrefix
from paceline.scheduler.core.state import SchedulerState, TaskState, WorkerState

from ..views import opened

#: Finished tasks that one piece of news tells of: more than a screen shows; of more, the last ones.
STREAM_MAX = 1_000
#: A task stream that nobody asked for in so long is noted no more, seconds.
STREAM_SECONDS = 30.0
#: Messages of workers that wait to be told of; some of them are of other kinds.
HEARD_MAX = 2 * STREAM_MAX
#: Messages that tell of a task that ran.
RAN = (TaskFinished, TaskErred)
#: Events of a topic that one piece of news tells of.
EVENTS_MAX = 1_000
#: Periods of the event loop's profile that one piece of news tells of.
PERIODS_MAX = 50
#: Replicas that one piece of news looks at, to say how large what is in memory is.
REPLICAS_MAX = 10_000
#: Choices of span tags that pages have open at the same time.
TAGS_MAX = 20


class Snapshots:
    """What one dashboard was told, and what is new to it.

    Args:
        facade: the scheduler as plugins see it.
        facts: facts of the process that are always told: tick, cpu, ...
    """

    def __init__(self, facade: Any, facts: Callable[[], dict[str, Any]]) -> None:
        self._facade = facade
        self._state: SchedulerState = facade._server.state
        self._driver: Any = facade._server.driver
        self._facts = facts
        self._workers: dict[str, Any] = {}
        self._prefixes: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        self._tasks: dict[Key, str] = {}
        self._events: dict[str, int] = {}
        self._monitored = 0
        self._profiled = 0.0
        self._weighing: Iterator[dict[str, int] | None] | None = None
        self._stored: dict[str, int] = {}
        self._batches: deque[tuple[str, Sequence[Any]]] = deque()
        self._n_heard = 0
        self._stream_asked = 0.0
        self._topics: dict[str, Callable[[Any], Any]] = {
            "workers": self._tell_workers,
            "prefixes": self._tell_prefixes,
            "groups": self._tell_groups,
            "tasks": self._tell_tasks,
            "stream": self._tell_stream,
            "bandwidths": self._tell_bandwidths,
            "metrics": self._tell_metrics,
            "spans": self._tell_spans,
            "events": self._tell_events,
            "monitor": self._tell_monitor,
            "profile": self._tell_profile,
            "stored": self._tell_stored,
            "requests": self._tell_requests,
            "shuffles": self._tell_shuffles,
            "errors": self._tell_errors,
        }

    def news(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Topic -> what is new of it."""
        found: dict[str, Any] = {"base": self._tell_base()}
        for topic, detail in wanted.items():
            tell = self._topics.get(topic)
            if tell is not None:
                found[topic] = tell(detail)
        if "stored" not in wanted:
            self._weighing = None
        if self._stream_asked and time.monotonic() - self._stream_asked > STREAM_SECONDS:
            self.stop()
        return found

    def stop(self) -> None:
        """Nobody reads any more."""
        self._stream_asked = 0.0
        self._batches.clear()
        self._n_heard = 0
        self._driver.listen(None)

    def _tell_base(self) -> dict[str, Any]:
        state = self._state
        return {
            **self._facts(),
            "total_nthreads": state.total_nthreads,
            "transition_counter": state.transition_counter,
            "bandwidth": state.bandwidth,
            "n_tasks": len(state.tasks),
            "idle": [ws.address for ws in state.idle],
            "saturated": [ws.address for ws in state.saturated],
        }

    # workers: what never changes once, their metrics when a heartbeat came, counts always

    def _tell_workers(self, _: Any) -> dict[str, Any]:
        told, state = self._workers, self._state
        gone = [address for address in told if address not in state.workers]
        for address in gone:
            del told[address]
        new, metrics = [], []
        for address, ws in state.workers.items():
            before = told.get(address)
            if before is None or before[0] is not ws:
                new.append(_worker(ws))
                told[address] = before = [ws, None]
            if before[1] is not ws.metrics:
                before[1] = ws.metrics
                metrics.append((address, ws.metrics, ws.last_seen, ws.memory_unmanaged_old))
        counts = [
            (a, ws.status, len(ws.processing), mirrors.occupancy(state, ws), ws.nbytes, ws.nthreads)
            for a, ws in state.workers.items()
        ]
        return {"gone": gone, "new": new, "metrics": metrics, "counts": counts}

    # prefixes and groups: those whose numbers changed

    def _tell_prefixes(self, _: Any) -> dict[str, Any]:
        return _changed(self._prefixes, self._state.task_prefixes, _prefix)

    def _tell_groups(self, _: Any) -> dict[str, Any]:
        return _changed(self._groups, self._state.task_groups, _group)

    # tasks, for a graph of few

    def _tell_tasks(self, most: Any) -> dict[str, Any]:
        tasks, told = self._state.tasks, self._tasks
        if len(tasks) > int(most):
            return {"n": len(tasks)}
        gone = [key for key in told if key not in tasks]
        for key in gone:
            del told[key]
        new, moved = [], []
        for key, ts in tasks.items():
            before = told.get(key)
            if before is None:
                new.append(_task(ts))
            elif before != ts.state:
                moved.append((key, ts.state))
            told[key] = ts.state
        return {"n": len(tasks), "gone": gone, "new": new, "moved": moved}

    # the task stream

    def _tell_stream(self, _: Any) -> list[tuple[Any, ...]]:
        """What workers said to have run, the last of it, oldest first; also what nobody wanted any more by then."""
        if not self._stream_asked:
            self._driver.listen(self._heard)
        self._stream_asked = time.monotonic()
        found: list[tuple[Any, ...]] = []
        while self._batches and len(found) < STREAM_MAX:
            worker, messages = self._batches.pop()
            found += (_ran(worker, m) for m in reversed(messages) if type(m) in RAN and m.startstops)
        self._batches.clear()
        self._n_heard = 0
        del found[STREAM_MAX:]
        found.reverse()
        return found

    def _heard(self, source: str, messages: Sequence[Any]) -> None:
        """A stream's batch was handled."""
        if source not in self._state.workers:
            return
        self._batches.append((source, messages))
        self._n_heard += len(messages)
        while self._n_heard - len(self._batches[0][1]) >= HEARD_MAX:
            self._n_heard -= len(self._batches.popleft()[1])

    # the rest

    def _tell_bandwidths(self, _: Any) -> tuple[dict[Any, float], dict[str, float]]:
        return dict(self._state.bandwidth_workers), dict(self._state.bandwidth_types)

    def _tell_metrics(self, _: Any) -> dict[Any, float]:
        return dict(self._state.cumulative_worker_metrics)

    def _tell_spans(self, choices: Any) -> dict[str, Any]:
        spans = self._facade.extensions.get("spans")
        if spans is None or not spans.spans:
            return {"tags": [], "metrics": {}}
        metrics = {(): spans.merge_all().cumulative_worker_metrics}
        for tags in list(choices or ())[:TAGS_MAX]:
            if set(tags) <= set(spans.spans_search_by_tag):
                metrics[tuple(tags)] = spans.merge_by_tags(*tags).cumulative_worker_metrics
        return {"tags": list(spans.spans_search_by_tag), "metrics": metrics}

    def _tell_events(self, topics: Any) -> dict[str, Any]:
        found = {}
        for name in topics or ():
            topic = self._state.events.topics.get(name)
            if topic is None:
                continue
            fresh = topic.events.latest(min(topic.count - self._events.get(name, 0), EVENTS_MAX))
            self._events[name] = topic.count
            found[name] = (topic.count, [(when, opened(event)) for when, event in fresh])
        return found

    def _tell_monitor(self, _: Any) -> dict[str, Any]:
        monitor = self._facade.measuring()
        values = monitor.range_query(start=self._monitored)
        self._monitored = monitor.count
        names = (name for name in dir(monitor) if name.startswith(("monitor_", "gpu_")))
        facts = {name: getattr(monitor, name) for name in names}
        plain = {k: v for k, v in facts.items() if isinstance(v, bool | int | str | None)}
        return {"count": monitor.count, "values": {k: list(v) for k, v in values.items()}, "facts": plain}

    def _tell_profile(self, _: Any) -> list[tuple[float, dict[str, Any]]]:
        found = self._facade._server.flows.own_profile.periods(self._profiled, PERIODS_MAX)
        if found:
            self._profiled = found[-1][0]
        return list(found)

    def _tell_requests(self, _: Any) -> dict[str, int]:
        """Op -> how often it was asked for, ever."""
        asked = self._facade._server.asked.items()
        return {str(config.tag): n for kind, n in asked if (config := getattr(kind, "__struct_config__", None))}

    def _tell_stored(self, _: Any) -> dict[str, int]:
        """Prefix -> bytes of its data in memory, each replica counted, as of when they were last all looked at."""
        if self._weighing is None:
            self._weighing = _weigh(list(self._state.workers.values()))
        weighed = next(self._weighing)
        if weighed is not None:
            self._stored, self._weighing = weighed, None
        return self._stored

    def _tell_shuffles(self, _: Any) -> dict[Any, Any]:
        extension = self._facade.plugins.get("shuffle") or self._facade.extensions.get("shuffle")
        beats = getattr(extension, "heartbeats", None) or {}
        return {shuffle: {w: dict(d) for w, d in workers.items()} for shuffle, workers in beats.items()}

    def _tell_errors(self, _: Any) -> list[tuple[Any, ...]]:
        return [
            (e.key, e.timestamp, set(e.erred_on), e.exception_text, e.traceback_text)
            for e in self._state.erred_tasks
        ]


def _ran(worker: str, told: Any) -> tuple[Any, ...]:
    """key, worker, thread, whether it came to something, (action, start, stop) of what was done."""
    startstops = [(x.action, x.start, x.stop) for x in told.startstops]
    return told.key, worker, told.thread, type(told) is TaskFinished, startstops


def _weigh(workers: Sequence[WorkerState]) -> Iterator[dict[str, int] | None]:
    """Bytes that workers hold by prefix, in steps: None after each, the sums at the end."""
    sums: dict[str, int] = {}
    looked = 0
    for ws in workers:
        for ts in list(ws.has_what):
            name = ts.prefix.name
            sums[name] = sums.get(name, 0) + max(0, ts.nbytes)
            looked += 1
            if looked % REPLICAS_MAX == 0:
                yield None
    yield sums


def _worker(ws: WorkerState) -> dict[str, Any]:
    names = ("address", "name", "host", "memory_limit", "nanny", "local_directory", "pid", "server_id")
    found = {name: getattr(ws, name) for name in names}
    return {**found, "services": dict(ws.services), "extra": dict(ws.extra)}


def _changed(told: dict[str, Any], now: dict[str, Any], facts: Callable[[Any], Any]) -> dict[str, Any]:
    """What is gone of what was told, and what is not as it was told."""
    gone = [name for name in told if name not in now]
    for name in gone:
        del told[name]
    changed = {}
    for name, thing in now.items():
        found, mark = facts(thing)
        if told.get(name) != mark:
            told[name] = mark
            changed[name] = found
    return {"gone": gone, "changed": changed}


def _prefix(prefix: TaskPrefix) -> tuple[dict[str, Any], Any]:
    states = prefix.states
    durations = prefix.all_durations
    nbytes = prefix.nbytes_total
    found = {"states": states, "all_durations": durations, "nbytes_total": nbytes}
    return found, (tuple(states.values()), nbytes, sum(durations.values()))


def _group(group: TaskGroup) -> tuple[dict[str, Any], Any]:
    states = dict(group.states)
    found = {
        "prefix": group.prefix.name,
        "states": states,
        "duration": group.duration,
        "nbytes_total": group.nbytes_total,
        "types": list(group.types),
        "dependencies": [each.name for each in group.dependencies],
    }
    return found, (tuple(states.values()), group.duration, group.nbytes_total, len(group.dependencies))


def _task(ts: TaskState) -> tuple[Any, ...]:
    return ts.key, ts.prefix.name, ts.state, ts.priority, [d.key for d in ts.dependencies]
