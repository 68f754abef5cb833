"""The active memory manager: periodically drop replicas that are no longer needed.

While it runs, large results are also checked when a worker has fetched them
(``core/policy/surplus_replicas.py``).

It also requests the copies that ``core/policy/second_copies.py`` decides on.

``amm_handler`` (``Client.amm``) starts and stops it. A run over many replicated tasks takes several
turns.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from paceline.protocol.messages import AmmHandler
from paceline.scheduler.core.extension import Extension, ExtensionError
from paceline.scheduler.core.handlers import replicas
from paceline.scheduler.core.policy import second_copies, surplus_replicas
from paceline.scheduler.core.turn import Turn

METHODS = ("start", "stop", "run_once", "running")


class MemoryManager(Extension):
    """Operation ``amm_handler``.

    Args:
        interval_seconds: time between two runs.
        measure: measure of memory; one of ``core.config.MEASURES``.
    """

    name: ClassVar[str] = "amm"

    def __init__(self, interval_seconds: float, measure: str) -> None:
        self.interval = interval_seconds
        self.measure = measure
        self._timer = 0

    @property
    def running(self) -> bool:
        """Return whether it runs periodically."""
        return bool(self._timer)

    def handle_amm_handler(self, turn: Turn, message: AmmHandler) -> None:
        """Start, stop or run the manager once, or reply whether it is running."""
        method = message.method
        if method not in METHODS:
            raise ExtensionError("ValueError", f"the memory manager has no method {method!r}")
        if method == "start" and not self.running:
            self._timer = turn.call_at(turn.now + self.interval, self._due)
            turn.state.drops_replicas = True
        elif method == "stop" and self.running:
            turn.cancel_timer(self._timer)
            self._timer = 0
            turn.state.drops_replicas = False
        elif method == "run_once":
            self._reduce(turn, len(turn.state.replicated_tasks))
        turn.reply(turn.request_id, self.running if method == "running" else None)

    def _due(self, turn: Turn) -> None:
        """Start a run and schedule the next one."""
        self._timer = turn.call_at(turn.now + self.interval, self._due)
        self._copy(turn)
        self._reduce(turn, len(turn.state.replicated_tasks))

    def _copy(self, turn: Turn) -> None:
        """Request second copies of results that would be expensive to compute again."""
        for ws, tasks in second_copies.review(turn.state, self.interval, turn.now).items():
            replicas.acquire(turn, ws, tasks)

    def _reduce(self, turn: Turn, left: int) -> None:
        """Process the next replicated tasks of a run in which `left` remain."""
        state = turn.state
        count = min(left, state.config.turn_tasks_max)
        if count <= 0:
            return
        plan = surplus_replicas.MemoryPlan(self.measure)
        surplus_replicas.reduce_replicas(state, plan, count)
        replicas.drop_planned(turn, plan)
        if left > count:
            turn.call_at(turn.now, partial(self._reduce, left=left - count))
