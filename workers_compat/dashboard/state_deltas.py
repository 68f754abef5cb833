"""Changes of the scheduler's state since the last update, for the pages of the dashboard.

Nothing is collected without a request. While a task stream is open, the latest batches of messages
from workers are kept, and converted only when they are requested, so that tasks have no additional
cost before.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from paceline.protocol.messages import TaskErred, TaskFinished
from paceline.scheduler.core.inspection.memory_report import memory_report
from paceline.scheduler.core.inspection.share_report import share_report
from paceline.scheduler.core.state.estimates import occupancy
from paceline.scheduler.core.state.model import TaskGroup, TaskPrefix, WorkerState
from paceline.scheduler.core.turn_observer import TurnObserver
from paceline.workers_compat.facade.server_port import FacadeServer
from paceline.workers_compat.security.unpickling import deserialize

#: Finished tasks per update, more than a screen shows; earlier ones are dropped.
STREAM_MAX = 1_000
#: Messages of workers are no longer kept if the task stream was not requested for this time,
#: seconds.
STREAM_SECONDS = 30.0
#: Messages of workers that are kept for the task stream; not all of them are about finished tasks.
MESSAGES_MAX = 2 * STREAM_MAX
#: Messages about tasks that ran.
FINISHED = (TaskFinished, TaskErred)
#: Events per topic and update.
EVENTS_MAX = 1_000
#: Periods of the event loop's profile per update.
PERIODS_MAX = 50
#: Replicas per update that are added to the sums of bytes in memory.
REPLICAS_MAX = 10_000
#: Selections of span tags, of all pages together.
TAGS_MAX = 20
#: Attributes of a worker that change with its heartbeats, or never.
WORKER_FACTS = ("address", "name", "memory_limit", "metrics", "last_seen")


class StateDeltas(TurnObserver):
    """The state that a dashboard has received, to find the changes since then.

    `facts` returns facts about the process that are part of each update: tick interval, cpu.
    """

    def __init__(self, server: FacadeServer, facts: Callable[[], dict[str, Any]]) -> None:
        self._server = server
        self._facade: Any = server.plugins.facade
        self._state = server.state
        self._facts = facts
        #: Topic -> name -> what was sent.
        self._sent: defaultdict[str, dict[Any, Any]] = defaultdict(dict)
        self._monitor_count = 0
        self._profile_time = 0.0
        self._summing: Iterator[dict[str, int] | None] | None = None
        self._stored: dict[str, int] = {}
        self._batches: deque[tuple[str, Sequence[Any]]] = deque()
        self._n_messages = 0
        self._stream_requested_at = 0.0

    def updates(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Return topic -> changes since the last call, as found by the method ``_get_TOPIC``.

        `wanted` is topic -> its detail; unknown topics are ignored.
        """
        found: dict[str, Any] = {}
        for topic, detail in wanted.items():
            get = getattr(self, f"_get_{topic}", None)
            if get is not None:
                found[topic] = get(detail)
        found["base"] = self._base()  # after the workers that it names
        if "stored" not in wanted:
            self._summing = None
        unused_seconds = time.monotonic() - self._stream_requested_at
        if self._stream_requested_at and unused_seconds > STREAM_SECONDS:
            self.stop()
        return found

    def stop(self) -> None:
        """Stop keeping messages for the task stream."""
        self._stream_requested_at = 0.0
        self._batches.clear()
        self._n_messages = 0
        self._server.driver.remove_observer(self)

    def _base(self) -> dict[str, Any]:
        state = self._state
        return {
            **self._facts(),
            "total_nthreads": state.total_nthreads,
            "transition_counter": state.transition_counter,
            "bandwidth": state.bandwidth,
            "n_tasks": len(state.tasks),
            "idle": [ws.address for ws in state.loads.idle],
            "saturated": [ws.address for ws in state.loads.saturated],
        }

    # workers: facts after a heartbeat, counts always

    def _get_workers(self, _: Any) -> dict[str, Any]:
        sent, state = self._sent["workers"], self._state
        workers = state.workers
        self._sent["workers"] = {address: ws.metrics for address, ws in workers.items()}
        counts = [
            (a, ws.status, len(ws.processing), occupancy(state, ws), ws.nbytes, ws.nthreads)
            for a, ws in workers.items()
        ]
        return {
            "gone": [address for address in sent if address not in workers],
            "changed": [_worker(ws) for a, ws in workers.items() if sent.get(a) is not ws.metrics],
            "counts": counts,
        }

    def _get_prefixes(self, _: Any) -> dict[str, Any]:
        return _changes(self._sent["prefixes"], self._state.task_prefixes, _prefix)

    def _get_groups(self, _: Any) -> dict[str, Any]:
        return _changes(self._sent["groups"], self._state.task_groups, _group)

    # tasks, for small graphs only

    def _get_tasks(self, limit: Any) -> dict[str, Any]:
        tasks, sent = self._state.tasks, self._sent["tasks"]
        if len(tasks) > int(limit):
            return {"n": len(tasks)}
        gone = [key for key in sent if key not in tasks]
        for key in gone:
            del sent[key]
        new, moved = [], []
        for key, ts in tasks.items():
            before = sent.get(key)
            if before is None:
                others = [other.key for other in ts.dependencies]
                new.append((key, ts.prefix.name, ts.state, ts.priority, others))
            elif before != ts.state:
                moved.append((key, ts.state))
            sent[key] = ts.state
        return {"n": len(tasks), "gone": gone, "new": new, "moved": moved}

    # the task stream

    def _get_stream(self, _: Any) -> list[tuple[Any, ...]]:
        """Return the tasks that ran last, oldest first; also those cancelled meanwhile.

        Each as key, worker, thread, success, and (action, start, stop) of its actions.
        """
        if not self._stream_requested_at:
            self._server.driver.add_observer(self)
        self._stream_requested_at = time.monotonic()
        found: list[tuple[Any, ...]] = []
        while self._batches and len(found) < STREAM_MAX:
            worker, messages = self._batches.pop()
            finished = (m for m in reversed(messages) if type(m) in FINISHED)
            for m in finished:
                if m.startstops:
                    steps = [(step.action, step.start, step.stop) for step in m.startstops]
                    found.append((m.key, worker, m.thread, type(m) is TaskFinished, steps))
        self._batches.clear()
        self._n_messages = 0
        del found[STREAM_MAX:]
        found.reverse()
        return found

    def after_batch(self, source: str, messages: Sequence[Any]) -> None:
        """Keep a batch of messages if it came from a worker."""
        if source not in self._state.workers:
            return
        self._batches.append((source, messages))
        self._n_messages += len(messages)
        while self._n_messages - len(self._batches[0][1]) >= MESSAGES_MAX:
            self._n_messages -= len(self._batches.popleft()[1])

    # the rest

    def _get_bandwidths(self, _: Any) -> dict[str, Any]:
        state = self._state
        return {
            "bandwidth_workers": dict(state.bandwidth_workers),
            "bandwidth_types": dict(state.bandwidth_types),
        }

    def _get_metrics(self, _: Any) -> dict[str, Any]:
        sums = defaultdict(float, self._state.cumulative_worker_metrics)
        return {"cumulative_worker_metrics": sums}

    def _get_errors(self, _: Any) -> dict[str, Any]:
        return {"erred_tasks": [SimpleNamespace(**asdict(e)) for e in self._state.erred_tasks]}

    def _get_shares(self, _: Any) -> dict[str, Any]:
        return {"share_report": share_report(self._state)}

    def _get_memory(self, _: Any) -> dict[str, Any]:
        return {"memory_report": memory_report(self._state)}

    def _get_spans(self, choices: Any) -> dict[str, Any]:
        spans = self._facade.extensions["spans"]
        if not spans.spans:
            return {"tags": [], "metrics": {}}
        metrics = {(): spans.merge_all().cumulative_worker_metrics}
        for tags in list(choices or ())[:TAGS_MAX]:
            if set(tags) <= set(spans.spans_search_by_tag):
                metrics[tuple(tags)] = spans.merge_by_tags(*tags).cumulative_worker_metrics
        return {"tags": list(spans.spans_search_by_tag), "metrics": metrics}

    def _get_events(self, topics: Any) -> dict[str, Any]:
        found, sent = {}, self._sent["events"]
        for name in topics or ():
            topic = self._state.events.topics.get(name)
            if topic is None:
                continue
            n_new = min(topic.count - sent.get(name, 0), EVENTS_MAX)
            fresh = list(topic.events)[-n_new:] if n_new > 0 else []
            sent[name] = topic.count
            found[name] = (topic.count, [(when, deserialize(event)) for when, event in fresh])
        return found

    def _get_monitor(self, _: Any) -> dict[str, Any]:
        monitor = self._facade.system_monitor()
        values = monitor.range_query(start=self._monitor_count)
        self._monitor_count = monitor.count
        return {
            "count": monitor.count,
            "values": {k: list(v) for k, v in values.items()},
            "facts": monitor_facts(monitor),
        }

    def _get_profile(self, _: Any) -> list[tuple[float, dict[str, Any]]]:
        found = self._server.request_state.loop_profile.periods(self._profile_time, PERIODS_MAX)
        if found:
            self._profile_time = found[-1][0]
        return list(found)

    def _get_requests(self, _: Any) -> dict[str, int]:
        """Return op -> number of requests so far."""
        counts = self._server.rpc_counts.items()
        tagged = ((getattr(kind, "__struct_config__", None), n) for kind, n in counts)
        return {str(config.tag): n for config, n in tagged if config is not None}

    def _get_stored(self, _: Any) -> dict[str, dict[str, int]]:
        """Return prefix -> bytes of its replicas in memory, as of the last complete sum."""
        if self._summing is None:
            self._summing = _sum_stored(list(self._state.workers.values()))
        sums = next(self._summing)
        if sums is not None:
            self._stored, self._summing = sums, None
        return {"nbytes": self._stored}

    def _get_shuffles(self, _: Any) -> dict[Any, Any]:
        beats = self._facade.extensions["shuffle"].heartbeats
        copy = {id_: {w: dict(d) for w, d in workers.items()} for id_, workers in beats.items()}
        return {"heartbeats": copy}


