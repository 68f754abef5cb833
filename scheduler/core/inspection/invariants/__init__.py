"""Invariants of the state after every turn: a numbered table of functions that check them.

Deferred work leaves tasks for which a recommendation is still pending. The invariants about
progress exempt exactly these tasks (``View.pending``).

``validate_state`` checks everything in O(n): for tests, and for schedulers with ``validate`` on.
As in stock, checks are assertions, so that ``python -O`` removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState

from . import groups, shares, tasks, workers
from .view import View

#: Scope -> number -> function that raises AssertionError if the invariant, its docstring, does not
#: hold. A number is never used again for another invariant.
INVARIANTS: Mapping[str, Mapping[int, Callable[[View, Any], None]]] = {
    "task": {
        1: tasks.check_known,
        2: tasks.check_edges,
        3: tasks.check_desires,
        4: tasks.check_holders,
        5: tasks.check_counts,
        6: tasks.check_placed,
        7: tasks.check_collections,
        8: tasks.check_runnable,
        9: tasks.check_has_data,
        10: tasks.check_blamed,
        11: tasks.check_needed,
        12: tasks.check_kept,
        13: tasks.check_waits_for_something,
        14: tasks.check_inputs_there,
    },
    "worker": {
        20: workers.check_known,
        21: workers.check_tasks,
        22: workers.check_counts,
        23: workers.check_load,
    },
    "client": {30: tasks.check_client},
    "group": {40: groups.check_group},
    "prefix": {41: groups.check_prefix},
    "state": {
        50: groups.check_group_counts,
        51: groups.check_prefix_counts,
        52: workers.check_totals,
        53: workers.check_network,
        54: groups.check_pending_graphs,
        60: workers.check_steals,
        61: shares.check_shares,
        62: tasks.check_retries,
        63: tasks.check_second_runs,
        64: workers.check_ends,
    },
}


class InvariantBroken(AssertionError):
    """An invariant does not hold: a bug of this scheduler, never of a peer.

    Attributes:
        number: number of the invariant.
    """

    def __init__(self, number: int, text: str, subject: Any, found: str) -> None:
        super().__init__(f"invariant {number} is broken: {text}; {subject!r}: {found}")
        self.number = number


def _run(view: View, scope: str, subjects: Iterable[Any]) -> None:
    for subject in subjects:
        for number, check in INVARIANTS[scope].items():
            try:
                check(view, subject)
            except AssertionError as error:
                shown = "" if subject is view.state else subject
                text = (check.__doc__ or "").removeprefix("Check that ").rstrip(".")
                raise InvariantBroken(number, text, shown, str(error)) from None


def validate_tasks(state: SchedulerState, tasks: Iterable[TaskState]) -> None:
    """Check the invariants of `tasks` that are not forgotten. Raise InvariantBroken."""
    _run(View(state), "task", (ts for ts in tasks if ts.state != "forgotten"))


def validate_state(state: SchedulerState) -> None:
    """Check all invariants. Raise InvariantBroken for the first that does not hold."""
    view = View(state)
    _run(view, "task", state.tasks.values())
    _run(view, "worker", state.workers.values())
    _run(view, "client", state.clients.values())
    _run(view, "group", state.task_groups.values())
    _run(view, "prefix", state.task_prefixes.values())
    _run(view, "state", (state,))
