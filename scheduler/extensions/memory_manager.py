"""The active memory manager: every so often, copies that nobody needs any more are dropped.

``amm_handler`` starts, stops and asks it (``Client.amm``). Many replicated tasks are looked at in several turns.

Must not know: how it is decided (``core/memory_manager.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.protocol.messages import AmmHandler
from paceline.scheduler.core import memory_manager

from .machine import Handler, Machine
from .replies import Refused

if TYPE_CHECKING:
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.core.turn import Turn

METHODS = ("start", "stop", "run_once", "running")


@dataclass(slots=True)
class ManageMemory:
    """Timer: it is time to look at all copies again."""


@dataclass(slots=True)
class GoOnManaging:
    """Timer: the rest of them.

    Attributes:
        left: how many replicated tasks are to be looked at yet.
    """

    left: int


class MemoryManager(Machine):
    """Op ``amm_handler``.

    Args:
        interval_seconds: between two looks.
        measure: how memory is measured; one of ``core.config.MEASURES``.
    """

    name: ClassVar[str] = "amm"

    def __init__(self, interval_seconds: float, measure: str) -> None:
        self.interval = interval_seconds
        self.measure = measure
        self._timer = 0

    @property
    def running(self) -> bool:
        """Whether it looks by itself."""
        return bool(self._timer)

    def routes(self) -> Mapping[type[Any], Handler]:
        return {AmmHandler: self.handle, ManageMemory: self.due, GoOnManaging: self.go_on}

    def handle(self, turn: Turn, stimulus: Stimulus) -> None:
        """Start, stop, run once, or say whether it runs."""
        method = stimulus.message.method
        if method not in METHODS:
            raise Refused("ValueError", f"the memory manager has no method {method!r}")
        if method == "start" and not self.running:
            self._timer = turn.call_at(turn.now + self.interval, ManageMemory())
        elif method == "stop" and self.running:
            turn.cancel_timer(self._timer)
            self._timer = 0
        elif method == "run_once":
            self._look(turn, len(turn.state.replicated_tasks))
        turn.reply(stimulus.request_id, self.running if method == "running" else None)

    def due(self, turn: Turn, stimulus: Stimulus) -> None:
        """Look, and again after the interval."""
        self._timer = turn.call_at(turn.now + self.interval, ManageMemory())
        self._look(turn, len(turn.state.replicated_tasks))

    def go_on(self, turn: Turn, stimulus: Stimulus) -> None:
        """Look at those that are left."""
        self._look(turn, stimulus.message.left)

    def _look(self, turn: Turn, left: int) -> None:
        state = turn.state
        count = min(left, state.config.turn_tasks_max)
        if count <= 0:
            return
        plan = memory_manager.MemoryPlan(self.measure)
        memory_manager.reduce_replicas(state, plan, count)
        for ws, tasks in plan.drops.items():
            memory_manager.drop(turn, ws, tasks)
        if left > count:
            turn.call_at(turn.now, GoOnManaging(left - count))
