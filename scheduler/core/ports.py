"""Protocols that packages above the core implement: pickled errors, and plugins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload

if TYPE_CHECKING:
    from paceline.scheduler.core.state.model import TaskState


class ErrorPort(Protocol):
    """Creates pickled exceptions for stock clients. Implemented in ``workers_compat/errors.py``."""

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

    def timeout_error(self, text: str) -> Payload: ...

    def actor_lost(self) -> Payload: ...


class TurnWrites:
    """Commands that hooks gave within one turn, for the journal.

    Attributes:
        calls: number of calls of the port in this turn.
        made: (number of the call within which it was given, command), in order.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.made: list[tuple[int, Any]] = []

    def begin(self) -> None:
        """Start a turn."""
        self.calls = 0
        if self.made:
            self.made = []


class PluginPort(Protocol):
    """Calls the hooks of plugins that override them.

    The core calls it within a turn. Writes of a hook on a task (``WriteTask``) apply at once; its
    other commands become stimuli of later turns. Implemented in
    ``workers_compat/facade/plugins.py``.
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
        """Notify plugins of a transition.

        ``edges`` holds the dependencies and dependents that a forgotten task had; it is None for
        other tasks.
        """

    def update_graph(
        self,
        *,
        client: str,
        keys: list[Key],
        touched: Callable[[], list[TaskState]],
        new_tasks: list[TaskState],
        stimulus_id: str,
    ) -> None:
        """Notify plugins of the tasks of a graph before they are scheduled.

        ``touched`` returns them with related tasks.
        """

    def add_worker(self, address: str) -> None: ...

    def remove_worker(self, address: str, stimulus_id: str) -> None: ...

    def add_client(self, client: str) -> None: ...

    def remove_client(self, client: str) -> None: ...

    def restart(self) -> None: ...
