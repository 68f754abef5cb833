"""What the core asks of rooms above it, as protocols: errors that only pickles can say, and plugins.

Must not know: who implements them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload

if TYPE_CHECKING:
    from .state import TaskState


class ErrorPort(Protocol):
    """Makes exceptions that stock clients open. Implemented in ``workers_compat/errors.py``."""

    def killed_worker(
        self, task_key: Key, worker_facts: dict[str, Any], allowed_failures: int
    ) -> Payload: ...

    def no_worker(self, task_key: Key, timeout: float) -> Payload: ...

    def no_valid_worker(
        self,
        task_key: Key,
        host_restrictions: Any,
        worker_restrictions: Any,
        resource_restrictions: Any,
        timeout: float,
    ) -> Payload: ...

    def memory_error(self, text: str) -> Payload: ...

    def actor_lost(self) -> Payload: ...


class TurnWrites:
    """What hooks wrote within one turn, for the journal.

    Attributes:
        calls: how often the core has called the port in this turn.
        made: (number of the call within which it was made, command), in order.
    """

    __slots__ = ("calls", "made")

    def __init__(self) -> None:
        self.calls = 0
        self.made: list[tuple[int, Any]] = []

    def begin(self) -> None:
        """A turn begins."""
        self.calls = 0
        if self.made:
            self.made = []


class PluginPort(Protocol):
    """Calls the hooks of plugins that override them. Implemented in ``workers_compat/plugins.py``.

    The core calls it within a turn. What a hook writes on a task (``WriteTask``) applies at once; all else that it
    does comes back as stimuli of later turns.
    """

    def transition(
        self,
        ts: TaskState,
        start: str,
        finish: str,
        stimulus_id: str,
        detail: Any,
        edges: tuple[Any, Any] | None,
    ) -> None:
        """A transition was made. ``edges``: of a task that was forgotten, dependencies and dependents as they were
        before it; None of others."""

    def update_graph(
        self,
        *,
        client: str,
        keys: list[Key],
        touched: Callable[[], list[TaskState]],
        new_tasks: list[TaskState],
        stimulus_id: str,
    ) -> None:
        """A graph's tasks are made; nothing of it is scheduled yet. ``touched`` gives them, with those beside them."""

    def add_worker(self, address: str) -> None: ...

    def remove_worker(self, address: str, stimulus_id: str) -> None: ...

    def add_client(self, client: str) -> None: ...

    def remove_client(self, client: str) -> None: ...

    def restart(self) -> None: ...
