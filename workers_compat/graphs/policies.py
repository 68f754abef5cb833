"""Policies of tasks: annotations and configuration to ``TaskPolicy``, with a check of every value.

``paceline.scheduler.policies`` maps patterns of task prefixes to options, which are annotations for
all tasks whose prefix matches. Annotations take precedence, and later patterns over earlier ones.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, datetime, time
from fnmatch import fnmatchcase
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple

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

#: Accepted values, for texts of errors.
DURATION = 'a duration, such as "5m" or 300 (seconds)'
TIME = (
    'a time, such as a datetime or "2030-01-31 18:00" (without a zone, local time of the scheduler)'
)
UNITS = (
    "a number and one unit: ns, us, ms, s, m, h, d, w, "
    'or the name of one, such as "minutes" or "days"'
)

#: ``patterns`` of ``task_policy`` without a configuration.
NO_PATTERNS: Mapping[str, str] = MappingProxyType({})


class Configured(NamedTuple):
    """The value of an option in the configuration, and the pattern that sets it."""

    value: Any
    pattern: str


def configured(prefix: str) -> dict[str, Configured]:
    """Return the annotations that the configuration sets for tasks of `prefix`."""
    found: dict[str, Configured] = {}
    for pattern, options in (dask.config.get(CONFIG_KEY, default=None) or {}).items():
        if fnmatchcase(prefix, str(pattern)):
            for name, value in options.items():
                found[option_name(name)] = Configured(value, str(pattern))
    return found


def check_configured(policies: Mapping[Any, Any]) -> None:
    """Check the names and values of the options in the value of ``CONFIG_KEY``.

    Exception classes of modules are not imported, and options that contradict or need others are
    not refused, because an annotation or another pattern can change those. Deadlines may have
    passed; see ``passed_deadlines``.

    Raises:
        ValueError: an option is invalid. The text names its pattern.
    """
    for pattern, options in policies.items():
        try:
            for name, value in options.items():
                option = option_name(name)
                if value is not None:
                    _read(option, repr(option), value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"in {pattern!r}, {error}") from error


def passed_deadlines(policies: Mapping[Any, Any], now: float) -> Iterator[str]:
    """Yield a line for each deadline in the valid value of ``CONFIG_KEY`` that is before `now`."""
    for pattern, options in policies.items():
        for name, value in options.items():
            if option_name(name) == "deadline" and value is not None:
                where = label("deadline", pattern)
                when = _deadline(where, value, now)
                if when.timestamp() <= now:
                    yield _passed(where, value, when, now, "the scheduler started")


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


def label(name: str, pattern: str | None = None) -> str:
    """Return how errors refer to the annotation `name`, or to an option that `pattern` sets."""
    if pattern is None:
        return f"the annotation {name!r}"
    return f"in `{CONFIG_KEY}`, pattern {pattern!r}: {name!r}"


def task_policy(
    found: Mapping[str, Any], received_at: float, patterns: Mapping[str, str] = NO_PATTERNS
) -> TaskPolicy | None:
    """Return the policies among the annotations `found` of a task; None if there are none.

    `received_at` is the time at which the graph arrived, in seconds since the epoch. `patterns` has
    the pattern of each value that comes from the configuration. A value of None is ignored.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of its range, or contradicts another one.
        TimeoutError: the deadline had passed when the graph arrived.
    """
    given = {name: found[name] for name in POLICIES if found.get(name) is not None}
    labels = {name: label(name, patterns.get(name)) for name in given}
    values = {name: _read(name, labels[name], given[name], received_at) for name in given}
    has_retries = found.get("retries") is not None
    for name in _ineffective(values, has_retries) & patterns.keys():
        values.pop(name, None)
    if not values:
        return None
    if "deadline" in values:
        when: datetime = values["deadline"]
        values["deadline"] = when.timestamp()
        values["deadline_text"] = _text(when)
        if when.timestamp() <= received_at:
            where, value = labels["deadline"], given["deadline"]
            raise TimeoutError(_passed(where, value, when, received_at, "the graph arrived"))
    if "retry_on" in values:
        names = {_exception_name(labels["retry_on"], each) for each in values["retry_on"]}
        values["retry_on"] = sorted(names)
    _check_retries(values, given, labels, has_retries)
    policy = TaskPolicy(**{FIELDS.get(name, name): value for name, value in values.items()})
    if policy.speculative and not policy.pure:
        raise ValueError(f"{labels['speculative']}=True contradicts 'pure'=False")
    return policy


def _ineffective(values: Mapping[str, Any], has_retries: bool) -> set[str]:
    """Return policies that need or contradict another one of `values`.

    They have no effect if they come from the configuration, which may be written for other tasks.
    """
    out = set[str]()
    if not has_retries:
        out.update(name for name in values if name.startswith("retry_"))
    if "retry_delay" not in values:
        out.update(("retry_backoff", "retry_delay_max"))
    if values.get("pure") is False:
        out.add("speculative")
    return out


def _check_retries(
    values: Mapping[str, Any],
    given: Mapping[str, Any],
    labels: Mapping[str, str],
    has_retries: bool,
) -> None:
    """Raise ValueError if a policy about retries in `values` lacks or contradicts another one.

    `given` has the values as the user wrote them.
    """
    named = {name: f"{labels[name]}={given[name]!r}" for name in values if name in given}
    retries = [name for name in named if name.startswith("retry_")]
    if retries and not has_retries:
        raise ValueError(
            f"{named[retries[0]]} needs the annotation 'retries', the number of retries"
        )
    delay = values.get("retry_delay", 0.0)
    for name in ("retry_backoff", "retry_delay_max"):
        if name in named and not delay:
            raise ValueError(f"{named[name]} needs a 'retry_delay' of more than 0")
    if values.get("retry_delay_max", delay) < delay:
        raise ValueError(
            f"{named['retry_delay_max']} is less than 'retry_delay'={given['retry_delay']!r}"
        )


def _read(name: str, where: str, value: Any, received_at: float = 0.0) -> Any:
    """Return the value of an option, checked and converted. Raises TypeError or ValueError.

    `where` is the option in texts of errors. Exception classes of modules are not imported yet.
    """
    return (
        _deadline(where, value, received_at) if name == "deadline" else READERS[name](where, value)
    )


def _exceptions(where: str, value: Any) -> Collection[Any]:
    """Return the given exception classes and names. Only those without a module are imported."""
    given = value if isinstance(value, tuple | list | set | frozenset) else [value]
    if not given:
        raise ValueError(f"{where} must name an exception class, not {value!r}")
    for each in given:
        if not isinstance(each, str) or "." not in each:
            _exception_name(where, each)
    return given


def _exception_name(where: str, given: Any) -> str:
    found = _imported(where, given) if isinstance(given, str) else given
    if not isinstance(found, type) or not issubclass(found, BaseException):
        raise TypeError(
            f"{where} must be an exception class, the name of one, or a tuple of those, "
            f"not {given!r}"
        )
    return full_name(found)


def full_name(cls: type) -> str:
    """Return the name of a class with its module, by which exception classes are compared."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _imported(where: str, name: str) -> Any:
    """Return what ``package.module.Class`` names; a name without a module is built in."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module or "builtins"), attribute)
    except Exception as error:
        raise ValueError(
            f"{where} names {name!r}, which the scheduler cannot import: "
            f"{type(error).__name__}: {error}"
        ) from error


def _factor(where: str, value: Any) -> float:
    """Return a factor from 1 to ``FACTOR_MAX``."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number:
        raise TypeError(f"{where} must be a number, not {value!r}")
    if not 1 <= value <= FACTOR_MAX:
        raise ValueError(f"{where} must be from 1 to {FACTOR_MAX}, not {value!r}")
    return float(value)


