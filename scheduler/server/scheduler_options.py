"""Checks of the options of ``Scheduler``, and those that are settings of the core."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.server.durable.durability import NOT_DURABLE
from paceline.workers_compat.config import config as dask_config

logger = logging.getLogger("distributed.scheduler")

#: Options without a meaning here. Stock ignores `service_kwargs`, too; `transition_counter_max`
#: detects endless transitions in its tests. No file is written to `local_directory`.
IGNORED = frozenset((
    "durable", "local_directory", "loop", "needs_workdir", "service_kwargs",
    "transition_counter_max",
))  # fmt: skip


def core_config(
    idle_timeout: Any, worker_ttl: Any, allowed_failures: int | None, validate: bool | None
) -> SchedulerConfig:
    """Return the core's configuration with the options given. A duration 0 is none, as in stock."""
    overrides = {
        "idle_timeout_seconds": dask_config.seconds(idle_timeout or None),
        "worker_ttl_seconds": dask_config.seconds(worker_ttl or None),
        "allowed_failures": allowed_failures,
        "validate": validate,
    }
    given = {name: value for name, value in overrides.items() if value is not None}
    return dask_config.scheduler_config(**given)


def check_options(options: dict[str, Any]) -> None:
    """Check the configuration, and keyword arguments that ``Scheduler`` does not implement."""
    for name, value in options.items():
        if name == "durable" and value:
            raise ValueError(f"durable= is not possible: {NOT_DURABLE}")
        if name == "extensions":
            warnings.warn(f"the option {name}= has no effect on paceline", stacklevel=3)
        elif name not in IGNORED:
            raise TypeError(f"unexpected keyword argument {name!r}")
    for line in dask_config.check():
        logger.warning("%s", line)
