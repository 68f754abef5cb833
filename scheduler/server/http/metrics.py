"""Prometheus metrics, under stock's names."""

from __future__ import annotations

from collections.abc import Iterator
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
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

if TYPE_CHECKING:
    from paceline.scheduler.server.runtime.gc_policy import GcPolicy
    from paceline.scheduler.server.runtime.loop_lag import LoopLag
    from paceline.scheduler.server.server import Server

#: Number of prefixes with separate rows, the oldest first; the counts of all others are summed.
PREFIX_ROWS_MAX = 1_000
#: Prefixes with longer names have no separate rows, characters.
LABEL_LENGTH_MAX = 200
#: The name of the row with the sums of all other prefixes. No key has this prefix.
OTHER_PREFIXES = "(other)"

Metric = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily


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
        loop_lag: LoopLag,
        namespace: str = "dask",
        gc_policy: GcPolicy | None = None,
        measures: m.Measures | None = None,
    ) -> None:
        self._server = server
        self._state = server.state
        self._loop_lag = loop_lag
        start = f"{namespace}_" if namespace else ""
        self._prefix = start + "scheduler_"
        self._own_prefix = start + "paceline_"
        self._stealing_prefix = start + "stealing_"
        self._semaphore_prefix = start + "semaphore_"
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

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(self._prefix + name, text, value=value)

    def _counter(self, name: str, text: str, value: float, unit: str = "") -> Metric:
        return CounterMetricFamily(self._prefix + name, text, value=value, unit=unit)

    def _peers(self) -> Iterator[Metric]:
        state = self._state
        clients = sum(1 for name in state.clients if name != FIRE_AND_FORGET)
        yield self._gauge("clients", "Number of clients connected", clients)
        yield self._counter(
            "client_connections_added",
            "Total number of client connections added",
            state.client_added_count,
        )
        yield self._counter(
            "client_connections_removed",
            "Total number of client connections removed",
            state.client_removed_count,
        )
        yield self._gauge(
            "desired_workers",
            "Number of workers scheduler needs for task graph",
            scaling.adaptive_target(state, scaling.TARGET_DURATION_SECONDS),
        )
        workers = GaugeMetricFamily(
            self._prefix + "workers", "Number of workers known by scheduler", labels=["state"]
        )
        n_running, loads = len(state.running), state.loads
        n_idle, n_saturated = len(loads.idle), len(loads.saturated)
        n_paused = sum(1 for ws in state.workers.values() if ws.status == "paused")
        workers.add_metric(["idle"], n_idle)
        workers.add_metric(["partially_saturated"], n_running - n_idle - n_saturated)
        workers.add_metric(["saturated"], n_saturated)
        workers.add_metric(["paused"], n_paused)
        workers.add_metric(["retiring"], len(state.workers) - n_paused - n_running)
        yield workers
        yield self._counter(
            "workers_added", "Total number of workers added", state.worker_added_count
        )
        yield self._counter(
            "workers_removed", "Total number of workers removed", state.worker_removed_count
        )

    def _tasks(self) -> Iterator[Metric]:
        totals = dict.fromkeys(TASK_STATES, 0)
        suspicious = CounterMetricFamily(
            self._prefix + "tasks_suspicious",
            "Total number of times a task has been marked suspicious",
            labels=["task_prefix_name"],
        )
        rows, others = self._rows()
        for prefix in rows:
            suspicious.add_metric([prefix.name], prefix.suspicious)
        if others:
            suspicious.add_metric([OTHER_PREFIXES], sum(prefix.suspicious for prefix in others))
        for group in self._state.task_groups.values():
            for state, count in group.states.items():
                totals[state] += count
        yield suspicious
        yield self._counter(
            "tasks_forgotten",
            "Total number of processed tasks no longer in memory and already removed from the "
            "scheduler job queue",
            totals.pop("forgotten"),
        )
        tasks = GaugeMetricFamily(
            self._prefix + "tasks", "Number of tasks known by scheduler", labels=["state"]
        )
        for state, count in totals.items():
            tasks.add_metric([state], count)
        yield tasks
        yield self._gauge(
            "task_groups", "Number of task groups known by scheduler", len(self._state.task_groups)
        )

    def _prefixes(self) -> Iterator[Metric]:
        label = ["task_prefix_name"]
        compute = CounterMetricFamily(
            self._prefix + "tasks_compute",
            "Total amount of compute time spent in each prefix",
            labels=label,
            unit="seconds",
        )
        transfer = CounterMetricFamily(
            self._prefix + "tasks_transfer",
            "Total amount of transfer time spent in each prefix",
            labels=label,
            unit="seconds",
        )
        output = GaugeMetricFamily(
            self._prefix + "tasks_output",
            "Current number of bytes in memory (without duplicates) for each prefix",
            labels=label,
            unit="bytes",
        )
        totals = CounterMetricFamily(
            self._prefix + "prefix_state_totals",
            "Accumulated count of task prefix in each state",
            labels=["task_prefix_name", "state"],
        )
        rows, others = self._rows()
        for name, prefixes in [(p.name, [p]) for p in rows] + [(OTHER_PREFIXES, others)]:
            durations: dict[str, float] = {}
            counts: dict[str, int] = {}
            for prefix in prefixes:
                add_up(durations, prefix.all_durations)
                add_up(counts, prefix.state_counts)
            if not prefixes:
                continue
            compute.add_metric([name], durations.get("compute", 0.0))
            transfer.add_metric([name], durations.get("transfer", 0.0))
            output.add_metric([name], sum(prefix.nbytes_total for prefix in prefixes))
            for state, count in counts.items():
                totals.add_metric([name, state], count)
        yield from (compute, transfer, output, totals)

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
        state = self._state
        if not state.config.work_stealing:
            return
        label = ["cost_multiplier"]
        count = CounterMetricFamily(
            self._stealing_prefix + "request_count_total",
            "Total number of stealing requests per cost multiplier.",
            labels=label,
        )
        cost = CounterMetricFamily(
            self._stealing_prefix + "request_cost_total",
            "Total cost of stealing requests per cost multiplier.",
            labels=label,
        )
        stealing_state = state.stealing
        for level, multiplier in enumerate(COST_MULTIPLIERS):
            count.add_metric([str(multiplier)], stealing_state.level_counts[level])
            cost.add_metric([str(multiplier)], stealing_state.level_costs[level])
        yield from (count, cost)

    def _process(self) -> Iterator[Metric]:
        monitor = self._server.plugins.facade.system_monitor()
        monitor.update()
        if monitor.monitor_gil_contention:
            yield self._counter(
                "gil_contention",
                "GIL contention metric",
                monitor.cumulative_gil_contention,
                unit="seconds",
            )
        yield self._counter(
            "gc_collection",
            "Total time spent on garbage collection",
            self._gc_policy.seconds if self._gc_policy is not None else 0.0,
            unit="seconds",
        )
        yield self._counter("last_time", "SystemMonitor last time", monitor.last_time)
        yield self._gauge(
            "tick_duration_maximum_seconds",
            "Maximum tick duration observed since Prometheus last scraped metrics",
            self._loop_lag.reset(),
        )
        yield self._counter(
            "tick_count_total",
            "Total number of ticks observed since the server started",
            self._loop_lag.count,
        )
        driver = self._server.driver
        text = "Counted since the server started"
        for name, count in (
            ("stimuli", driver.n_stimuli),
            ("internal_errors", driver.n_core_errors),
        ):
            yield CounterMetricFamily(self._own_prefix + name, text, value=count)

    def _semaphores(self) -> Iterator[Metric]:
        semaphores = self._server.core.extensions.get("semaphores")
        if not isinstance(semaphores, Semaphores):
            return
        counts = semaphores.metrics
        leases = {name: len(semaphores.leases[name]) for name in semaphores.max_leases}
        kinds: tuple[tuple[type[Any], str, str, Any, str], ...] = (
            (GaugeMetricFamily, "max_leases", "Maximum leases allowed", semaphores.max_leases, ""),
            (GaugeMetricFamily, "active_leases", "Leases that are in use", leases, ""),
            (
                GaugeMetricFamily,
                "pending_leases",
                "Requests that wait for a lease",
                counts["pending"],
                "",
            ),
            (
                CounterMetricFamily,
                "acquire_total",
                "Leases acquired so far",
                counts["acquire_total"],
                "",
            ),
            (
                CounterMetricFamily,
                "release_total",
                "Leases released so far",
                counts["release_total"],
                "",
            ),
            (
                *(GaugeMetricFamily, "average_pending_lease_time"),
                "Moving average of the time to acquire a lease",
                *(counts["average_pending_lease_time"], "s"),
            ),
        )
        for family, name, text, values, unit in kinds:
            metric = family(
                self._semaphore_prefix + name, f"{text}, per semaphore", labels=["name"], unit=unit
            )
            for semaphore in semaphores.max_leases:
                metric.add_metric([str(semaphore)], values[semaphore])
            yield metric

    def _queues(self) -> Iterator[Metric]:
        """Yield the lengths of queues and the sizes of buffers."""
        server, state = self._server, self._state
        waiting = GaugeMetricFamily(
            self._own_prefix + "waiting",
            "Number of items that wait in the scheduler",
            labels=["for"],
        )
        waiting.add_metric(["a later turn"], len(state.deferred.recommendations))
        waiting.add_metric(["a free thread"], len(state.queued))
        waiting.add_metric(["a worker that may run it"], len(state.unrunnable))
        waiting.add_metric(["graphs being taken in"], len(state.graphs))
        yield waiting
        buffered = GaugeMetricFamily(
            self._own_prefix + "outgoing_buffer",
            "Bytes that wait to be sent because a peer has not read them",
            labels=["peers", "of"],
            unit="bytes",
        )
        driver = server.driver
        for peers, streams in (
            ("workers", driver.worker_streams),
            ("clients", driver.client_streams),
        ):
            sizes = [
                stream.peer.comm.unwritten_nbytes  # type: ignore[attr-defined]
                for stream in streams.values()
            ]
            buffered.add_metric([peers, "all"], sum(sizes))
            buffered.add_metric([peers, "the largest"], max(sizes, default=0))
        yield buffered
        yield GaugeMetricFamily(
            self._own_prefix + "connections",
            "Open connections of all kinds",
            value=len(server.transport.comms),
        )

    def _measured(self, measures: m.Measures) -> Iterator[Metric]:
        yield self._histogram("turn", "Duration of sampled turns", measures.turns)
        ops = CounterMetricFamily(
            self._own_prefix + "sampled_messages",
            "Stimuli of sampled turns, by op",
            labels=["op"],
        )
        for op, count in measures.ops.items():
            ops.add_metric([op], count)
        yield ops
        yield self._histogram("loop_lag", "Delay of ticks of the event loop", measures.lags)
        yield self._histogram(
            "graph_compile",
            "Time from the arrival of a graph to the compiler's last reply",
            measures.compiles,
        )

    def _histogram(self, name: str, text: str, found: m.Histogram) -> Metric:
        return HistogramMetricFamily(
            self._own_prefix + name, text, found.buckets(), found.total, unit="seconds"
        )


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
