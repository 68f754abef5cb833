"""Records of finished tasks for clients that ask: the task stream, and ``get_task_metadata``.

Both are scheduler plugins (``plugins`` is a ``Plugins`` of ``plugins.py``): they hear of transitions from when they are first asked for, and cost nothing before.

Must not know: who asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

#: Keys that one gathering of metadata waits for; what a client submits beyond is left out.
KEYS_MAX = 1_000_000


def task_stream(plugins: Any) -> Any:
    """distributed's ``TaskStreamPlugin``, which its dashboard reads too; added when first asked for."""
    from distributed.diagnostics.task_stream import TaskStreamPlugin

    name = TaskStreamPlugin.name
    if name not in plugins:
        plugins.add(TaskStreamPlugin(plugins.facade), name)
    return plugins.by_name[name]


class TaskMetadata(SchedulerPlugin):
    """Gathers metadata and final states of the tasks that clients ask for while it is registered.

    Attributes:
        metadata: key -> what its worker reported with it.
        state: key -> "memory" or "erred".
    """

    def __init__(self, facade: Any, name: str) -> None:
        self.name = name
        self.metadata: dict[Any, Any] = {}
        self.state: dict[Any, str] = {}
        self._facade = facade
        self._keys: set[Any] = set()

    def update_graph(self, scheduler: Any, *, keys: Iterable[Any], **_: Any) -> None:  # type: ignore[override]
        """A client asks for these keys."""
        if len(self._keys) < KEYS_MAX:
            self._keys.update(keys)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **_: Any) -> None:  # type: ignore[override]
        """One of them may be done."""
        if finish in ("memory", "erred") and key in self._keys:
            self._keys.discard(key)
            self.metadata[key] = self._facade.tasks[key].metadata
            self.state[key] = finish


def start_task_metadata(plugins: Any, name: str) -> None:
    """Begin a gathering."""
    plugins.add(TaskMetadata(plugins.facade, name), name)


def stop_task_metadata(plugins: Any, name: str | None) -> dict[str, Any]:
    """End a gathering: what it found.

    Raises:
        ValueError: there is none of this name.
    """
    plugin = plugins.by_name.get(name) if name is not None else None
    if not isinstance(plugin, TaskMetadata):
        raise ValueError(
            f"Expected to find exactly one CollectTaskMetaDataPlugin with name {name} but found 0."
        )
    plugins.remove(plugin.name)
    return {"metadata": plugin.metadata, "state": plugin.state}