def plain_count(where: str, value: Any) -> int:
    """Return a number of times, which is not negative. Raises TypeError or ValueError."""
    try:
        count = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{where} must be an int, not {value!r}") from error
    if count < 0:
        raise ValueError(f"{where} must be 0 or more, not {value!r}")
    if not is_encodable(count):
        raise ValueError(f"{where} must have at most 64 bits, not {value!r}")
    return int(count)


def flag(where: str, value: Any) -> bool:
    """Return a truth value, which may be NumPy's."""
    is_numpy = type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
    if not isinstance(value, bool) and not is_numpy:
        raise TypeError(f"{where} must be True or False, not {value!r}")
    return bool(value)


def duration(where: str, value: Any, may_be_zero: bool = True, accepted: str = DURATION) -> float:
    """Return a duration in seconds, which is not negative; and not 0 unless that is allowed."""
    seconds = _seconds(where, value, accepted)
    if not math.isfinite(seconds):
        raise ValueError(f"{where} must be finite, not {value!r}")
    if seconds < 0 or (seconds == 0 and not may_be_zero):
        limit = "0 or more" if may_be_zero else "more than 0"
        raise ValueError(f"{where} must be {limit} seconds, not {value!r}")
    return seconds


def _timeout(where: str, value: Any) -> float:
    return duration(where, value, may_be_zero=False)


