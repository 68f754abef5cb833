"""Prometheus metrics, under the names that stock gives them.

Must not know: HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from paceline.scheduler.core.state import TASK_STATES, SchedulerState
from paceline.scheduler.core.steals import COST_MULTIPLIERS
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from ..gc_policy import GcPolicy
    from ..ticks import Ticks

#: The client that holds futures nobody waits for; not a connection.
FIRE_AND_FORGET = "fire-and-forget"

Metric = GaugeMetricFamily | CounterMetricFamily


class SchedulerMetrics:
    """A collector over the state.

    Args:
        namespace: before every name (stock's ``distributed.dashboard.prometheus.namespace``).
    """

    def __init__(
        self,
        state: SchedulerState,
        ticks: Ticks,
        namespace: str = "dask",
        gc_policy: GcPolicy | None = None,
        counters: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        self._state = state
        self._ticks = ticks
        self._prefix = f"{namespace}_scheduler_" if namespace else "scheduler_"
        self._stealing_prefix = f"{namespace}_stealing_" if namespace else "stealing_"
        self._gc_policy = gc_policy
        self._counters = counters

    def describe(self) -> list[Any]:
        """Nothing is known before it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics, now."""
        yield from self._peers()
        yield from self._tasks()
        yield from self._prefixes()
        yield from self._stealing()
        yield from self._process()

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
        workers = GaugeMetricFamily(
            self._prefix + "workers", "Number of workers known by scheduler", labels=["state"]
        )
        n_running, n_idle, n_saturated = len(state.running), len(state.idle), len(state.saturated)
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
        for prefix in self._state.task_prefixes.values():
            suspicious.add_metric([prefix.name], prefix.suspicious)
            for state, count in prefix.states.items():
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
        for prefix in self._state.task_prefixes.values():
            durations = prefix.all_durations
            compute.add_metric([prefix.name], durations.get("compute", 0.0))
            transfer.add_metric([prefix.name], durations.get("transfer", 0.0))
            output.add_metric([prefix.name], prefix.nbytes_total)
            for state, count in prefix.state_counts.items():
                totals.add_metric([prefix.name, state], count)
        yield from (compute, transfer, output, totals)

    def _stealing(self) -> Iterator[Metric]:
        """Where the configuration switches stealing off, stock shows none of it."""
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
        steals = state.steals
        for level, multiplier in enumerate(COST_MULTIPLIERS):
            count.add_metric([str(multiplier)], steals.level_counts[level])
            cost.add_metric([str(multiplier)], steals.level_costs[level])
        yield from (count, cost)

    def _process(self) -> Iterator[Metric]:
        if self._gc_policy is not None:
            yield self._counter(
                "gc_collection",
                "Total time spent on garbage collection",
                self._gc_policy.seconds,
                unit="seconds",
            )
        yield self._counter("last_time", "SystemMonitor last time", time.time())
        yield self._gauge(
            "tick_duration_maximum_seconds",
            "Maximum tick duration observed since Prometheus last scraped metrics",
            self._ticks.reset(),
        )
        yield self._counter(
            "tick_count_total",
            "Total number of ticks observed since the server started",
            self._ticks.count,
        )
        for name, value in (self._counters() if self._counters else {}).items():
            yield self._counter(name, "Counted since the server started", value)


class MetricsPage:
    """The text that Prometheus scrapes."""

    content_type = "text/plain; version=0.0.4"

    def __init__(self, metrics: SchedulerMetrics) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(metrics)

    def render(self) -> bytes:
        """All metrics, now."""
        return generate_latest(self._registry)
