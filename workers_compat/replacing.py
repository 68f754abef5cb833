"""Replaces ``distributed.Scheduler`` in all modules of distributed that import it."""

from __future__ import annotations

import sys


def current_scheduler_class() -> type:
    """Return the class that distributed currently binds as ``Scheduler``."""
    from distributed import scheduler

    current: type = scheduler.Scheduler
    return current


def replace_class(replacement: type) -> None:
    """Bind `replacement` wherever a module of distributed binds the current class."""
    current = current_scheduler_class()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "distributed" and vars(module).get("Scheduler") is current:
            module.Scheduler = replacement  # type: ignore[attr-defined]
