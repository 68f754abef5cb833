"""Read the scheduler's settings from dask's configuration."""

from __future__ import annotations

import copy
import math
import os
import pickle
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import dask.config
import distributed  # noqa: F401  (its defaults join dask's configuration when it is imported)
from dask.utils import parse_bytes, parse_timedelta
from distributed.protocol.pickle import dumps
from distributed.system import MEMORY_LIMIT
from paceline.scheduler.core.config import SchedulerConfig
from paceline.workers_compat.graphs import policies
from paceline.workers_compat.graphs.annotations import is_plain

from . import schema
from .settings import as_bool, is_on
from .value_types import share_settings

#: Default of `paceline.graph-compiler.timeout`.
GRAPH_COMPILER_TIMEOUT = "10 minutes"


class ConfigError(ValueError):
    """A value of dask's configuration is invalid."""


def scheduler_config(**overrides: Any) -> SchedulerConfig:
    """Return the core's settings from dask's configuration.

    `overrides` are fields set by the program (options of the command line), including None. Raise
    ConfigError with the key of a value that is invalid.
    """
    values: dict[str, Any] = {}
    for setting in fields(SchedulerConfig):
        key = setting.metadata.get("dask")
        if setting.name in overrides or key is None:
            continue
        found = dask.config.get(key, default=None)
        default = setting.default if setting.default_factory is not dict else {}
        try:
            values[setting.name] = read_value(setting.name, found, default)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise ConfigError(f"`{key}` cannot be {found!r}: {error}") from error
    config = SchedulerConfig(**values, **overrides)
    config.check()
    return config


def read_value(name: str, found: Any, default: Any) -> Any:
    """Convert ``found`` for the field ``name``, whose last word is its unit."""
    if name == "default_task_durations_seconds":
        return {prefix: float(parse_timedelta(text)) for prefix, text in (found or {}).items()}
    if name == "shares_groups":
        return {group: share_settings(each) for group, each in (found or {}).items()}
    if name == "shares_clients":
        return {str(pattern): str(group) for pattern, group in (found or {}).items()}
    if found is None or found == "":
        return None if default is None or name == "worker_ttl_seconds" else copy.copy(default)
    if name == "work_stealing_interval_seconds":
        return float(parse_timedelta(found, default="ms"))
    if name.endswith("_seconds"):
        return float(parse_timedelta(found))
    if name.endswith("_nbytes"):
        return int(parse_bytes(found))
    if name == "bandwidth":
        return float(parse_bytes(found))
    if name == "memory_terminate":
        return found if found is False else float(found)
    return _as_number(found, default)


def _as_number(found: Any, default: Any) -> Any:
    """Convert to the type of ``default``; "inf" is a number."""
    if isinstance(default, bool):
        return as_bool(found)
    if isinstance(default, int):
        number = float(found)
        return int(number) if math.isfinite(number) else number
    if isinstance(default, float):
        return float(found)
    return found


def plain_config(values: Any = None) -> dict[str, Any]:
    """Return dask's configuration, or a part of it, without values that are not plain data."""
    out: dict[str, Any] = {}
    for name, value in (dask.config.config if values is None else values).items():
        if isinstance(value, dict):
            out[str(name)] = plain_config(value)
        elif is_plain(value):
            out[str(name)] = value
    return out


def child_environment() -> dict[str, str]:
    """Return the environment variables of a child process.

    ``PYTHONSAFEPATH`` keeps the working directory out of its ``sys.path``, which ``ChildSetup``
    sets to that of this process. Numeric libraries start no thread pools.
    """
    environment = dict(os.environ)
    environment["PYTHONSAFEPATH"] = "1"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment.setdefault(name, "1")
    return environment


def inherited() -> dict[str, str]:
    """Return the environment variable that passes this configuration to dask in a child process."""
    return {"DASK_INTERNAL_INHERIT_CONFIG": dask.config.serialize(dask.config.global_config)}


def graph_compiler_timeout_seconds() -> float | None:
    """Return the time without progress after which a graph compiler is stopped, if any."""
    return seconds(get("paceline.graph-compiler.timeout", GRAPH_COMPILER_TIMEOUT)) or None


def graph_compiler_memory_limit_nbytes() -> int:
    """Return the memory limit of a graph compiler; 0 for no limit.

    The default is half of the memory of this machine or container.
    """
    limit = nbytes(get("paceline.graph-compiler.memory-limit"))
    return MEMORY_LIMIT // 2 if limit is None else limit


def check() -> list[str]:
    """Validate all settings of a scheduler. Return lines to warn of.

    These are unknown keys, and deadlines that have passed.

    Raise ConfigError with a line for each invalid value: its key and the accepted values.
    """
    invalid = list(schema.invalid_values())
    if invalid:
        raise ConfigError(schema.join_lines(invalid))
    configured = dask.config.get(policies.CONFIG_KEY, default=None) or {}
    return [*schema.unknown_keys(), *policies.passed_deadlines(configured, time.time())]


def get(key: str, default: Any = None) -> Any:
    """Return a value of dask's configuration; `default` if it is not set or empty."""
    value = dask.config.get(key, default=default)
    return default if value == "" else value


def default_keys() -> list[str]:
    """Return all keys that have a default in dask or distributed."""
    return [key for defaults in dask.config.defaults for key in schema.leaves(defaults)]


def nbytes(value: Any) -> int | None:
    """Return a size in bytes: 10485760 for ``"10 MiB"``; None for None and ""."""
    return None if value is None or value == "" else int(parse_bytes(value))


def seconds(value: Any, default: str = "seconds") -> float | None:
    """Return a duration in seconds: 300.0 for ``"5 minutes"``; None for None, False and ""."""
    if value is None or value is False or value == "":
        return None
    return float(parse_timedelta(value, default=default))


def worker_plugins() -> dict[str, bytes]:
    """Return name -> pickled plugin for all workers: those of settings, and that of a transfer."""
    plugins = {}
    if is_on("paceline.scheduler.worker-ends"):
        plugins["paceline-worker-end"] = pickle.dumps(_PluginSource("worker_end", "WorkerEnd"))
    if is_on("paceline.scheduler.task-peaks", default=False):
        plugins["paceline-task-peaks"] = pickle.dumps(_PluginSource("task_peaks", "TaskPeaks"))
    if dask.config.get("paceline.transfer", None):
        from paceline.transfer.plugin import NAME, configured_transfer

        plugins[NAME] = bytes(dumps(configured_transfer()))
    return plugins


class _PluginSource:
    """Pickled as source text, so that it becomes a worker plugin where paceline is missing.

    Unlike a pickle of the class, it does not depend on the Python version of the worker.

    Args:
        module: file name without suffix, in ``workers_compat``.
        plugin: the name of its class.
    """

    def __init__(self, module: str, plugin: str) -> None:
        self._module = module
        self._plugin = plugin

    def __reduce__(self) -> tuple[Any, ...]:
        source = (Path(__file__).parents[1] / f"{self._module}.py").read_text(encoding="utf-8")
        namespace = {"__name__": f"paceline_{self._module}", "source": source}
        return eval, (f"(exec(source), {self._plugin}())[1]", namespace)
