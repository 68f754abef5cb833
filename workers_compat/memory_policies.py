"""Policies of the active memory manager that somebody wrote for stock's.

Where the configuration names any, distributed's own manager runs them on the facade, in place of the core's.

Must not know: how copies are made and dropped.
"""

from __future__ import annotations

from typing import Any

from . import config

KEY = "distributed.scheduler.active-memory-manager.policies"
OWN = ({"class": "distributed.active_memory_manager.ReduceReplicas"},)
"""What the core's manager does itself."""


def are_custom() -> bool:
    """Whether the configuration asks for other policies than those of the core's manager."""
    return tuple(config.get(KEY, OWN)) != OWN


def start(facade: Any) -> None:
    """Run the configured policies as stock does; ``amm_handler`` is theirs.

    Raises:
        Exception: a policy cannot be imported or made.
    """
    from distributed.active_memory_manager import ActiveMemoryManagerExtension

    facade.extensions["amm"] = ActiveMemoryManagerExtension(facade)
