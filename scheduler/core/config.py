"""Settings of the core, with the dask configuration keys they come from.

``paceline.workers_compat.config.config`` reads them from dask's configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf, isnan
from types import MappingProxyType
from typing import Any, Final

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

#: Limits of the weight of a share group.
WEIGHT_MIN, WEIGHT_MAX = 1e-6, 1e6
#: Largest priority class of a share group; the smallest is its negative.
CLASS_MAX = 1_000_000
#: Characters of the name of a share group.
GROUP_NAME_MAX = 200
CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f]")
#: Settings of a share group, with the values of those that are not configured.
NO_CAP = -1.0
SHARE_DEFAULTS: Mapping[str, float] = MappingProxyType(
    {
        "weight": 1.0,
        "class": 0.0,
        "threads": NO_CAP,
        "tasks": NO_CAP,
        "memory": NO_CAP,
    }
)
#: The caps among them, with the kind of their values.
CAP_KINDS: Mapping[str, str] = MappingProxyType(
    {"threads": "a whole number", "tasks": "a whole number", "memory": 'a size, as "10 GiB"'}
)
#: How errors describe the value that removes a cap.
NO_CAP_TEXT = '"none" for no cap'

#: (up to n workers, seconds between heartbeats); see ``heartbeat_interval``.
HEARTBEAT_STEPS: Final = ((10, 0.5), (49, 1.0), (199, 2.0))
#: Heartbeats per second beyond these steps.
HEARTBEATS_PER_SECOND_MAX: Final = 200


def setting(default: Any, key: str) -> Any:
    """Return a field that is read from dask's configuration under ``key``."""
    return field(default=default, metadata={"dask": key})


def heartbeat_interval(n_workers: int) -> float:
    """Return the seconds between two heartbeats of a worker."""
    for upto, seconds in HEARTBEAT_STEPS:
        if n_workers <= upto:
            return seconds
    return n_workers / HEARTBEATS_PER_SECOND_MAX + 1


def check_group_settings(name: str, settings: Any) -> None:
    """Check the name and the settings of the share group `name`.

    Raises:
        ValueError: an invalid name, an unknown setting, or a value out of range.
    """
    if not 0 < len(name) <= GROUP_NAME_MAX or CONTROL_CHARACTERS.search(name):
        raise ValueError(
            f"the name of a share group must have 1 to {GROUP_NAME_MAX} characters, none of them "
            f"control characters; got {name!r:.{GROUP_NAME_MAX}}"
        )
    if not isinstance(settings, dict):
        raise ValueError(f"share group {name!r} must be a mapping of settings; got {settings!r}")
    for key, value in settings.items():
        if key not in SHARE_DEFAULTS:
            raise ValueError(
                f"share group {name!r} has the unknown setting {key!r}; "
                f"use {', '.join(SHARE_DEFAULTS)}"
            )
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or isnan(value):
            kind = f"{CAP_KINDS[key]}, or {NO_CAP_TEXT}" if key in CAP_KINDS else "a number"
            raise ValueError(f"{key} of share group {name!r} must be {kind}; got {value!r}")
        if key == "weight" and not WEIGHT_MIN <= value <= WEIGHT_MAX:
            raise ValueError(
                f"weight of share group {name!r} must be from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}; "
                f"got {value!r}"
            )
        if key == "class" and (abs(value) > CLASS_MAX or value != int(value)):
            raise ValueError(
                f"class of share group {name!r} must be an integer from -{CLASS_MAX} to "
                f"{CLASS_MAX}; got {value!r}"
            )
        if key in CAP_KINDS and value != NO_CAP and not 0 <= value < inf:
            raise ValueError(
                f"{key} of share group {name!r} must be >= 0 and finite, or {NO_CAP_TEXT}; "
                f"got {value!r}"
            )
        if key in ("threads", "tasks") and value != int(value):
            raise ValueError(f"{key} of share group {name!r} must be a whole number; got {value!r}")


@dataclass(slots=True)
class SchedulerConfig:
    """Configuration of one scheduler. Durations are in seconds, sizes in bytes.

    ``paceline.workers_compat.config.schema`` describes the keys of paceline.

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
    client_grace_seconds: float = setting(0.0, "paceline.scheduler.client-grace")
    client_grace_nbytes: int = setting(2**30, "paceline.scheduler.client-grace-bytes")
    retire_running_seconds: float = setting(30.0, "paceline.scheduler.retire-running")
    restart_stuck_workers: bool = setting(False, "paceline.scheduler.restart-stuck-workers")
    adaptive_grace_seconds: float = setting(30.0, "paceline.scheduler.adaptive-grace")
    speculation: bool = setting(False, "paceline.scheduler.speculation")
    speculation_factor: float = setting(3.0, "paceline.scheduler.speculation-factor")
    coassigned_tasks: int = setting(2, "paceline.scheduler.coassigned-tasks")
    fetch_weight: float = setting(4.0, "paceline.scheduler.fetch-weight")
    second_copies: bool = setting(True, "paceline.scheduler.second-copies")
    whole_worker_retry: bool = setting(True, "paceline.scheduler.whole-worker-retry")
    memory_admission: float | bool = setting(0.7, "paceline.scheduler.memory-admission")
    events_cleanup_delay_seconds: float = setting(
        3600.0, "distributed.scheduler.events-cleanup-delay"
    )
    validate: bool = setting(False, "distributed.scheduler.validate")
    low_level_log_length: int = setting(1000, "distributed.admin.low-level-log-length")
    memory_recent_to_old_seconds: float = setting(
        30.0, "distributed.worker.memory.recent-to-old-time"
    )
    memory_terminate: float | bool = setting(0.95, "distributed.worker.memory.terminate")
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
    shares_enabled: bool = setting(True, "paceline.shares.enabled")
    shares_half_life_seconds: float = setting(60.0, "paceline.shares.half-life")
    shares_groups: dict[str, dict[str, float]] = field(
        default_factory=dict, metadata={"dask": "paceline.shares.groups"}
    )
    shares_clients: dict[str, str] = field(
        default_factory=dict, metadata={"dask": "paceline.shares.clients"}
    )
    shares_annotations: bool = setting(False, "paceline.shares.annotations")
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
            ("coassigned_tasks", self.coassigned_tasks >= 0, ">= 0"),
            ("fetch_weight", 0 < self.fetch_weight < inf, "a finite number > 0"),
            ("memory_admission", self.memory_admission <= 1, "false or a number up to 1"),
            ("speculation_factor", self.speculation_factor > 1, "> 1"),
            ("adaptive_grace_seconds", self.adaptive_grace_seconds >= 0, ">= 0"),
            ("retire_running_seconds", self.retire_running_seconds >= 0, ">= 0"),
            ("work_stealing_interval_seconds", self.work_stealing_interval_seconds > 0, "> 0"),
            ("turn_tasks_max", self.turn_tasks_max >= 1, "at least 1"),
            ("shares_half_life_seconds", self.shares_half_life_seconds > 0, "> 0"),
        ):
            if not holds:
                value = getattr(self, name)
                raise ValueError(f"`{keys.get(name, name)}` must be {rule}; got {value!r}")
        for group, settings in self.shares_groups.items():
            check_group_settings(group, settings)
        for group in self.shares_clients.values():
            check_group_settings(group, {})

    @classmethod
    def dask_keys(cls) -> dict[str, str]:
        """Return field name -> dask configuration key."""
        return {f.name: f.metadata["dask"] for f in fields(cls) if "dask" in f.metadata}
