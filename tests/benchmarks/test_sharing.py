"""The figures that `benchmarks.sharing` computes from the times at which tasks ran."""

from __future__ import annotations

import pytest

from benchmarks.sharing import deviation, jain_index, least_index, used


def test_use_is_clipped_to_the_window() -> None:
    assert used([(0.0, 2.0), (3.0, 7.0), (9.0, 9.5)], 1.0, 5.0) == 3.0


def test_jain_index() -> None:
    assert jain_index([2.0, 2.0, 2.0]) == 1.0
    assert jain_index([6.0, 0.0, 0.0]) == pytest.approx(1 / 3)


def test_least_index_is_that_of_the_most_uneven_window() -> None:
    steady = [(i / 2, i / 2 + 0.25) for i in range(60)]
    late = [(15.0, 30.0)]
    assert least_index([steady, steady], 0.0, 30.0) == pytest.approx(1.0)
    assert least_index([steady, late], 0.0, 30.0) == pytest.approx(0.5)


def test_deviation_from_the_weights() -> None:
    assert deviation({"one": 5.0, "two": 10.0, "four": 20.0}) == 0.0
    assert deviation({"one": 10.0, "two": 10.0, "four": 10.0}) == pytest.approx(7 / 3 - 1)
