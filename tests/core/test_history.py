"""A packed history against a deque."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.scheduler.core.state.history import PART_LENGTH, History

ATOMS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(ATOMS, inner, max_size=3)
        | st.frozensets(ATOMS, max_size=3)
    ),
    max_leaves=6,
)


def kinds(value: Any) -> Any:
    """The types in a value; ``1 == True`` and ``(1,)`` is no list."""
    if isinstance(value, dict):
        return {kinds(k): kinds(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return (type(value), *map(kinds, value))
    return type(value)


@given(
    st.none() | st.integers(0, 3 * PART_LENGTH),
    st.integers(0, 5 * PART_LENGTH),
    st.lists(VALUES, min_size=1, max_size=4),
)
def test_it_holds_what_a_deque_holds(maxlen: int | None, count: int, values: list[Any]) -> None:
    history: History[Any] = History(maxlen)
    plain: deque[Any] = deque(maxlen=maxlen)
    for n in range(count):
        member = (n, values[n % len(values)])
        history.append(member)
        plain.append(member)
    assert list(history) == list(plain)
    assert list(map(kinds, history)) == list(map(kinds, plain))
    assert list(reversed(history)) == list(reversed(plain))
    assert len(history) == len(plain) and bool(history) == bool(plain)
    assert history.latest(PART_LENGTH + 3) == list(plain)[-PART_LENGTH - 3 :]
    assert history.latest(0) == []


def within_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class Thing:
    """Neither plain nor to be packed."""


@pytest.mark.parametrize(
    "value",
    [
        Thing(),
        bytearray(b"ab"),
        memoryview(b"ab"),
        type("Text", (str,), {})("ab"),
        len,
        within_itself(),
    ],
)
def test_what_is_not_plain_stays_what_it_is(value: Any) -> None:
    """``marshal`` would make bytes of whatever has a buffer, a numpy number too, and gives up on what is too deep."""
    history: History[Any] = History()
    for n in range(PART_LENGTH + 1):
        history.append((n, [value]))
    assert all(kept is value for _, (kept,) in history)


def test_it_takes_a_tenth_of_the_room() -> None:
    history: History[Any] = History(10 * PART_LENGTH)
    for n in range(20 * PART_LENGTH):
        history.append((n / 7, {"action": "update-graph", "stimulus_id": f"s-{n}", "status": "OK"}))
    whole = sum(sys.getsizeof(part) for part in history._parts)
    alone = sys.getsizeof({"action": 0, "stimulus_id": 0, "status": 0}) * len(history)
    assert whole < alone / 5


def test_it_may_grow_while_it_is_read() -> None:
    history: History[int] = History(PART_LENGTH)
    for n in range(PART_LENGTH):
        history.append(n)
    seen = []
    for member in history:
        seen.append(member)
        history.append(-1)
    assert seen == list(range(PART_LENGTH))