def _sum_stored(workers: Sequence[WorkerState]) -> Iterator[dict[str, int] | None]:
    """Sum the bytes of replicas by prefix. Yield None per ``REPLICAS_MAX``, then the sums."""
    sums: dict[str, int] = {}
    n_replicas = 0
    for ws in workers:
        for ts in list(ws.has_what):
            name = ts.prefix.name
            sums[name] = sums.get(name, 0) + max(0, ts.nbytes)
            n_replicas += 1
            if n_replicas % REPLICAS_MAX == 0:
                yield None
    yield sums


def _worker(ws: WorkerState) -> dict[str, Any]:
    found = {name: getattr(ws, name) for name in WORKER_FACTS}
    found["unmanaged_old"] = ws.memory_unmanaged_old
    return {**found, "extra": dict(ws.extra)}


def _changes(
    sent: dict[str, Any], now: dict[str, Any], facts: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    """Return removed names and changed facts, compared with `sent`, and update `sent`.

    `sent` is name -> facts, `now` is name -> object, and `facts` returns those of an object.
    """
    gone = [name for name in sent if name not in now]
    for name in gone:
        del sent[name]
    found = {name: facts(each) for name, each in now.items()}
    changed = {name: each for name, each in found.items() if sent.get(name) != each}
    sent.update(changed)
    return {"gone": gone, "changed": changed}


def _prefix(prefix: TaskPrefix) -> dict[str, Any]:
    return {
        "states": prefix.states,
        "all_durations": prefix.all_durations,
        "nbytes_total": prefix.nbytes_total,
    }


def _group(group: TaskGroup) -> dict[str, Any]:
    return {
        "prefix": group.prefix.name,
        "states": dict(group.states),
        "duration": group.duration,
        "nbytes_total": group.nbytes_total,
        "types": list(group.types),
        "dependencies": [each.name for each in group.dependencies],
    }


def monitor_facts(monitor: Any) -> dict[str, Any]:
    """Return the attributes of a ``SystemMonitor`` from which plots know what it measures."""
    names = [name for name in dir(monitor) if name.startswith(("monitor_", "gpu_"))]
    found = {name: getattr(monitor, name) for name in names}
    return {k: v for k, v in found.items() if isinstance(v, bool | int | str | None)}
