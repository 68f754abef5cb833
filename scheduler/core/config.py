"""Settings of the core, with the dask configuration keys they come from.

``paceline.workers_compat.config.config`` reads them from dask's configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

#: Ways to measure the memory of a worker: see ``memory.MemoryUse``.
MEASURES = (
    "managed",
    "managed_total",
    "optimistic",
    "process",
    "spilled",
    "unmanaged",
    "unmanaged_old",
    "unmanaged_recent",
)


def setting(default: Any, key: str) -> Any:
    """Return a field that is read from dask's configuration under ``key``."""
    return field(default=default, metadata={"dask": key})


@dataclass(slots=True)
class SchedulerConfig:
    """Configuration of one scheduler. Durations are in seconds, sizes in bytes.

    Raises:
        ValueError: from ``check`` when a value is out of its range.
    """

    allowed_failures: int = setting(3, "distributed.scheduler.allowed-failures")
    bandwidth: float = setting(100_000_000.0, "distributed.scheduler.bandwidth")
    default_data_size_nbytes: int = setting(1024, "distributed.scheduler.default-data-size")
    default_task_durations_seconds: dict[str, float] = field(
        default_factory=dict, metadata={"dask": "distributed.scheduler.default-task-durations"}
    )
    unknown_task_duration_seconds: float = setting(
        0.5, "distributed.scheduler.unknown-task-duration"
    )
    worker_saturation: float = setting(1.1, "distributed.scheduler.worker-saturation")
    rootish_taskgroup: int = setting(5, "distributed.scheduler.rootish-taskgroup")
    rootish_taskgroup_dependencies: int = setting(
        5, "distributed.scheduler.rootish-taskgroup-dependencies"
    )
    worker_ttl_seconds: float | None = setting(300.0, "distributed.scheduler.worker-ttl")
    idle_timeout_seconds: float | None = setting(None, "distributed.scheduler.idle-timeout")
    no_workers_timeout_seconds: float | None = setting(
        None, "distributed.scheduler.no-workers-timeout"
    )
    # seconds for which keys of a client whose connection broke are kept; 0 as in stock
    client_grace_seconds: float = setting(0.0, "paceline.scheduler.client-grace")
    client_grace_nbytes: int = setting(2**30, "paceline.scheduler.client-grace-bytes")
    # seconds to wait for running tasks of a retiring worker; stock does not wait
    retire_running_seconds: float = setting(30.0, "paceline.scheduler.retire-running")
    # whether a worker with a run that was given up and does not end is restarted by its nanny
    restart_stuck_workers: bool = setting(False, "paceline.scheduler.restart-stuck-workers")
    events_cleanup_delay_seconds: float = setting(
        3600.0, "distributed.scheduler.events-cleanup-delay"
    )
    validate: bool = setting(False, "distributed.scheduler.validate")
    low_level_log_length: int = setting(1000, "distributed.admin.low-level-log-length")
    memory_recent_to_old_seconds: float = setting(
        30.0, "distributed.worker.memory.recent-to-old-time"
    )
    memory_terminate: float | bool = setting(0.95, "distributed.worker.memory.terminate")
    locks_lease_timeout_seconds: float = setting(30.0, "distributed.scheduler.locks.lease-timeout")
    locks_lease_validation_interval_seconds: float = setting(
        10.0, "distributed.scheduler.locks.lease-validation-interval"
    )
    amm_start: bool = setting(True, "distributed.scheduler.active-memory-manager.start")
    amm_interval_seconds: float = setting(
        2.0, "distributed.scheduler.active-memory-manager.interval"
    )
    amm_measure: str = setting("optimistic", "distributed.scheduler.active-memory-manager.measure")
    rebalance_measure: str = setting("optimistic", "distributed.worker.memory.rebalance.measure")
    rebalance_sender_min: float = setting(0.3, "distributed.worker.memory.rebalance.sender-min")
    rebalance_recipient_max: float = setting(
        0.6, "distributed.worker.memory.rebalance.recipient-max"
    )
    rebalance_gap: float = setting(0.1, "distributed.worker.memory.rebalance.sender-recipient-gap")
    work_stealing: bool = setting(True, "distributed.scheduler.work-stealing")
    work_stealing_interval_seconds: float = setting(
        1.0, "distributed.scheduler.work-stealing-interval"
    )
    computations_max: int = setting(100, "distributed.diagnostics.computations.max-history")
    erred_tasks_max: int = setting(100, "distributed.diagnostics.erred-tasks.max-history")
    turn_tasks_max: int = 2000
    # checks made on each tick; only programs can switch them off (``periodic_callbacks``)
    watch_worker_ttl: bool = True
    watch_no_workers: bool = True
    watch_idle: bool = True

    def check(self) -> None:
        """Check all values.

        Raises:
            ValueError: a value is out of range; the message names the setting.
        """
        keys = self.dask_keys()
        for name in ("amm_measure", "rebalance_measure"):
            if getattr(self, name) not in MEASURES:
                raise ValueError(f"{keys[name]} must be one of {', '.join(MEASURES)}")
        for name, holds, rule in (
            ("worker_saturation", self.worker_saturation > 0, "a float > 0"),
            ("bandwidth", self.bandwidth > 0, "> 0"),
            ("retire_running_seconds", self.retire_running_seconds >= 0, ">= 0"),
            ("work_stealing_interval_seconds", self.work_stealing_interval_seconds > 0, "> 0"),
            ("turn_tasks_max", self.turn_tasks_max >= 1, "at least 1"),
        ):
            if not holds:
                value = getattr(self, name)
                raise ValueError(f"`{keys.get(name, name)}` must be {rule}; got {value!r}")

    @classmethod
    def dask_keys(cls) -> dict[str, str]:
        """Return field name -> dask configuration key."""
        return {f.name: f.metadata["dask"] for f in fields(cls) if "dask" in f.metadata}
