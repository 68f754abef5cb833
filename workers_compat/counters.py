"""Counters of numbers that another process continues."""

from __future__ import annotations

from collections.abc import Iterator


def next_number(numbers: Iterator[int]) -> int:
    """Return what `numbers`, an ``itertools.count``, returns next, without advancing it.

    Its text is ``count(N)``. Since Python 3.14 it can be neither copied nor pickled.
    """
    return int(repr(numbers).removeprefix("count(").removesuffix(")"))
