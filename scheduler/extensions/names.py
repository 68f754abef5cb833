"""Names of shared things, and spans of time, as peers send them.

Must not know: which machine asks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .replies import Refused

if TYPE_CHECKING:
    from paceline.protocol.keys import Key

#: Seconds in a unit of time, by every spelling that Dask takes.
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
    """The name as something that can be looked up: lists become tuples, at any depth.

    Raises:
        Refused: TypeError, where it cannot be.
    """
    if isinstance(name, list | tuple):
        return tuple(hashable_name(part) for part in name)
    try:
        hash(name)
    except TypeError as error:
        raise Refused("TypeError", str(error)) from None
    return name  # type: ignore[no-any-return]


def as_key(key: Any) -> Key:
    """A task's key, whose lists have become tuples.

    Raises:
        Refused: TypeError, where it cannot be a key.
    """
    return hashable_name(key)  # type: ignore[return-value]


def shown_name(name: Any) -> Any:
    """The name as stock puts it into the names of pseudo clients."""
    return name if type(name) in (str, bytes) else str(name)


def deadline_after(now: float, timeout: Any) -> float | None:
    """When a wait that begins at ``now`` is over (seconds since the epoch); None for never.

    Raises:
        Refused: where ``timeout`` is no span of time.
    """
    seconds = parse_seconds(timeout)
    return None if seconds is None or seconds == math.inf else now + seconds


def parse_seconds(span: Any) -> float | None:
    """Seconds of a span of time: a number (of seconds), or text such as "30 s" or "200ms"; None for none.

    Raises:
        Refused: where it is neither.
    """
    if span is None:
        return None
    if isinstance(span, int | float):
        if math.isnan(span):
            raise Refused("ValueError", "a timeout cannot be nan")
        return float(span)
    if not isinstance(span, str):
        raise Refused("TypeError", f"not a span of time: {span!r}")
    text = span.replace(" ", "")
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text[len(number) :].lower() or "s"
    if unit not in UNIT_SECONDS:
        known = ", ".join(UNIT_SECONDS)
        raise Refused("KeyError", f"Invalid time unit: {unit}. Valid units are: {known}")
    try:
        return float(number or 1) * UNIT_SECONDS[unit]
    except ValueError:
        raise Refused("ValueError", f"could not convert string to float: {number!r}") from None
