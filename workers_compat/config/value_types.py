"""Types of configuration values: their description in errors and documentation, and their test."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dask.utils import parse_bytes, parse_timedelta
from paceline.scheduler.core.config import CAP_KINDS, MEASURES, NO_CAP, check_group_settings
from paceline.workers_compat.graphs.policies import check_configured

from .settings import OFF, ON


class InvalidPart(ValueError):
    """A part of a value that is a mapping is invalid; the text names the part."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of configuration values: its description in error messages, and a test of values.

    If ``accepts`` raises ValueError, TypeError or KeyError, the value is invalid.
    """

    description: str
    accepts: Callable[[Any], bool]


def is_duration(value: Any) -> bool:
    """Return whether `value` is a duration of 0 or more."""
    return not isinstance(value, bool) and bool(parse_timedelta(value, default="seconds") >= 0)


def is_size(value: Any) -> bool:
    """Return whether `value` is a size of 0 bytes or more."""
    return not isinstance(value, bool) and bool(parse_bytes(value) >= 0)


def _is_positive(value: Any) -> bool:
    return not isinstance(value, bool) and float(value) > 0


def is_integer(value: Any, minimum: float = -math.inf) -> bool:
    """Return whether ``value`` is a whole number or infinite, and at least ``minimum``."""
    number = float(value)
    is_whole = math.isinf(number) or number == int(number)
    return not isinstance(value, bool) and is_whole and number >= minimum


def _is_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in (*ON, *OFF)
    return isinstance(value, int)


def is_text(value: Any) -> bool:
    """Return whether `value` is a text or a path."""
    return isinstance(value, str | os.PathLike)


def is_text_or_texts(value: Any) -> bool:
    """Return whether `value` is a text or a list of texts."""
    return isinstance(value, str | list | tuple) and all(isinstance(each, str) for each in value)


def are_share_groups(value: Any) -> bool:
    """Return whether `value` maps share groups to settings. Raise InvalidPart if one is wrong."""
    for group, settings in dict(value).items():
        try:
            check_group_settings(group, share_settings(settings))
        except ValueError as error:
            raise InvalidPart(str(error)) from error
    return True


def are_client_groups(value: Any) -> bool:
    """Return whether `value` maps patterns to share groups. Raise InvalidPart for a wrong name."""
    for group in dict(value).values():
        if not isinstance(group, str):
            return False
        try:
            check_group_settings(group, {})
        except ValueError as error:
            raise InvalidPart(str(error)) from error
    return True


def share_settings(settings: Any) -> Any:
    """Return the `settings` of a share group with numbers for "none", null and sizes.

    None stands for no settings. Other values are returned as they are.
    """
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        return settings
    return {name: _share_setting(name, value) for name, value in settings.items()}


def _share_setting(name: str, value: Any) -> Any:
    if name in CAP_KINDS and (value is None or value == "none"):
        return NO_CAP
    if name == "memory" and isinstance(value, str):
        with contextlib.suppress(ValueError, OverflowError):
            return int(parse_bytes(value))
    return value


def are_policies(value: Any) -> bool:
    """Return whether `value` maps patterns to valid policies. Raise InvalidPart if one is not."""
    if not all(isinstance(options, Mapping) for options in dict(value).values()):
        return False
    try:
        check_configured(dict(value))
    except ValueError as error:
        raise InvalidPart(str(error)) from error
    return True


DURATION = ValueType('a duration, as "5 minutes", "500ms" or 300 (seconds)', is_duration)
MILLISECONDS = ValueType(
    'a duration or a number of milliseconds, as "1s", "500ms" or 500', is_duration
)
POSITIVE_DURATION = ValueType(
    'a duration above 0, as "5 minutes", "500ms" or 300 (seconds)',
    lambda value: is_duration(value) and parse_timedelta(value, default="seconds") > 0,
)
SIZE = ValueType('a size, as "10 MiB", "1 GB" or a number of bytes', is_size)
POSITIVE_SIZE = ValueType(
    'a size above 0, as "10 MiB", "1 GB" or a number of bytes',
    lambda value: is_size(value) and parse_bytes(value) > 0,
)
SPEED = ValueType(
    'bytes per second above 0, as "100 MB" or 100000000',
    lambda value: _is_positive(parse_bytes(value)),
)
COUNT = ValueType("a whole number from 0 up", lambda value: is_integer(value, 0))
POSITIVE_COUNT = ValueType(
    "a whole number from 1 up", lambda value: is_integer(value, 1) and math.isfinite(float(value))
)
# as in stock, False means 0; xgboost's tests set it
FAILURES = ValueType(COUNT.description, lambda value: value is False or COUNT.accepts(value))
NUMBER = ValueType(
    "a number", lambda value: not isinstance(value, bool) and math.isfinite(float(value))
)
POSITIVE = ValueType('a number above 0, or "inf"', _is_positive)
BOOL = ValueType("true or false", _is_bool)
TEXT = ValueType("text", is_text)
FILE = ValueType("the path of a file", is_text)
TEXTS = ValueType("a list of texts, as [a, b]", is_text_or_texts)
ARGUMENTS = ValueType(
    "a list of texts, as [--option, value]", lambda value: isinstance(value, str | list | tuple)
)
MEASURE = ValueType(
    'a way to measure memory, as "optimistic", "managed" or "process"',
    lambda value: value in MEASURES,
)
TLS_VERSION = ValueType("1.2 or 1.3", lambda value: float(value) in (1.2, 1.3))
