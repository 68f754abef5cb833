"""Dask's configuration as this scheduler reads it: the core's knobs, logging, and what a child process inherits.

Must not know: what a knob does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

import dask
from dask.utils import parse_bytes, parse_timedelta

from paceline.scheduler.core.config import SchedulerConfig

#: The environment variable in which dask hands its configuration to child processes.
INHERIT_VARIABLE = "DASK_INTERNAL_INHERIT_CONFIG"


def initialize() -> None:
    """Load distributed's defaults and set up its loggers, as importing distributed does."""
    import distributed.config  # noqa: F401  (the import is the effect)


def get(key: str, default: Any = None) -> Any:
    """A value of dask's configuration."""
    return dask.config.get(key, default=default)


def seconds(value: Any, default: str = "seconds") -> float | None:
    """``"5 minutes"`` -> 300.0; None, False and "" mean no such time.

    Raises:
        ValueError: it cannot be read.
    """
    if value is None or value is False or value == "":
        return None
    return float(parse_timedelta(value, default=default))


def scheduler_config(**overrides: Any) -> SchedulerConfig:
    """The core's knobs from dask's configuration; ``overrides`` that are not None win.

    Raises:
        ValueError: a value cannot be read, or is out of its range.
    """
    initialize()
    values: dict[str, Any] = {}
    for field in dataclasses.fields(SchedulerConfig):
        key = field.metadata.get("dask")
        value = overrides.get(field.name)
        if value is None:
            if key is None:
                continue
            value = dask.config.get(key, default=_MISSING)
            if value is _MISSING:
                continue
        values[field.name] = _convert(field.name, value)
    config = SchedulerConfig(**values)
    config.check()
    return config


_MISSING = object()


def _convert(name: str, value: Any) -> Any:
    """A configured value in the knob's unit."""
    if name == "bandwidth":
        return float(parse_bytes(value))
    if name.endswith("_nbytes"):
        return int(parse_bytes(value))
    if isinstance(value, dict) and name.endswith("_durations_seconds"):
        return {prefix: float(parse_timedelta(t)) for prefix, t in value.items()}
    if name.endswith("_seconds"):
        return seconds(value)
    if name == "worker_saturation":
        return float(value)
    return value


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of our own process: uvloop, unless the configuration asks for asyncio's."""
    if sys.platform == "win32":
        return asyncio.SelectorEventLoop
    if get("distributed.admin.event-loop") == "asyncio":
        return None
    import uvloop

    return uvloop.new_event_loop


def child_environment() -> dict[str, str]:
    """Environment variables with which a child process has our configuration and import path."""
    environment = dict(os.environ)
    environment[INHERIT_VARIABLE] = dask.config.serialize(dask.config.global_config)
    paths = [os.path.abspath(p) if p else os.getcwd() for p in sys.path]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return environment


def plain() -> dict[str, Any]:
    """The whole configuration as plain values, for a child process."""
    return {str(key): _plain(value) for key, value in dask.config.config.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
