"""The scheduler's configuration, read from dask's.

Must not know: what a knob does.
"""

from __future__ import annotations

import math
import os
from dataclasses import fields
from typing import Any

import dask.config
import distributed  # noqa: F401  (its defaults join dask's configuration when it is imported)
from dask.utils import parse_bytes, parse_timedelta
from paceline.scheduler.core.config import SchedulerConfig

from . import config_forms
from .annotations import is_plain


class ConfigError(ValueError):
    """A value of dask's configuration is not what its key asks for."""


def scheduler_config(**overrides: Any) -> SchedulerConfig:
    """The core's knobs from dask's configuration.

    Args:
        overrides: fields that the program gives itself (options of the command line); None counts.

    Raises:
        ConfigError: a value cannot be read; the text names its key.
    """
    values: dict[str, Any] = {}
    for knob in fields(SchedulerConfig):
        key = knob.metadata.get("dask")
        if knob.name in overrides or key is None:
            continue
        found = dask.config.get(key, default=None)
        default = knob.default if knob.default_factory is not dict else {}
        try:
            values[knob.name] = read_value(knob.name, found, default)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"`{key}` cannot be {found!r}: {error}") from error
    config = SchedulerConfig(**values, **overrides)
    config.check()
    return config


def read_value(name: str, found: Any, default: Any) -> Any:
    """One value as its field has it: the unit is the last word of the field's name."""
    if name == "default_task_durations_seconds":
        return {prefix: float(parse_timedelta(text)) for prefix, text in (found or {}).items()}
    if found is None:
        return None if default is None or name == "worker_ttl_seconds" else _own(default)
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
    """A number or switch of the default's own type; "inf" is a number."""
    if isinstance(default, bool):
        if isinstance(found, str):
            return found.strip().lower() in ("true", "yes", "on", "1")
        return bool(found)
    if isinstance(default, int):
        number = float(found)
        return int(number) if math.isfinite(number) else number
    if isinstance(default, float):
        return float(found)
    return found


def _own(default: Any) -> Any:
    """The field's default; containers anew."""
    return dict(default) if isinstance(default, dict) else default


def plain() -> dict[str, Any]:
    """dask's whole configuration, for a compiler child, without values that no pipe can carry."""
    return _plain_part(dask.config.config)


def _plain_part(values: dict[Any, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            out[str(name)] = _plain_part(value)
        elif is_plain(value):
            out[str(name)] = value
    return out


def child_environment() -> dict[str, str]:
    """Environment variables for a compiler child: our own, and what keeps it small and its path clean.

    ``sys.path`` goes to the child in ``ChildSetup``; the folder that the scheduler was started in is no part
    of it unless it is of ours. Numeric libraries start no pools of threads for graphs.
    """
    environment = dict(os.environ)
    environment["PYTHONSAFEPATH"] = "1"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment.setdefault(name, "1")
    return environment


# ------------------------------------------------------------------ for the server


def check() -> list[str]:
    """Read every setting that a scheduler has. Returns lines about keys that nobody reads.

    Raises:
        ConfigError: values that cannot be read, a line each: key, value, and what is accepted.
    """
    wrong = list(config_forms.malformed())
    if wrong:
        raise ConfigError(config_forms.text_of(wrong))
    return list(config_forms.unknown())


def initialize() -> None:
    """Set up loggers as the configuration says; importing distributed has done it already."""


def get(key: str, default: Any = None) -> Any:
    """A value of dask's configuration."""
    return dask.config.get(key, default=default)


def default_keys() -> list[str]:
    """All keys that dask and distributed have defaults of, as ``distributed.scheduler.validate``."""
    out: list[str] = []
    for defaults in dask.config.defaults:
        _walk(defaults, "", out)
    return out


def _walk(values: Any, start: str, out: list[str]) -> None:
    for name, value in values.items():
        key = start + str(name).replace("_", "-")
        if isinstance(value, dict) and value:
            _walk(value, key + ".", out)
        else:
            out.append(key)


def seconds(value: Any, default: str = "seconds") -> float | None:
    """``"5 minutes"`` -> 300.0; None, False and "" mean no such time.

    Raises:
        ValueError: it cannot be read.
    """
    if value is None or value is False or value == "":
        return None
    return float(parse_timedelta(value, default=default))
