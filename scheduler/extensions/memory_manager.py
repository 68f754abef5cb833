"""The active memory manager: periodically drop replicas that are no longer needed.

``amm_handler`` (``Client.amm``) starts and stops it. A run over many replicated tasks takes several
turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.protocol.messages import AmmHandler
from paceline.scheduler.core.policy import memory_manager
from paceline.scheduler.core.registry import Registry, on

from .errors import ExtensionError
from .extension import Extension

if TYPE_CHECKING:
    from paceline.scheduler.core.turn import Turn

METHODS = ("start", "stop", "run_once", "running")


@dataclass(slots=True)
class ReduceReplicas:
    """Timer message: start a run over all replicated tasks."""


@dataclass(slots=True)
class ContinueReduction:
    """Timer message: continue a run.

    Attributes:
        left: number of replicated tasks still to process.
    """

    left: int


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
        """Whether it runs periodically."""
        return bool(self._timer)

    def routes(self) -> Registry:
        """See ``Extension``."""
        return dict(
            [
                on(AmmHandler, self.handle),
                on(ReduceReplicas, self.handle_due),
                on(ContinueReduction, self.handle_continue),
            ]
        )

    def handle(self, turn: Turn, message: AmmHandler) -> None:
        """Start, stop or run the manager once, or reply whether it is running."""
        method = message.method
        if method not in METHODS:
            raise ExtensionError("ValueError", f"the memory manager has no method {method!r}")
        if method == "start" and not self.running:
            self._timer = turn.call_at(turn.now + self.interval, ReduceReplicas())
        elif method == "stop" and self.running:
            turn.cancel_timer(self._timer)
            self._timer = 0
        elif method == "run_once":
            self._reduce(turn, len(turn.state.replicated_tasks))
        turn.reply(turn.request_id, self.running if method == "running" else None)

    def handle_due(self, turn: Turn, message: ReduceReplicas) -> None:
        """Start a run and schedule the next one."""
        self._timer = turn.call_at(turn.now + self.interval, ReduceReplicas())
        self._reduce(turn, len(turn.state.replicated_tasks))

    def handle_continue(self, turn: Turn, message: ContinueReduction) -> None:
        """Process the remaining tasks of a run."""
        self._reduce(turn, message.left)

    def _reduce(self, turn: Turn, left: int) -> None:
        state = turn.state
        count = min(left, state.config.turn_tasks_max)
        if count <= 0:
            return
        plan = memory_manager.MemoryPlan(self.measure)
        memory_manager.reduce_replicas(state, plan, count)
        for ws, tasks in plan.drops.items():
            memory_manager.drop(turn, ws, tasks)
        if left > count:
            turn.call_at(turn.now, ContinueReduction(left - count))
