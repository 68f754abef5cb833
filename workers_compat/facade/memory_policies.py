"""Custom policies of the active memory manager.

If the configuration names any, distributed's own manager runs them on the facade, in place of the
core's manager.
"""

from __future__ import annotations

from typing import Any

from paceline.workers_compat.config import config

KEY = "distributed.scheduler.active-memory-manager.policies"
#: The policies that the core's manager implements.
OWN = ({"class": "distributed.active_memory_manager.ReduceReplicas"},)


def has_custom_policies() -> bool:
    """Return whether the configuration names other policies than the core's manager implements."""
    return tuple(config.get(KEY, OWN)) != OWN


def start(facade: Any) -> None:
    """Run the configured policies as stock does. Their manager serves ``amm_handler``.

    Raises:
        Exception: A policy cannot be imported or created.
    """
    from distributed.active_memory_manager import ActiveMemoryManagerExtension

    facade.extensions["amm"] = ActiveMemoryManagerExtension(facade)
