"""Counters of numbers that another process continues."""

from __future__ import annotations

from itertools import count

from paceline.workers_compat.counters import next_number


def test_next_number_does_not_advance_the_counter() -> None:
    numbers = count(7)
    assert next_number(numbers) == next_number(numbers) == next(numbers) == 7
    assert next_number(count(-3)) == -3
