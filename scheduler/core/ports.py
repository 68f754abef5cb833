"""What the core asks of rooms above it, as protocols: errors that only pickles can say, and plugins.

Must not know: who implements them.
"""

from __future__ import annotations

from typing import Any, Protocol

from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload


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


class PluginPort(Protocol):
    """Calls the hooks of plugins that override them. Implemented in ``workers_compat/facade.py``."""

    def transition(
        self, key: Key, start: str, finish: str, stimulus_id: str, details: Any
    ) -> None: ...

    def update_graph(self, **facts: Any) -> None: ...

    def add_worker(self, address: str) -> None: ...

    def remove_worker(self, address: str, stimulus_id: str) -> None: ...

    def add_client(self, client: str) -> None: ...

    def remove_client(self, client: str) -> None: ...
