"""Rules 5 and 6: the tables of the house are complete. Ops have handlers, pairs of states have an answer."""

from __future__ import annotations

import itertools

from paceline.scheduler.core.state import TASK_STATES
from paceline.scheduler.core.transitions import IMPOSSIBLE, TRANSITIONS


def answer(start: str, finish: str) -> str:
    """What the tables say of a pair: "direct", "through released", a reason why not, or nothing."""
    if (start, finish) in TRANSITIONS:
        return "direct"
    if (start, finish) in IMPOSSIBLE:
        return IMPOSSIBLE[start, finish]
    if (start, "released") in TRANSITIONS or start == "released":
        if ("released", finish) in TRANSITIONS:
            return "through released"
        return IMPOSSIBLE.get(("released", finish), "")
    return ""


def test_every_pair_of_states_has_an_answer() -> None:
    pairs = itertools.permutations(TASK_STATES, 2)
    silent = [pair for pair in pairs if pair[0] != "forgotten" and not answer(*pair)]
    assert silent == []


def test_no_pair_is_both_possible_and_not() -> None:
    assert set(TRANSITIONS) & set(IMPOSSIBLE) == set()


def test_nothing_leaves_forgotten() -> None:
    assert [pair for pair in TRANSITIONS if pair[0] == "forgotten"] == []


def test_transitions_are_called_what_they_do() -> None:
    wrong = [
        function.__name__
        for (start, finish), function in TRANSITIONS.items()
        if function.__name__ != f"transition_{start}_{finish}".replace("-", "_")
    ]
    assert wrong == []
