"""Invariants of the state after every turn: a numbered table, and functions that check it.

Deferred work leaves tasks for which a recommendation is still pending. The invariants about progress exempt exactly
these tasks (``View.is_pending``).

``validate_state`` checks everything in O(n): for tests, and for schedulers with ``validate`` on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from paceline.scheduler.core.state.model import (
    TaskState,
)
from paceline.scheduler.core.state.scheduler_state import SchedulerState

from . import invariant_checks as checks
from .invariant_checks import View


class InvariantBroken(AssertionError):
    """Something that must hold does not: a bug of this scheduler, never of a peer.

    Attributes:
        number: of the invariant.
        text: the invariant in words.
        subject: the task, worker, ... that breaks it.
    """

    def __init__(self, number: int, text: str, subject: Any, found: str) -> None:
        super().__init__(f"invariant {number} is broken: {text}; {subject!r}: {found}")
        self.number = number
        self.text = text
        self.subject = subject


# A check yields what it found wrong, in words; nothing where all is well.
Check = Callable[[View, Any], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Invariant:
    """One line of the table.

    Attributes:
        number: never used again for another one.
        scope: what is checked: "task", "worker", "client", "group", "prefix" or "state".
        text: what must hold.
        check: yields what breaks it.
    """

    number: int
    scope: str
    text: str
    check: Check


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(1, "task", "a task is in state.tasks under its key, its group in task_groups", checks.known),
    Invariant(2, "task", "dependencies and dependents mirror each other, among known tasks", checks.edges),
    Invariant(3, "task", "who_wants mirrors wants_what of known clients, leaving ones, and pins", checks.wishes),
    Invariant(4, "task", "who_has mirrors has_what of known workers; more than one is replicated", checks.holders),
    Invariant(5, "task", "waiting_count and waiters_count count what they say", checks.holder_counts),
    Invariant(6, "task", "processing_on is set exactly in processing, on a known worker", checks.placed),
    Invariant(7, "task", "queued and unrunnable hold exactly the tasks in queued and no-worker", checks.collections),
    Invariant(8, "task", "what is to run has a run_spec, a priority and all its dependencies", checks.runnable),
    Invariant(9, "task", "exactly the tasks in memory have data on a worker", checks.has_data),
    Invariant(10, "task", "exactly an erred task blames a task, and that has erred", checks.blamed),
    Invariant(11, "task", "a task that runs, waits or is in memory is wanted", checks.needed),
    Invariant(12, "task", "a task without clients and dependents is forgotten", checks.kept),
    Invariant(13, "task", "a wanted task waits for something that is being done", checks.waits_for_something),
    Invariant(14, "task", "a task in queued, no-worker or processing has its inputs in memory", checks.inputs_there),
    Invariant(20, "worker", "a worker is in workers, aliases and host_info", checks.worker_known),
    Invariant(21, "worker", "processing, has_what, long_running, actors and nbytes mirror its tasks", checks.worker_tasks),
    Invariant(22, "worker", "prefix_counts, needs_what, network_occ and resources follow from processing", checks.worker_counts),
    Invariant(23, "worker", "running, idle, idle_task_count and saturated follow from status and load", checks.worker_load),
    Invariant(30, "client", "a client is in clients, and wants_what mirrors who_wants of known tasks", checks.client_known),
    Invariant(40, "group", "a group is in task_groups and its prefix, and not empty", checks.group_known),
    Invariant(41, "prefix", "a prefix has only groups that are known", checks.prefix_known),
    Invariant(50, "state", "a group's states count its tasks", checks.group_counts),
    Invariant(51, "state", "processing_count and compute_occupancy follow from what is processing", checks.prefix_counts),
    Invariant(52, "state", "totals, aliases, host_info and collections follow from workers and tasks", checks.totals),
    Invariant(53, "state", "network_occ is the sum of the workers'", checks.network),
    Invariant(54, "state", "held rows have made no tasks; commits are held, of clients that are there", checks.held_rows),
    Invariant(60, "state", "tasks asked back are processing on their victims, or the request is void; sums add up", checks.steals),
)  # fmt: skip


# ------------------------------------------------------------------ checking


def _run(view: View, scope: str, subjects: Iterable[Any]) -> None:
    table = [invariant for invariant in INVARIANTS if invariant.scope == scope]
    for subject in subjects:
        for invariant in table:
            for found in invariant.check(view, subject):
                shown = "" if subject is view.state else subject
                raise InvariantBroken(invariant.number, invariant.text, shown, found)


def validate_task(state: SchedulerState, ts: TaskState) -> None:
    """Check one task; a forgotten one has nothing that could be wrong.

    Raises:
        InvariantBroken: naming the first that does not hold.
    """
    validate_tasks(state, (ts,))


def validate_tasks(state: SchedulerState, tasks: Iterable[TaskState]) -> None:
    """Check some tasks, as ``validate_task``."""
    _run(View(state), "task", (ts for ts in tasks if ts.state != "forgotten"))


def validate_state(state: SchedulerState) -> None:
    """Check everything.

    Raises:
        InvariantBroken: naming the first that does not hold.
    """
    view = View(state)
    _run(view, "task", state.tasks.values())
    _run(view, "worker", state.workers.values())
    _run(view, "client", state.clients.values())
    _run(view, "group", state.task_groups.values())
    _run(view, "prefix", state.task_prefixes.values())
    _run(view, "state", (state,))
