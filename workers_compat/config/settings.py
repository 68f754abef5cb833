"""Read settings that YAML files and environment variables write in several forms."""

from __future__ import annotations

from typing import Any

import dask.config

#: Texts that mean true and false, in lower case.
ON = ("true", "yes", "on", "1")
OFF = ("false", "no", "off", "0")


def as_bool(value: Any) -> bool:
    """Convert a value that the schema accepts as true or false, which may be a text."""
    return value.strip().lower() in ON if isinstance(value, str) else bool(value)


def is_off(value: Any) -> bool:
    """Return whether a value, which may be a text, means false."""
    return str(value).strip().lower() in OFF


def is_on(key: str, default: bool = True) -> bool:
    """Return a setting that is true or false; `default` if it is None, empty or not set."""
    value = dask.config.get(key, default=None)
    return default if value is None or value == "" else as_bool(value)


def texts(key: str) -> list[str]:
    """Return a setting that is a list of texts or one text; empty if it is not set."""
    value = dask.config.get(key, default=None) or []
    return [value] if isinstance(value, str) else list(value)
