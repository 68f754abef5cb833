"""The states of tasks."""

from __future__ import annotations

from typing import Final

#: The states of a task, as Dask names them.
TASK_STATES: Final = (
    "released",
    "waiting",
    "no-worker",
    "queued",
    "processing",
    "memory",
    "erred",
    "forgotten",
)
#: state -> its position in TASK_STATES, and in lists of counts by state.
STATE_NUMBERS: Final = {state: number for number, state in enumerate(TASK_STATES)}


def count_in(counts: list[int], *states: str) -> int:
    """Return the sum of `counts`, which are in the order of TASK_STATES, for `states`."""
    return sum([counts[STATE_NUMBERS[state]] for state in states])


#: States in which a task is among the ``waiters`` of its dependencies.
ACTIVE_STATES: Final = frozenset({"waiting", "no-worker", "queued", "processing"})

#: Pairs that are never recommended, and why. Other pairs that are not in ``TRANSITIONS`` go through
#: released.
IMPOSSIBLE: dict[tuple[str, str], str] = {
    **{
        (start, finish): "a task is placed from waiting"
        for start in ("released", "processing", "memory", "erred")
        for finish in ("queued", "no-worker", "processing")
        if start != finish
    },
    ("waiting", "queued"): "chosen inside waiting -> processing",
    ("waiting", "no-worker"): "chosen inside waiting -> processing",
    ("queued", "no-worker"): "it stays queued until a worker has a slot",
    ("no-worker", "queued"): "it stays no-worker until a worker may run it",
    **{
        (start, "memory"): "data that was not computed arrives as DataPlaced (become_data)"
        for start in ("released", "waiting", "queued", "no-worker", "erred")
    },
    **{
        ("forgotten", finish): "a key that comes back is another task"
        for finish in TASK_STATES
        if finish != "forgotten"
    },
}
