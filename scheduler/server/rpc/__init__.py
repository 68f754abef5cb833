"""The RPC requests that the scheduler serves: one table, message class -> handler.

Each module of this package has a ``HANDLERS`` of its own; ``build_handlers`` puts them together and refuses
two handlers for one class. A module that is not in ``MODULES`` serves nothing.

Must not know: connections, encoding.
"""

from __future__ import annotations

from importlib import import_module

from .base import NO_REPLY, Handler, NoReply, PeerPort, RemoteError, ServerPort

__all__ = [
    "MODULES",
    "NO_REPLY",
    "Handler",
    "NoReply",
    "PeerPort",
    "RemoteError",
    "ServerPort",
    "build_handlers",
]

#: Modules of this package that serve requests: each holds ``HANDLERS: dict[type[Message], Handler]``.
MODULES: tuple[str, ...] = (
    "registration",
    "queries",
    "commands",
    "cluster",
    "data",
    "diagnostics",
    "explain",
    "feed",
    "memory",
    "plugins",
    "task_records",
)


def build_handlers(modules: tuple[str, ...] = MODULES) -> dict[type, Handler]:
    """The whole table.

    Raises:
        ValueError: two modules serve the same request.
    """
    table: dict[type, Handler] = {}
    for name in modules:
        module = import_module(f"{__name__}.{name}")
        for message_type, handler in module.HANDLERS.items():
            if message_type in table:
                raise ValueError(f"two handlers for {message_type.__name__}: one is in rpc/{name}.py")
            table[message_type] = handler
    return table
