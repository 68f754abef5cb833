"""Policies of tasks: annotations and configuration to ``TaskPolicy``, with a check of every value.

``paceline.scheduler.policies`` maps patterns of task prefixes to options, which are annotations for
all tasks whose prefix matches. Annotations take precedence, and later patterns over earlier ones.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import operator
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from numbers import Real
from types import MappingProxyType
from typing import Any

import dask.config
from dask.utils import parse_timedelta
from paceline.scheduler.core.task_policy import TaskPolicy

from .plain_keys import is_encodable

#: Key of the configuration.
CONFIG_KEY = "paceline.scheduler.policies"
#: Largest ``retry_backoff``.
FACTOR_MAX = 1_000
#: Longest ``deadline`` that is a duration. A larger number is the time of a clock by mistake.
DEADLINE_MAX_SECONDS = 10 * 366 * 86_400


def configured(prefix: str) -> dict[str, Any]:
    """Return the annotations that the configuration sets for tasks of `prefix`."""
    found: dict[str, Any] = {}
    for pattern, options in (dask.config.get(CONFIG_KEY, default=None) or {}).items():
        if fnmatchcase(prefix, str(pattern)):
            found.update({option_name(name): value for name, value in options.items()})
    return found


def check_configured(policies: Mapping[Any, Any]) -> None:
    """Check the names and values of the options in the value of ``CONFIG_KEY``.

    Exception classes are not imported, and options that contradict or need others are not refused,
    because an annotation or another pattern can change those.

    Raises:
        ValueError: an option is invalid. The text names its pattern.
    """
    for pattern, options in policies.items():
        try:
            for name, value in options.items():
                if value is not None:
                    _read(option_name(name), value)
        except (TypeError, ValueError) as error:
            text = str(error).removeprefix("the annotation ")
            raise ValueError(f"in {pattern!r}, {text}") from error


def option_name(name: str) -> str:
    """Return the annotation for an option, which may be written with hyphens.

    Raises:
        ValueError: there is no such option.
    """
    found = str(name).replace("-", "_")
    if found not in OPTIONS:
        options = ", ".join(sorted(OPTIONS))
        raise ValueError(f"{name!r} is not a policy; the policies are {options}")
    return found


def task_policy(found: Mapping[str, Any], received_at: float) -> TaskPolicy | None:
    """Return the policies among the annotations `found` of a task; None if there are none.

    `received_at` is the time at which the graph arrived, in seconds since the epoch. A value of
    None is ignored.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of its range, or contradicts another one.
        TimeoutError: the deadline had passed when the graph arrived.
    """
    given = {name: found[name] for name in POLICIES if found.get(name) is not None}
    if not given:
        return None
    values = {
        FIELDS.get(name, name): _read(name, value, received_at) for name, value in given.items()
    }
    if "deadline" in given:
        when: datetime = values["deadline"]
        values["deadline"] = when.timestamp()
        values["deadline_text"] = when.isoformat(sep=" ", timespec="seconds")
        if when.timestamp() <= received_at:
            raise TimeoutError(
                f"the annotation 'deadline'={given['deadline']!r} had passed when the graph arrived"
            )
    if "retry_on" in given:
        values["retry_on"] = sorted({_exception_name(each) for each in values["retry_on"]})
    policy = TaskPolicy(**values)
    if policy.speculative and not policy.pure:
        raise ValueError("the annotations 'speculative'=True and 'pure'=False contradict")
    _check_retries(policy, given, has_retries=found.get("retries") is not None)
    return policy


def _check_retries(policy: TaskPolicy, given: Mapping[str, Any], has_retries: bool) -> None:
    """Raise ValueError if a policy about retries in `given` lacks or contradicts another one."""
    retries = [name for name in given if name.startswith("retry_")]
    if retries and not has_retries:
        raise ValueError(
            f"the annotation {retries[0]!r}={given[retries[0]]!r} needs the annotation "
            "'retries', the number of retries"
        )
    for name in ("retry_backoff", "retry_delay_max"):
        if name in given and not policy.retry_delay_seconds:
            raise ValueError(
                f"the annotation {name!r}={given[name]!r} needs a 'retry_delay' of more than 0"
            )
    if "retry_delay_max" in given and policy.retry_delay_max_seconds < policy.retry_delay_seconds:
        raise ValueError(
            f"the annotation 'retry_delay_max'={given['retry_delay_max']!r} is less than "
            f"'retry_delay'={given['retry_delay']!r}"
        )


def _read(name: str, value: Any, received_at: float = 0.0) -> Any:
    """Return the value of an option, checked and converted. Raises TypeError or ValueError.

    The exception classes of ``retry_on`` are not imported yet.
    """
    return _deadline(value, received_at) if name == "deadline" else READERS[name](name, value)


def _exceptions(name: str, value: Any) -> Collection[Any]:
    """Return the given exception classes and names, which are not imported."""
    given = value if isinstance(value, tuple | list | set | frozenset) else [value]
    if not given:
        raise ValueError(f"the annotation {name!r} must name an exception class, not {value!r}")
    for each in given:
        if not isinstance(each, str):
            _check_exception(each, each)
    return given


def _exception_name(given: Any) -> str:
    found = _imported(given) if isinstance(given, str) else given
    _check_exception(found, given)
    return full_name(found)


def _check_exception(found: Any, given: Any) -> None:
    if not isinstance(found, type) or not issubclass(found, BaseException):
        raise TypeError(
            "the annotation 'retry_on' must be an exception class, the name of one, or a tuple of "
            f"those, not {given!r}"
        )


def full_name(cls: type) -> str:
    """Return the name of a class with its module, by which exception classes are compared."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _imported(name: str) -> Any:
    """Return what ``package.module.Class`` names; a name without a module is built in."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module or "builtins"), attribute)
    except Exception as error:
        raise ValueError(
            f"the annotation 'retry_on' names {name!r}, which the scheduler cannot import: "
            f"{type(error).__name__}: {error}"
        ) from error


def _factor(name: str, value: Any) -> float:
    """Return a factor from 1 to ``FACTOR_MAX``."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number:
        raise TypeError(f"the annotation {name!r} must be a number, not {value!r}")
    if not 1 <= value <= FACTOR_MAX:
        raise ValueError(f"the annotation {name!r} must be from 1 to {FACTOR_MAX}, not {value!r}")
    return float(value)


