"""Prometheus metrics, under stock's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from paceline.scheduler.core.inspection.share_report import share_report
from paceline.scheduler.core.policy import admission, scaling
from paceline.scheduler.core.state.containers import add_up
from paceline.scheduler.core.state.model import TaskPrefix
from paceline.scheduler.core.state.scheduler_state import FIRE_AND_FORGET
from paceline.scheduler.core.state.task_states import TASK_STATES
from paceline.scheduler.core.state.workers.stealing import COST_MULTIPLIERS
from paceline.scheduler.extensions.semaphores import Semaphores
from paceline.scheduler.server.requests.cluster import target_duration_seconds
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
    from paceline.scheduler.server.runtime.measures import LoopLag
    from paceline.scheduler.server.server import Server

#: Number of prefixes with separate rows, the oldest first; the counts of all others are summed.
PREFIX_ROWS_MAX = 1_000
#: Prefixes with longer names have no separate rows, characters.
LABEL_LENGTH_MAX = 200
#: The name of the row with the sums of all other prefixes. No key has this prefix.
OTHER_PREFIXES = "(other)"


#: Name without namespace -> description.
GAUGES: Final = {
    "scheduler_clients": "Number of clients connected",
    "scheduler_desired_workers": "Number of workers scheduler needs for task graph",
    "scheduler_workers": "Number of workers known by scheduler",
    "scheduler_tasks": "Number of tasks known by scheduler",
    "scheduler_task_groups": "Number of task groups known by scheduler",
    "scheduler_tasks_output_bytes": (
        "Current number of bytes in memory (without duplicates) for each prefix"
    ),
    "scheduler_tick_duration_maximum_seconds": (
        "Maximum tick duration observed since Prometheus last scraped metrics"
    ),
    "semaphore_max_leases": "Maximum leases allowed, per semaphore",
    "semaphore_active_leases": "Leases that are in use, per semaphore",
    "semaphore_pending_leases": "Requests that wait for a lease, per semaphore",
    "semaphore_average_pending_lease_time_s": (
        "Moving average of the time to acquire a lease, per semaphore"
    ),
    "paceline_waiting": "Number of items that wait in the scheduler",
    "paceline_tasks_waiting_for_memory": "Queued tasks while they do not fit on free workers",
    "paceline_task_memory_bytes": "Memory that a task of each prefix is expected to take",
    "paceline_outgoing_buffer_bytes": (
        "Bytes that wait to be sent because a peer has not read them"
    ),
    "paceline_connections": "Open connections of all kinds",
    "paceline_share_tasks": "Tasks of share groups that wait for their turn, or are on workers",
    "paceline_share_memory_bytes": "Size of the results of share groups, all copies counted",
    "paceline_durable": "Whether the scheduler survives the death of its process",
    "paceline_restart_seconds": "Duration of the last restart of a durable scheduler's process",
}
#: Name without namespace and without "_total" -> description.
COUNTERS: Final = {
    "scheduler_client_connections_added": "Total number of client connections added",
    "scheduler_client_connections_removed": "Total number of client connections removed",
    "scheduler_workers_added": "Total number of workers added",
    "scheduler_workers_removed": "Total number of workers removed",
    "scheduler_tasks_forgotten": (
        "Total number of processed tasks no longer in memory and already removed from the "
        "scheduler job queue"
    ),
    "scheduler_tasks_suspicious": "Total number of times a task has been marked suspicious",
    "scheduler_tasks_compute_seconds": "Total amount of compute time spent in each prefix",
    "scheduler_tasks_transfer_seconds": "Total amount of transfer time spent in each prefix",
    "scheduler_prefix_state_totals": "Accumulated count of task prefix in each state",
    "stealing_request_count": "Total number of stealing requests per cost multiplier.",
    "stealing_request_cost": "Total cost of stealing requests per cost multiplier.",
    "scheduler_gil_contention_seconds": "GIL contention metric",
    "scheduler_gc_collection_seconds": "Total time spent on garbage collection",
    "scheduler_last_time": "SystemMonitor last time",
    "scheduler_tick_count": "Total number of ticks observed since the server started",
    "semaphore_acquire": "Leases acquired so far, per semaphore",
    "semaphore_release": "Leases released so far, per semaphore",
    "paceline_stimuli": "Counted since the server started",
    "paceline_internal_errors": "Counted since the server started",
    "paceline_restarts": "Processes of a durable scheduler that died and were replaced",
    "paceline_upgrades": "Processes of a durable scheduler that another release has replaced",
    "paceline_repairs": "Differences to workers that were repaired after a restart",
    "paceline_memory_recalls": "Tasks recalled because their worker would run short of memory",
    "paceline_second_copies": "Copies requested because a worker with the only one may be lost",
    "paceline_whole_worker_retries": "Tasks retried alone after their worker ran out of memory",
    "paceline_second_runs": "Second runs of stragglers",
    "paceline_second_runs_won": "Second runs of stragglers that finished first",
    "paceline_share_tasks_finished": "Finished tasks of share groups",
    "paceline_share_thread_seconds": "Compute time of tasks of share groups",
    "paceline_share_byte_seconds": "Size of results of share groups, summed over time",
    "paceline_share_moved_bytes": "Bytes of results of share groups copied between workers",
    "paceline_sampled_messages": "Stimuli of sampled turns, by op",
}
#: Name -> sum of each share group.
SHARE_SUMS: Final = {
    "paceline_share_memory_bytes": "nbytes",
    "paceline_share_tasks_finished": "finished",
    "paceline_share_thread_seconds": "thread_seconds",
    "paceline_share_byte_seconds": "byte_seconds",
    "paceline_share_moved_bytes": "moved_nbytes",
}
PREFIX: Final = ("task_prefix_name",)
#: Name -> names of the labels of its rows.
LABELS: Final = {
    "scheduler_workers": ("state",),
    "scheduler_tasks": ("state",),
    "scheduler_tasks_suspicious": PREFIX,
    "scheduler_tasks_compute_seconds": PREFIX,
    "scheduler_tasks_transfer_seconds": PREFIX,
    "scheduler_tasks_output_bytes": PREFIX,
    "scheduler_prefix_state_totals": (*PREFIX, "state"),
    "stealing_request_count": ("cost_multiplier",),
    "stealing_request_cost": ("cost_multiplier",),
    "paceline_task_memory_bytes": PREFIX,
    "paceline_waiting": ("for",),
    "paceline_share_tasks": ("group", "state"),
    **dict.fromkeys(SHARE_SUMS, ("group",)),
    "paceline_outgoing_buffer_bytes": ("peers", "of"),
    "paceline_sampled_messages": ("op",),
    "paceline_repairs": ("kind",),
    **{name: ("name",) for name in (*GAUGES, *COUNTERS) if name.startswith("semaphore_")},
}

#: Name -> its value, or values of its labels -> value.
Values = dict[str, float | Mapping[Any, float]]


class SchedulerMetrics:
    """The metrics that Prometheus scrapes, and their collector for ``prometheus_client``.

    Args:
        namespace: prefix of every name (stock's ``distributed.dashboard.prometheus.namespace``).
        gc_policy: for the time spent on garbage collection.
    """

    content_type = "text/plain; version=0.0.4"

    def __init__(
        self,
        server: Server,
        loop_lag: LoopLag,
        namespace: str = "dask",
        gc_policy: GcPolicy | None = None,
    ) -> None:
        self._server = server
        self._state = server.state
        self._loop_lag = loop_lag
        self._start = f"{namespace}_" if namespace else ""
        self._gc_policy = gc_policy
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(self)

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
        parts = (self._peers, self._tasks, self._prefixes, self._semaphores, self._process)
        for values in (part() for part in (*parts, self._queues, self._shares)):
            for name, rows in values.items():
                kind, text = (Gauge, GAUGES[name]) if name in GAUGES else (Counter, COUNTERS[name])
                made = kind(self._start + name, text, labels=LABELS.get(name, ()))
                for key, value in rows.items() if isinstance(rows, Mapping) else [((), rows)]:
                    made.add_metric(key if isinstance(key, tuple) else (str(key),), value)
                yield made
        measures = self._server.measures
        compile_text = "Time from the arrival of a graph to the compiler's last reply"
        for name, text, found in (
            ("turn", "Duration of sampled turns", measures.turns),
            ("loop_lag", "Delay of ticks of the event loop", measures.lags),
            ("graph_compile", compile_text, measures.compiles),
        ):
            full_name = f"{self._start}paceline_{name}_seconds"
            yield Histogram(full_name, text, found.buckets(), found.total)

    def _peers(self) -> Values:
        state = self._state
        n_running = len(state.running)
        n_idle, n_saturated = len(state.loads.idle), len(state.loads.saturated)
        n_paused = sum(1 for ws in state.workers.values() if ws.status == "paused")
        target = scaling.adaptive_target(state, target_duration_seconds())
        return {
            "scheduler_clients": sum(1 for name in state.clients if name != FIRE_AND_FORGET),
            "scheduler_client_connections_added": state.client_added_count,
            "scheduler_client_connections_removed": state.client_removed_count,
            "scheduler_desired_workers": target,
            "scheduler_workers": {
                "idle": n_idle,
                "partially_saturated": n_running - n_idle - n_saturated,
                "saturated": n_saturated,
                "paused": n_paused,
                "retiring": len(state.workers) - n_paused - n_running,
            },
            "scheduler_workers_added": state.worker_added_count,
            "scheduler_workers_removed": state.worker_removed_count,
        }

    def _tasks(self) -> Values:
        totals = dict.fromkeys(TASK_STATES, 0)
        for group in self._state.task_groups.values():
            add_up(totals, group.states)
        return {
            "scheduler_tasks_forgotten": totals.pop("forgotten"),
            "scheduler_tasks": totals,
            "scheduler_task_groups": len(self._state.task_groups),
        }

    def _prefixes(self) -> Values:
        found: dict[str, dict[Any, float]]
        found = {name: {} for name, labels in LABELS.items() if PREFIX[0] in labels}
        rows, others = self._rows()
        for name, prefixes in [(p.name, [p]) for p in rows] + [(OTHER_PREFIXES, others)]:
            if not prefixes:
                continue
            durations: dict[str, float] = {}
            counts: dict[str, int] = {}
            for prefix in prefixes:
                add_up(durations, prefix.all_durations)
                add_up(counts, prefix.state_counts)
            found["scheduler_tasks_suspicious"][name] = sum(p.suspicious for p in prefixes)
            found["scheduler_tasks_compute_seconds"][name] = durations.get("compute", 0.0)
            found["scheduler_tasks_transfer_seconds"][name] = durations.get("transfer", 0.0)
            found["scheduler_tasks_output_bytes"][name] = sum(p.nbytes_total for p in prefixes)
            expected = max(p.memory.task_nbytes for p in prefixes)
            found["paceline_task_memory_bytes"][name] = expected
            totals = {(name, state): count for state, count in counts.items()}
            found["scheduler_prefix_state_totals"].update(totals)
        return {**found}

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

    def _process(self) -> Values:
        monitor = self._server.plugins.facade.system_monitor()
        monitor.update()
        driver = self._server.driver
        values: Values = {
            "scheduler_gc_collection_seconds": self._gc_policy.seconds if self._gc_policy else 0.0,
            "scheduler_last_time": monitor.last_time,
            "scheduler_tick_duration_maximum_seconds": self._loop_lag.reset(),
            "scheduler_tick_count": self._loop_lag.count,
            "paceline_stimuli": driver.n_stimuli,
            "paceline_internal_errors": driver.n_core_errors,
            "paceline_memory_recalls": self._state.admission.recalled,
            "paceline_second_copies": self._state.second_copies.requested,
            "paceline_whole_worker_retries": self._state.whole_workers.sent_count,
            "paceline_second_runs": self._state.task_policies.second_run_count,
            "paceline_second_runs_won": self._state.task_policies.second_runs_won,
            "paceline_sampled_messages": self._server.measures.ops,
        }
        durability = self._server.durability
        if durability is not None:
            values["paceline_durable"] = durability.is_complete
            values["paceline_restarts"] = durability.n_restarts
            values["paceline_upgrades"] = durability.n_upgrades
            values["paceline_restart_seconds"] = durability.restart_seconds
            values["paceline_repairs"] = dict(self._state.comparisons.repair_counts)
        if monitor.monitor_gil_contention:
            values["scheduler_gil_contention_seconds"] = monitor.cumulative_gil_contention
        if self._state.config.work_stealing:  # as in stock
            stealing = self._state.stealing
            counts = dict(zip(COST_MULTIPLIERS, stealing.level_counts))
            values["stealing_request_count"] = counts
            values["stealing_request_cost"] = dict(zip(COST_MULTIPLIERS, stealing.level_costs))
        return values

    def _semaphores(self) -> Values:
        semaphores = self._server.core.extensions.get("semaphores")
        if not isinstance(semaphores, Semaphores):
            return {}
        found, names = semaphores.metrics, semaphores.max_leases
        values: dict[str, Mapping[Any, float]] = {
            "semaphore_max_leases": names,
            "semaphore_active_leases": {name: len(semaphores.leases[name]) for name in names},
            "semaphore_pending_leases": found["pending"],
            "semaphore_acquire": found["acquire_total"],
            "semaphore_release": found["release_total"],
            "semaphore_average_pending_lease_time_s": found["average_pending_lease_time"],
        }
        return {metric: {str(n): rows[n] for n in names} for metric, rows in values.items()}

    def _shares(self) -> Values:
        """Return work and usage by share group."""
        groups = share_report(self._state)["groups"]
        tasks = {
            (each["name"], state): each[state]
            for each in groups
            for state in ("processing", "queued")
        }
        by_group = {
            metric: {(each["name"],): each[name] for each in groups}
            for metric, name in SHARE_SUMS.items()
        }
        return {"paceline_share_tasks": tasks, **by_group}

    def _queues(self) -> Values:
        """Return the lengths of queues and the sizes of buffers."""
        server, state, driver = self._server, self._state, self._server.driver
        buffered = {}
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
        return {
            "paceline_waiting": {
                "a later turn": len(state.deferred.recommendations),
                "a free thread": len(state.queued),
                "a worker that may run it": len(state.unrunnable),
                "graphs being taken in": len(state.graphs),
            },
            "paceline_tasks_waiting_for_memory": admission.waiting_count(state),
            "paceline_outgoing_buffer_bytes": buffered,
            "paceline_connections": len(server.transport.comms),
        }
