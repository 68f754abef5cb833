"""The RPC requests that the scheduler serves: coroutines, and tables of handlers.

Each module serves the requests of one subject and lists them in its ``HANDLERS``. A coroutine reads
the core's state between its awaits and changes it only through stimuli; what it read before an
await it checks again afterwards. Requests that an extension of the core handles need no entry: the
server feeds them to the core itself.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from .api import Handler


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
