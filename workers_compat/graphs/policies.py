"""Policies of tasks: annotations and configuration to ``TaskPolicy``, with a check of every value.

``paceline.scheduler.policies`` maps patterns of task prefixes to options, which are annotations for
all tasks whose prefix matches. Annotations take precedence, and later patterns over earlier ones.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

import dask.config
from dask.utils import parse_timedelta
from paceline.scheduler.core.task_policy import TaskPolicy

#: Key of the configuration.
CONFIG_KEY = "paceline.scheduler.policies"
#: Annotations that are policies.
POLICIES = frozenset({"timeout", "deadline"})
#: Options of ``CONFIG_KEY``.
OPTIONS = POLICIES | {"retries"}


def configured(prefix: str) -> dict[str, Any]:
    """Return the annotations that the configuration sets for tasks of `prefix`."""
    found: dict[str, Any] = {}
    for pattern, options in (dask.config.get(CONFIG_KEY, default=None) or {}).items():
        if fnmatchcase(prefix, str(pattern)):
            found.update({option_name(name): value for name, value in options.items()})
    return found


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
    """
    given = {name: found[name] for name in POLICIES if found.get(name) is not None}
    if not given:
        return None
    policy = TaskPolicy()
    if "timeout" in given:
        policy.timeout_seconds = duration("timeout", given["timeout"], minimum_is_allowed=False)
    if "deadline" in given:
        policy.deadline = _deadline(given["deadline"], received_at)
        when = datetime.fromtimestamp(policy.deadline).astimezone()
        policy.deadline_text = when.isoformat(sep=" ", timespec="seconds")
    return policy


def duration(name: str, value: Any, minimum_is_allowed: bool = True) -> float:
    """Return a duration in seconds, which is not negative; and not 0 unless that is allowed."""
    seconds = _seconds(name, value)
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not minimum_is_allowed):
        limit = "0 or more" if minimum_is_allowed else "more than 0"
        raise ValueError(f"the annotation {name!r} must be {limit} seconds, not {value!r}")
    return seconds


def _seconds(name: str, value: Any) -> float:
    accepted = 'a duration, such as "5m" or 300 (seconds)'
    if name == "deadline":
        accepted += ', or a time, such as a datetime or "2030-01-31 18:00"'
    if isinstance(value, bool):
        raise TypeError(f"the annotation {name!r} must be {accepted}, not {value!r}")
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(parse_timedelta(value, default="seconds"))
    except (TypeError, AttributeError) as error:
        kind = f"the annotation {name!r} must be {accepted}, not {value!r}"
        raise TypeError(kind) from error
    except (ValueError, KeyError) as error:
        kind = f"the annotation {name!r} must be {accepted}, not {value!r}"
        raise ValueError(kind) from error


def _deadline(value: Any, received_at: float) -> float:
    """Return a deadline in seconds since the epoch. A time without a zone is local time."""
    if isinstance(value, str) and "-" in value:
        with contextlib.suppress(ValueError):
            value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value.timestamp()
    return received_at + duration("deadline", value, minimum_is_allowed=False)
