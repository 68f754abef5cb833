"""Counters of numbers that another process continues."""

from __future__ import annotations

from itertools import count


def next_number(numbers: count[int]) -> int:
    """Return the number that `numbers` returns next, without advancing it.

    Its text is ``count(N)``. Since Python 3.14 it can be neither copied nor pickled.
    """
    return int(repr(numbers).removeprefix("count(").removesuffix(")"))
