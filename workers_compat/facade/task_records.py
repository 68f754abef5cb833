"""Records of finished tasks: the task stream, and ``get_task_metadata``.

Both are scheduler plugins (in `plugins`, a ``Plugins``). They are registered when first requested,
and cost nothing before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed.diagnostics.task_stream import TaskStreamPlugin
from distributed.scheduler import CollectTaskMetaDataPlugin

#: Keys whose metadata one collection waits for. Further keys are left out.
KEYS_MAX = 1_000_000


def task_stream(plugins: Any) -> Any:
    """Return distributed's ``TaskStreamPlugin``, and register it on the first call."""
    name = TaskStreamPlugin.name
    if name not in plugins:
        plugins.add(TaskStreamPlugin(plugins.facade), name)
    return plugins.by_name[name]


class TaskMetadata(CollectTaskMetaDataPlugin):
    """distributed's plugin, with a limit on the number of keys."""

    def update_graph(self, scheduler: Any, *, keys: Iterable[Any], **_: Any) -> None:
        if len(self.keys) < KEYS_MAX:
            self.keys.update(keys)


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
