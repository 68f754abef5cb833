"""Where scheduler plugins live, and what functions that run here receive as the scheduler.

Must not know: what plugins do, when the core calls them (``core.ports.PluginPort``).
"""

from __future__ import annotations

import warnings
from typing import Any


class PluginHost:
    """Plugins by name. See ``flows.ports.PluginHost``.

    Attributes:
        facade: what plugins and functions receive as ``dask_scheduler``.
    """

    def __init__(self, facade: Any) -> None:
        self.facade = facade
        self._plugins: dict[str, Any] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._plugins

    def add(self, plugin: Any, name: str, idempotent: bool = False) -> None:
        """Keep a plugin; it replaces one of the same name, with stock's warning."""
        if name in self._plugins:
            if idempotent:
                return
            warnings.warn(
                f"Scheduler already contains a plugin with name {name}; overwriting.",
                category=UserWarning,
                stacklevel=2,
            )
        self._plugins[name] = plugin

    def remove(self, name: str) -> None:
        """Forget a plugin.

        Raises:
            ValueError: there is none of this name.
        """
        if self._plugins.pop(name, None) is None:
            raise ValueError(f"Could not find plugin {name!r} among the current scheduler plugins")

    def each(self) -> list[Any]:
        """The plugins, in order of registration."""
        return list(self._plugins.values())
