"""Records of finished tasks: the task stream, and ``get_task_metadata``.

Both are scheduler plugins (in `plugins`, a ``Plugins``). They are registered when first requested,
and cost nothing before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

#: Keys whose metadata one collection waits for. Further keys are left out.
KEYS_MAX = 1_000_000


def task_stream(plugins: Any) -> Any:
    """Return distributed's ``TaskStreamPlugin``, and register it on the first call."""
    from distributed.diagnostics.task_stream import TaskStreamPlugin

    name = TaskStreamPlugin.name
    if name not in plugins:
        plugins.add(TaskStreamPlugin(plugins.facade), name)
    return plugins.by_name[name]


class TaskMetadata(SchedulerPlugin):
    """Collects metadata and final states of the tasks that clients submit while it is registered.

    Attributes:
        metadata: key -> metadata reported by its worker.
        state: key -> "memory" or "erred".
    """

    def __init__(self, facade: Any, name: str) -> None:
        self.name = name
        self.metadata: dict[Any, Any] = {}
        self.state: dict[Any, str] = {}
        self._facade = facade
        self._keys: set[Any] = set()

    def update_graph(self, scheduler: Any, *, keys: Iterable[Any], **_: Any) -> None:
        """Add the wanted keys of a graph."""
        if len(self._keys) < KEYS_MAX:
            self._keys.update(keys)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **_: Any) -> None:
        """Record a task that finished."""
        if finish in ("memory", "erred") and key in self._keys:
            self._keys.discard(key)
            self.metadata[key] = self._facade.tasks[key].metadata
            self.state[key] = finish


def start_task_metadata(plugins: Any, name: str) -> None:
    """Start a collection."""
    plugins.add(TaskMetadata(plugins.facade, name), name)


def stop_task_metadata(plugins: Any, name: str | None) -> dict[str, Any]:
    """Stop a collection and return what it found.

    Raises:
        ValueError: There is no collection of this name.
    """
    plugin = plugins.by_name.get(name) if name is not None else None
    if not isinstance(plugin, TaskMetadata):
        raise ValueError(
            f"Expected to find exactly one CollectTaskMetaDataPlugin with name {name} but found 0."
        )
    plugins.remove(plugin.name)
    return {"metadata": plugin.metadata, "state": plugin.state}
