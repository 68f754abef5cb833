"""The RPC requests that the scheduler serves: coroutines, and a table of handlers.

Each module serves the requests of one subject and lists them in its ``HANDLERS``. A coroutine reads
the core's state between its awaits and changes it only through stimuli; what it read before an
await it checks again afterwards. Requests that an extension of the core handles need no entry: the
server feeds them to the core itself.
"""

from __future__ import annotations

from importlib import import_module

from .api import Handler

#: Modules of this package that serve requests; each has a ``HANDLERS: dict[type[Message],
#: Handler]``.
MODULES: tuple[str, ...] = (
    "registration",
    "turns",
    "cluster",
    "broadcast",
    "restart",
    "retire",
    "gather",
    "scatter",
    "replicate",
    "plugins",
    "run_function",
    "diagnostics",
    "dump",
    "memory_sampler",
    "performance_report",
)


def build_handlers(modules: tuple[str, ...] = MODULES) -> dict[type, Handler]:
    """Return the handlers of all ``modules``.

    Raises:
        ValueError: two modules serve the same request.
    """
    table: dict[type, Handler] = {}
    for name in modules:
        module = import_module(f"{__name__}.{name}")
        for message_type, handler in module.HANDLERS.items():
            if message_type in table:
                raise ValueError(
                    f"two handlers for {message_type.__name__}: one is in requests/{name}.py"
                )
            table[message_type] = handler
    return table
