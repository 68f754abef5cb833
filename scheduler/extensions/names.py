"""Names of queues, variables, locks and the like, and durations, as peers send them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from paceline.protocol.keys import check_key, normalize_key
from paceline.scheduler.core.extension import ExtensionError

if TYPE_CHECKING:
    from paceline.protocol.keys import Key

#: Unit of time -> seconds, in every spelling that Dask accepts.
UNIT_SECONDS: Mapping[str, float] = MappingProxyType(
    {
        spelling: seconds
        for seconds, spellings in (
            (1e-9, ("ns", "nanosecond", "nanoseconds")),
            (1e-6, ("us", "microsecond", "microseconds")),
            (1e-3, ("ms", "millisecond", "milliseconds")),
            (1.0, ("s", "second", "seconds")),
            (60.0, ("m", "minute", "minutes")),
            (3600.0, ("h", "hr", "hour", "hours")),
            (86400.0, ("d", "day", "days")),
            (604800.0, ("w", "week", "weeks")),
        )
        for spelling in spellings
    }
)


def hashable_name(name: Any) -> Hashable:
    """Return `name` with lists replaced by tuples at any depth, so that it can be a dict key.

    Raises:
        ExtensionError: TypeError or ValueError, if `name` is neither None nor a valid key.
    """
    name = normalize_key(name)
    if name is not None:
        try:
            check_key(name)
        except (TypeError, ValueError) as error:
            raise ExtensionError(type(error).__name__, str(error)) from None
    return name  # type: ignore[no-any-return]


def hashable_names(names: Any) -> tuple[Hashable, ...]:
    """Return a list, tuple or set of names as a tuple of valid ones.

    The names of a set are sorted by their text, so that the order does not depend on the hash seed.

    Raises:
        ExtensionError: TypeError or ValueError, if `names` is of another type or a name is invalid.
    """
    if isinstance(names, set | frozenset):
        names = sorted(names, key=repr)
    if not isinstance(names, list | tuple):
        raise ExtensionError("TypeError", f"{type(names).__name__!r} object is not iterable")
    return tuple(hashable_name(name) for name in names)


def as_key(key: Any) -> Key:
    """Return the task key `key` with lists replaced by tuples.

    Raises:
        ExtensionError: TypeError or ValueError, if it is not a valid key.
    """
    return hashable_name(key)  # type: ignore[return-value]


def shown_name(name: Any) -> Any:
    """Return `name` in the form that stock uses in the names of pseudo clients."""
    return name if type(name) in (str, bytes) else str(name)


def deadline_after(now: float, timeout: Any) -> float | None:
    """Return the end of a wait that starts at `now`, in seconds since the epoch; None for no limit.

    Raises:
        ExtensionError: if `timeout` is not a duration.
    """
    seconds = parse_seconds(timeout)
    return None if seconds is None or seconds == math.inf else now + seconds


def parse_seconds(span: Any) -> float | None:
    """Return the seconds in `span`: a number of seconds, a text such as "30 s", or None.

    Raises:
        ExtensionError: TypeError, ValueError or KeyError, if `span` is none of these.
    """
    if span is None:
        return None
    if isinstance(span, int | float):
        if math.isnan(span):
            raise ExtensionError("ValueError", "a timeout cannot be nan")
        return float(span)
    if not isinstance(span, str):
        raise ExtensionError("TypeError", f"not a span of time: {span!r}")
    text = span.replace(" ", "")
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text[len(number) :].lower() or "s"
    if unit not in UNIT_SECONDS:
        known = ", ".join(UNIT_SECONDS)
        raise ExtensionError("KeyError", f"Invalid time unit: {unit}. Valid units are: {known}")
    try:
        return float(number or 1) * UNIT_SECONDS[unit]
    except ValueError:
        raise ExtensionError(
            "ValueError", f"could not convert string to float: {number!r}"
        ) from None
