"""Choose which keys to move between workers to even out their memory use.

Workers far above the mean send, those far below receive, each at most up to the mean, so that data
does not move back and forth. The keys that were longest on a worker move first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.protocol.keys import Key
from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState

from .memory import measured


class Move(NamedTuple):
    """A key to move from ``sender`` to ``recipient``."""

    sender: WorkerState
    recipient: WorkerState
    task: TaskState


@dataclass(slots=True)
class _Side:
    """A sender or recipient. The one farthest from the mean sorts first.

    Attributes:
        worker: the worker.
        distance: bytes from the mean.
        gap: the worker no longer takes part once ``distance`` is this or less.
        tasks: results that a sender can still send, oldest first; empty for a recipient.
    """

    worker: WorkerState
    distance: int
    gap: int
    tasks: Iterator[TaskState]

    def __lt__(self, other: _Side) -> bool:
        if self.distance != other.distance:
            return self.distance > other.distance
        return self.worker.index < other.worker.index


class RebalancePlan:
    """Moves that even out the memory of workers.

    Args:
        state: the scheduler's state.
        workers: the workers that take part; the mean is theirs.
        keys: keys that may move; None for all.

    Attributes:
        n_senders, n_recipients: number of workers far above and far below the mean.
        moves: the moves, in the order in which they were found.
    """

    def __init__(
        self,
        state: SchedulerState,
        workers: Sequence[WorkerState],
        keys: Collection[Key] | None = None,
    ) -> None:
        self._state = state
        self._keys = keys
        self._senders: list[_Side] = []
        self._recipients: list[_Side] = []
        self._take_sides(workers)
        self.n_senders = len(self._senders)
        self.n_recipients = len(self._recipients)
        self.moves = list(self._find())

    def _take_sides(self, workers: Sequence[WorkerState]) -> None:
        config = self._state.config
        used = {ws: measured(ws, config.rebalance_measure) for ws in workers}
        mean = sum(used.values()) // max(1, len(used))
        for ws, nbytes in used.items():
            limit = ws.memory_limit
            gap = int(config.rebalance_gap / 2 * limit)
            least_to_give = config.rebalance_sender_min * limit
            most_to_take = config.rebalance_recipient_max * limit if limit else math.inf
            above = nbytes - mean
            if ws.has_what and above >= gap and nbytes >= least_to_give:
                self._senders.append(_Side(ws, above, gap, iter(list(ws.has_what))))
            elif above < -gap and nbytes < most_to_take:
                self._recipients.append(_Side(ws, -above, gap, iter(())))
        heapq.heapify(self._senders)
        heapq.heapify(self._recipients)

    def _find(self) -> Iterator[Move]:
        while self._senders and self._recipients:
            sender = self._senders[0]
            for ts in sender.tasks:
                recipient = self._recipient(sender, ts)
                if recipient is not None:
                    nbytes = estimates.data_nbytes(self._state, ts)
                    heapq.heappop(self._senders)
                    _move_closer(self._senders, sender, nbytes)
                    _move_closer(self._recipients, recipient, nbytes)
                    yield Move(sender.worker, recipient.worker, ts)
                    break
            else:
                heapq.heappop(self._senders)

    def _recipient(self, sender: _Side, ts: TaskState) -> _Side | None:
        """Pop the first recipient without ``ts`` that can take it without exceeding the mean."""
        if ts.actor or (self._keys is not None and ts.key not in self._keys):
            return None
        nbytes = estimates.data_nbytes(self._state, ts)
        if nbytes > sender.distance:
            return None
        passed_over = []
        found = None
        while self._recipients and nbytes <= self._recipients[0].distance:
            if ts not in self._recipients[0].worker.has_what:
                found = heapq.heappop(self._recipients)
                break
            passed_over.append(heapq.heappop(self._recipients))
        for side in passed_over:
            heapq.heappush(self._recipients, side)
        return found


def _move_closer(sides: list[_Side], side: _Side, nbytes: int) -> None:
    """Reduce the distance of ``side``, and put it back on its heap unless it is near the mean."""
    side.distance -= nbytes
    if side.distance > side.gap:
        heapq.heappush(sides, side)
