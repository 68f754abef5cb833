"""Work that earlier turns have deferred to later ones.

An entry is a reminder, not an order. Other stimuli are handled in between, so the turn that takes
an entry decides again what follows (``lifecycle/deferred.py``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .graphs.pending_graph import PendingGraph
from .model import ClientState, TaskState, WorkerState

#: Task -> state to go to, the last one first.
Recs = dict[TaskState, str]


@dataclass(slots=True, eq=False)
class WorkerRemoval:
    """A removed worker whose tasks have still to be rescheduled.

    Attributes:
        ws: the worker; it is in no table any more.
        expected: the worker closed on purpose, so none of its tasks is blamed.
        tasks: the tasks it was processing, in order.
        of_memory: whether the worker most likely died because it used too much memory.
        done: number of `tasks` that have been rescheduled.
    """

    ws: WorkerState
    expected: bool
    tasks: list[TaskState]
    of_memory: bool = False
    done: int = 0

    @property
    def remaining(self) -> list[TaskState]:
        """Tasks that have not been rescheduled."""
        return self.tasks[self.done :]


class Deferred:
    """Queues of deferred work; true if any has an entry.

    Attributes:
        recommendations: task -> state to go to, in order.
        releases: tasks that a dependent or client no longer needs, or whose data was lost.
        worker_removals: removed workers, in order.
        client_removals: removed clients whose desires have still to be released, in order.
        teardown: tasks that a restart has forgotten and whose references have still to be cleared.
        commits: graphs being committed, in order.
    """

    def __init__(self) -> None:
        self.recommendations: dict[TaskState, str] = {}
        self.releases: deque[TaskState] = deque()
        self.worker_removals: deque[WorkerRemoval] = deque()
        self.client_removals: deque[ClientState] = deque()
        self.teardown: deque[TaskState] = deque()
        self.commits: deque[PendingGraph] = deque()

    def __bool__(self) -> bool:
        return bool(
            self.recommendations
            or self.releases
            or self.worker_removals
            or self.client_removals
            or self.teardown
            or self.commits
        )

    def push(self, recs: Recs) -> None:
        """Defer the recommendations `recs`; the last one, which is next in its turn, goes first."""
        self.recommendations.update(reversed(recs.items()))

    def pending(self) -> frozenset[TaskState]:
        """Return the tasks that a later turn is going to check."""
        removals = [ts for removal in self.worker_removals for ts in removal.remaining]
        in_commit = self.commits[0].unfinished_tasks() if self.commits else []
        return frozenset((*self.recommendations, *self.releases, *removals, *in_commit))

    def clear(self) -> None:
        """Drop all deferred work except `teardown`."""
        self.recommendations.clear()
        self.releases.clear()
        self.worker_removals.clear()
        self.client_removals.clear()
        self.commits.clear()
