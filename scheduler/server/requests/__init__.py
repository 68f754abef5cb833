"""The handlers of RPC requests: coroutines and functions, in one module per subject.

- Data: ``gather``, ``scatter`` (with update_data), ``replicate`` (with rebalance).
- Workers and clients: ``registration`` (with heartbeats), ``retire``, ``restart``, ``cluster``
  (number of workers, idleness, shutdown).
- State of the core: ``queries`` reads it, ``state_changes`` sends one stimulus.
- For clients: ``run_function`` (with feeds), ``plugins``, ``broadcast`` (with worker_logs).
- Diagnostics: ``diagnostics`` (profiles, logs, records of tasks), ``dump``, ``memory_sampler``,
  ``performance_report``.

Each has a table ``HANDLERS``: class of the request (see ``protocol.catalogue``) -> handler.
``handler_parts`` and ``state`` are what they share. A coroutine reads the core's state between its
awaits and changes it only through stimuli; what it read before an await it checks again afterwards.
Requests that an extension of the core handles need no entry: the server feeds them to the core
itself.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from paceline.scheduler.server.server_api import Handler


def import_modules() -> list[ModuleType]:
    """Import and return all modules of this package."""
    return [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)]


def build_handlers() -> dict[type, Handler]:
    """Return the handlers of all modules of this package.

    Raises:
        ValueError: two modules serve the same request.
    """
    table: dict[type, Handler] = {}
    for module in import_modules():
        found: dict[type, Handler] = getattr(module, "HANDLERS", {})
        if twice := table.keys() & found.keys():
            raise ValueError(f"{module.__name__} has second handlers for {twice}")
        table |= found
    return table