def _seconds(where: str, value: Any, accepted: str) -> float:
    """Return a number of seconds; `accepted` describes valid values in texts of errors."""
    problem = f"{where} must be {accepted}, not {value!r}"
    if isinstance(value, bool):
        raise TypeError(problem)
    try:
        if isinstance(value, int | float):
            return float(value)
        return float(parse_timedelta(value, default="seconds"))
    except (TypeError, AttributeError) as error:
        raise TypeError(problem) from error
    except (ValueError, LookupError, OverflowError) as error:
        raise ValueError(f"{problem}. A duration is {UNITS}") from error


def _deadline(where: str, value: Any, received_at: float) -> datetime:
    """Return a deadline with its zone. A time without a zone is local time of this process."""
    try:
        when = _as_datetime(value)
        if when is not None:
            return when.astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(
            f"{where} must be a time from now up to the year 9999, not {value!r}"
        ) from error
    seconds = duration(where, value, may_be_zero=False, accepted=f"{DURATION}, or {TIME}")
    if seconds > DEADLINE_MAX_SECONDS:
        raise ValueError(
            f"{where} must be a duration of at most ten years, or {TIME}, not {value!r}"
        )
    return datetime.fromtimestamp(received_at + seconds).astimezone()


def _as_datetime(value: Any) -> datetime | None:
    """Return a time as a datetime, which may lack a zone; None for any other value.

    A date is its first moment. Raises ValueError for ``pandas.NaT``.
    """
    if isinstance(value, str) and "-" in value:
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(value)
    if type(value).__name__ == "datetime64":  # of numpy, which need not be installed
        value = value.astype("datetime64[us]").item()
    if isinstance(value, datetime):
        # astimezone() of a pandas.Timestamp needs an argument
        return datetime.combine(value.date(), value.timetz())
    return datetime.combine(value, time()) if isinstance(value, date) else None


def _passed(where: str, given: Any, when: datetime, now: float, event: str) -> str:
    """Return the error about a deadline that is before an `event` at the time `now`."""
    at = _text(datetime.fromtimestamp(now).astimezone())
    text = f"{where}={given!r} had passed when {event}: {_text(when)} is before {at}"
    read = _as_datetime(given)
    if read is not None and read.tzinfo is None:
        text += f". A time without a zone is local time of the scheduler ({when.tzname()})"
    return text


def _text(when: datetime) -> str:
    return when.isoformat(sep=" ", timespec="seconds")


#: Option -> the function that checks and converts its value, given how errors refer to the option,
#: and the value. ``deadline`` is relative to the time at which the graph arrived; see ``_read``.
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
