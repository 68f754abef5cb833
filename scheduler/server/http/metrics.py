"""Prometheus metrics, under stock's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.scheduler.core.handlers.clients import FIRE_AND_FORGET
from paceline.scheduler.core.policy import scaling
from paceline.scheduler.core.state.model import TASK_STATES, TaskPrefix, add_up
from paceline.scheduler.core.state.stealing import COST_MULTIPLIERS
from paceline.scheduler.extensions.semaphores import Semaphores
from paceline.scheduler.server.runtime import measures as m
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.core import Metric

if TYPE_CHECKING:
    from paceline.scheduler.server.runtime.gc_policy import GcPolicy
    from paceline.scheduler.server.server import Server

#: Number of prefixes with separate rows, the oldest first; the counts of all others are summed.
PREFIX_ROWS_MAX = 1_000
#: Prefixes with longer names have no separate rows, characters.
LABEL_LENGTH_MAX = 200
#: The name of the row with the sums of all other prefixes. No key has this prefix.
OTHER_PREFIXES = "(other)"


class SchedulerMetrics:
    """A collector of metrics for ``prometheus_client``.

    Args:
        server: the scheduler's server.
        loop_lag: measures the event loop.
        namespace: prefix of every name (stock's ``distributed.dashboard.prometheus.namespace``).
        gc_policy: for the time spent on garbage collection.
        measures: histograms of turns, loop lag and graph compilations.
    """

    def __init__(
        self,
        server: Server,
        loop_lag: m.LoopLag,
        namespace: str = "dask",
        gc_policy: GcPolicy | None = None,
        measures: m.Measures | None = None,
    ) -> None:
        self._server = server
        self._state = server.state
        self._loop_lag = loop_lag
        self._start = f"{namespace}_" if namespace else ""
        self._gc_policy = gc_policy
        self._measures = measures

    def describe(self) -> list[Any]:
        """Return an empty list: metrics are not described in advance."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
        yield from self._peers()
        yield from self._tasks()
        yield from self._prefixes()
        yield from self._stealing()
        yield from self._semaphores()
        yield from self._process()
        yield from self._queues()
        if self._measures is not None:
            yield from self._measured(self._measures)

    def _metric(
        self,
        kind: type[Gauge | Counter],
        name: str,
        text: str,
        rows: float | Mapping[Any, float],
        labels: Sequence[str] = (),
        unit: str = "",
    ) -> Metric:
        """Return a metric.

        Args:
            kind: ``Gauge`` or ``Counter``.
            name: its name after the namespace.
            text: its description.
            rows: its value, or values of the labels -> value.
            labels: names of the labels.
            unit: unit, which is part of the name.
        """
        made = kind(self._start + name, text, labels=labels, unit=unit)
        for key, value in rows.items() if isinstance(rows, Mapping) else [((), rows)]:
            made.add_metric(key if isinstance(key, tuple) else (str(key),), value)
        return made

    def _peers(self) -> Iterator[Metric]:
        state, metric = self._state, self._metric
        clients = sum(1 for name in state.clients if name != FIRE_AND_FORGET)
        yield metric(Gauge, "scheduler_clients", "Number of clients connected", clients)
        yield metric(
            Counter,
            "scheduler_client_connections_added",
            "Total number of client connections added",
            state.client_added_count,
        )
        yield metric(
            Counter,
            "scheduler_client_connections_removed",
            "Total number of client connections removed",
            state.client_removed_count,
        )
        yield metric(
            Gauge,
            "scheduler_desired_workers",
            "Number of workers scheduler needs for task graph",
            scaling.adaptive_target(state, scaling.TARGET_DURATION_SECONDS),
        )
        n_running = len(state.running)
        n_idle, n_saturated = len(state.loads.idle), len(state.loads.saturated)
        n_paused = sum(1 for ws in state.workers.values() if ws.status == "paused")
        workers = {
            "idle": n_idle,
            "partially_saturated": n_running - n_idle - n_saturated,
            "saturated": n_saturated,
            "paused": n_paused,
            "retiring": len(state.workers) - n_paused - n_running,
        }
        text = "Number of workers known by scheduler"
        yield metric(Gauge, "scheduler_workers", text, workers, ["state"])
        text = "Total number of workers added"
        yield metric(Counter, "scheduler_workers_added", text, state.worker_added_count)
        text = "Total number of workers removed"
        yield metric(Counter, "scheduler_workers_removed", text, state.worker_removed_count)

    def _tasks(self) -> Iterator[Metric]:
        totals = dict.fromkeys(TASK_STATES, 0)
        for group in self._state.task_groups.values():
            add_up(totals, group.states)
        yield self._metric(
            Counter,
            "scheduler_tasks_forgotten",
            "Total number of processed tasks no longer in memory and already removed from the "
            "scheduler job queue",
            totals.pop("forgotten"),
        )
        text = "Number of tasks known by scheduler"
        yield self._metric(Gauge, "scheduler_tasks", text, totals, ["state"])
        text = "Number of task groups known by scheduler"
        yield self._metric(Gauge, "scheduler_task_groups", text, len(self._state.task_groups))

    def _prefixes(self) -> Iterator[Metric]:
        suspicious: dict[str, int] = {}
        compute: dict[str, float] = {}
        transfer: dict[str, float] = {}
        output: dict[str, int] = {}
        totals: dict[tuple[str, str], int] = {}
        rows, others = self._rows()
        for name, prefixes in [(p.name, [p]) for p in rows] + [(OTHER_PREFIXES, others)]:
            if not prefixes:
                continue
            durations: dict[str, float] = {}
            counts: dict[str, int] = {}
            for prefix in prefixes:
                add_up(durations, prefix.all_durations)
                add_up(counts, prefix.state_counts)
            suspicious[name] = sum(prefix.suspicious for prefix in prefixes)
            compute[name] = durations.get("compute", 0.0)
            transfer[name] = durations.get("transfer", 0.0)
            output[name] = sum(prefix.nbytes_total for prefix in prefixes)
            totals.update({(name, state): count for state, count in counts.items()})
        label = ["task_prefix_name"]
        text = "Total number of times a task has been marked suspicious"
        yield self._metric(Counter, "scheduler_tasks_suspicious", text, suspicious, label)
        text = "Total amount of compute time spent in each prefix"
        yield self._metric(Counter, "scheduler_tasks_compute", text, compute, label, "seconds")
        text = "Total amount of transfer time spent in each prefix"
        yield self._metric(Counter, "scheduler_tasks_transfer", text, transfer, label, "seconds")
        text = "Current number of bytes in memory (without duplicates) for each prefix"
        yield self._metric(Gauge, "scheduler_tasks_output", text, output, label, "bytes")
        text = "Accumulated count of task prefix in each state"
        labels = [*label, "state"]
        yield self._metric(Counter, "scheduler_prefix_state_totals", text, totals, labels)

    def _rows(self) -> tuple[list[TaskPrefix], list[TaskPrefix]]:
        """Return the prefixes with separate rows, and those in the row ``OTHER_PREFIXES``."""
        state = self._state
        rows: list[TaskPrefix] = []
        others: list[TaskPrefix] = []
        for prefix in state.task_prefixes.values():
            fits = len(rows) < PREFIX_ROWS_MAX and len(prefix.name) <= LABEL_LENGTH_MAX
            (rows if fits else others).append(prefix)
        if any(state.dropped_prefixes.state_counts.values()):
            others.append(state.dropped_prefixes)
        return rows, others

    def _stealing(self) -> Iterator[Metric]:
        """Yield counts of work stealing; none if it is switched off, as in stock."""
        if not self._state.config.work_stealing:
            return
        stealing, label = self._state.stealing, ["cost_multiplier"]
        counts = dict(zip(COST_MULTIPLIERS, stealing.level_counts))
        text = "Total number of stealing requests per cost multiplier."
        yield self._metric(Counter, "stealing_request_count_total", text, counts, label)
        costs = dict(zip(COST_MULTIPLIERS, stealing.level_costs))
        text = "Total cost of stealing requests per cost multiplier."
        yield self._metric(Counter, "stealing_request_cost_total", text, costs, label)

    def _process(self) -> Iterator[Metric]:
        metric = self._metric
        monitor = self._server.plugins.facade.system_monitor()
        monitor.update()
        if monitor.monitor_gil_contention:
            seconds = monitor.cumulative_gil_contention
            text = "GIL contention metric"
            yield metric(Counter, "scheduler_gil_contention", text, seconds, unit="seconds")
        seconds = self._gc_policy.seconds if self._gc_policy is not None else 0.0
        text = "Total time spent on garbage collection"
        yield metric(Counter, "scheduler_gc_collection", text, seconds, unit="seconds")
        text = "SystemMonitor last time"
        yield metric(Counter, "scheduler_last_time", text, monitor.last_time)
        yield metric(
            Gauge,
            "scheduler_tick_duration_maximum_seconds",
            "Maximum tick duration observed since Prometheus last scraped metrics",
            self._loop_lag.reset(),
        )
        text = "Total number of ticks observed since the server started"
        yield metric(Counter, "scheduler_tick_count_total", text, self._loop_lag.count)
        driver = self._server.driver
        text = "Counted since the server started"
        yield metric(Counter, "paceline_stimuli", text, driver.n_stimuli)
        yield metric(Counter, "paceline_internal_errors", text, driver.n_core_errors)

    def _semaphores(self) -> Iterator[Metric]:
        semaphores = self._server.core.extensions.get("semaphores")
        if not isinstance(semaphores, Semaphores):
            return
        found = semaphores.metrics
        leases = {name: len(semaphores.leases[name]) for name in semaphores.max_leases}
        average = found["average_pending_lease_time"]
        for kind, name, text, values, unit in (
            (Gauge, "max_leases", "Maximum leases allowed", semaphores.max_leases, ""),
            (Gauge, "active_leases", "Leases that are in use", leases, ""),
            (Gauge, "pending_leases", "Requests that wait for a lease", found["pending"], ""),
            (Counter, "acquire_total", "Leases acquired so far", found["acquire_total"], ""),
            (Counter, "release_total", "Leases released so far", found["release_total"], ""),
            (
                *(Gauge, "average_pending_lease_time"),
                *("Moving average of the time to acquire a lease", average, "s"),
            ),
        ):
            rows = {str(semaphore): values[semaphore] for semaphore in semaphores.max_leases}
            about = f"{text}, per semaphore"
            yield self._metric(kind, f"semaphore_{name}", about, rows, ["name"], unit)

    def _queues(self) -> Iterator[Metric]:
        """Yield the lengths of queues and the sizes of buffers."""
        server, state = self._server, self._state
        waiting = {
            "a later turn": len(state.deferred.recommendations),
            "a free thread": len(state.queued),
            "a worker that may run it": len(state.unrunnable),
            "graphs being taken in": len(state.graphs),
        }
        text = "Number of items that wait in the scheduler"
        yield self._metric(Gauge, "paceline_waiting", text, waiting, ["for"])
        buffered = {}
        driver = server.driver
        for peers, streams in (
            ("workers", driver.worker_streams),
            ("clients", driver.client_streams),
        ):
            sizes = [
                stream.peer.comm.unwritten_nbytes  # type: ignore[attr-defined]
                for stream in streams.values()
            ]
            buffered[peers, "all"] = sum(sizes)
            buffered[peers, "the largest"] = max(sizes, default=0)
        yield self._metric(
            Gauge,
            "paceline_outgoing_buffer",
            "Bytes that wait to be sent because a peer has not read them",
            buffered,
            ["peers", "of"],
            "bytes",
        )
        text = "Open connections of all kinds"
        yield self._metric(Gauge, "paceline_connections", text, len(server.transport.comms))

    def _measured(self, measures: m.Measures) -> Iterator[Metric]:
        text = "Stimuli of sampled turns, by op"
        yield self._metric(Counter, "paceline_sampled_messages", text, measures.ops, ["op"])
        for name, text, found in (
            ("turn", "Duration of sampled turns", measures.turns),
            ("loop_lag", "Delay of ticks of the event loop", measures.lags),
            (
                "graph_compile",
                "Time from the arrival of a graph to the compiler's last reply",
                measures.compiles,
            ),
        ):
            full_name = f"{self._start}paceline_{name}"
            yield Histogram(full_name, text, found.buckets(), found.total, unit="seconds")


class MetricsPage:
    """The page that Prometheus scrapes."""

    content_type = "text/plain; version=0.0.4"

    def __init__(self, metrics: SchedulerMetrics) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(metrics)

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)