def plain_count(name: str, value: Any) -> int:
    """Return a number of times, which is not negative. Raises TypeError or ValueError."""
    try:
        count = operator.index(value)
    except TypeError as error:
        raise TypeError(f"the annotation {name!r} must be an int, not {value!r}") from error
    if count < 0:
        raise ValueError(f"the annotation {name!r} must be 0 or more, not {value!r}")
    if not is_encodable(count):
        raise ValueError(f"the annotation {name!r} must have at most 64 bits, not {value!r}")
    return int(count)


def flag(name: str, value: Any) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise TypeError(f"the annotation {name!r} must be True or False, not {value!r}")
    return value


def duration(name: str, value: Any, may_be_zero: bool = True) -> float:
    """Return a duration in seconds, which is not negative; and not 0 unless that is allowed."""
    seconds = _seconds(name, value)
    if not math.isfinite(seconds):
        raise ValueError(f"the annotation {name!r} must be finite, not {value!r}")
    if seconds < 0 or (seconds == 0 and not may_be_zero):
        limit = "0 or more" if may_be_zero else "more than 0"
        raise ValueError(f"the annotation {name!r} must be {limit} seconds, not {value!r}")
    return seconds


def _timeout(name: str, value: Any) -> float:
    return duration(name, value, may_be_zero=False)


def _seconds(name: str, value: Any) -> float:
    accepted = 'a duration, such as "5m" or 300 (seconds)'
    if name == "deadline":
        accepted += ', or a time, such as a datetime or "2030-01-31 18:00"'
    if isinstance(value, bool):
        raise TypeError(f"the annotation {name!r} must be {accepted}, not {value!r}")
    try:
        if isinstance(value, int | float):
            return float(value)
        return float(parse_timedelta(value, default="seconds"))
    except (TypeError, AttributeError) as error:
        kind = f"the annotation {name!r} must be {accepted}, not {value!r}"
        raise TypeError(kind) from error
    except (ValueError, LookupError, OverflowError) as error:
        kind = f"the annotation {name!r} must be {accepted}, not {value!r}"
        raise ValueError(kind) from error


def _deadline(value: Any, received_at: float) -> datetime:
    """Return a deadline with its zone. A time without a zone is local time."""
    given = value
    if isinstance(value, str) and "-" in value:
        with contextlib.suppress(ValueError):
            value = datetime.fromisoformat(value)
    seconds = 0.0
    if not isinstance(value, datetime):
        seconds = _timeout("deadline", value)
        if seconds > DEADLINE_MAX_SECONDS:
            raise ValueError(
                "the annotation 'deadline' must be a duration of at most ten years, or a time, "
                f'such as a datetime or "2030-01-31 18:00", not {given!r}'
            )
    try:
        if isinstance(value, datetime):
            return value.astimezone()
        return datetime.fromtimestamp(received_at + seconds).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(
            f"the annotation 'deadline' must be a time up to the year 9999, not {given!r}"
        ) from error


#: Option -> the function that checks and converts its value, given both. ``deadline`` is relative
#: to the time at which the graph arrived; see ``_read``.
READERS: Mapping[str, Callable[[str, Any], Any]] = MappingProxyType(
    {
        "timeout": _timeout,
        "speculative": flag,
        "pure": flag,
        "retries": plain_count,
        "retry_on": _exceptions,
        "retry_delay": duration,
        "retry_backoff": _factor,
        "retry_delay_max": duration,
        "retry_elsewhere": flag,
    }
)
#: Options of ``CONFIG_KEY``.
OPTIONS = ("deadline", *READERS)
#: Options that are policies.
POLICIES = tuple(name for name in OPTIONS if name != "retries")
#: Policy -> field of ``TaskPolicy``, if its name differs.
FIELDS = MappingProxyType(
    {
        "timeout": "timeout_seconds",
        "retry_delay": "retry_delay_seconds",
        "retry_delay_max": "retry_delay_max_seconds",
    }
)
