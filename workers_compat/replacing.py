"""Puts another class in the place of ``distributed.Scheduler``, wherever distributed binds it."""

from __future__ import annotations

import sys


def current_scheduler_class() -> type:
    """Return the class that distributed currently binds as ``Scheduler``."""
    from distributed import scheduler

    return scheduler.Scheduler


def replace_class(replacement: type) -> None:
    """Bind it in ``distributed``, ``distributed.scheduler`` and all modules of distributed that have imported the other."""
    standing = current_scheduler_class()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "distributed" and vars(module).get("Scheduler") is standing:
            module.Scheduler = replacement  # type: ignore[attr-defined]
