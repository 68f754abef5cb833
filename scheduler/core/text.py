"""Format numbers, sizes, durations and names for texts that people read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

#: Names listed one by one in a sentence.
NAMED_MAX: Final = 3


def count(n: float, noun: str) -> str:
    """Return ``n`` with the noun in singular or plural."""
    if n == 1:
        return f"{n} {noun}"
    return f"{n} {noun[:-1]}ies" if noun.endswith("y") else f"{n} {noun}s"


def format_key(key: Any) -> str:
    """Return a key as users write it: text without quotes, else its repr."""
    return key if isinstance(key, str) else repr(key)


def join_names(names: Iterable[Any], n: int | None = None) -> str:
    """Return the first of ``names``, and how many more there are; ``n`` is the total number."""
    listed = [str(name) for name in names]
    total = len(listed) if n is None else max(n, len(listed))
    if total > NAMED_MAX + 1:
        return f"{', '.join(listed[:NAMED_MAX])} and {total - NAMED_MAX} more"
    return ", ".join(listed)


def format_nbytes(n: int | float) -> str:
    """Return `n` bytes as text in the style of dask: ``1.00 MiB``."""
    for power, unit in zip((5, 4, 3, 2, 1), ("PiB", "TiB", "GiB", "MiB", "kiB"), strict=True):
        if n >= 1024**power * 0.9:
            return f"{n / 1024**power:.2f} {unit}"
    return f"{n} B"


def format_duration(value: float) -> str:
    """Return a duration as text, such as ``3.0 s`` or ``5 minutes``."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7200:
        return f"{value / 60:.0f} minutes"
    return f"{value / 3600:.1f} hours"


def format_time(n: float) -> str:
    """Format a duration as ``dask.utils.format_time`` does: ``2.00 s``, ``3m 20s``."""
    if n > 24 * 60 * 60 * 2:
        return f"{int(n / 3600 / 24)}d {int((n / 3600) % 24)}hr"
    if n > 60 * 60 * 2:
        return f"{int(n / 3600)}hr {int((n / 60) % 60)}m"
    if n > 60 * 10:
        return f"{int(n / 60)}m {int(n % 60)}s"
    if n >= 1:
        return f"{n:.2f} s"
    if n >= 1e-3:
        return f"{n * 1e3:.2f} ms"
    return f"{n * 1e6:.2f} us"
