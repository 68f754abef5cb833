"""Handlers of messages: how they are found, the base class of extensions, and its error.

An extension receives messages and notifications about peers that left, sets timers, and replies
through the turn. It has its own state and reads the core's. It changes the core's state only
through functions of the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args, get_type_hints

from .turn import Handler, Registry, Turn


def handlers_of(extension: Extension) -> Registry:
    """Return the methods ``handle_...`` of `extension`.

    The annotation of the second parameter names the class of messages, or several as a union.
    """
    registry: Registry = {}
    for name in dir(extension):
        if name.startswith("handle_"):
            handler = getattr(extension, name)
            _, kind, *_ = get_type_hints(handler).values()
            for each in get_args(kind) or (kind,):
                assert each not in registry, each
                registry[each] = handler
    return registry


@dataclass(slots=True, frozen=True)
class ExtensionErrorReply:
    """The reply to an RPC request that failed.

    Attributes:
        kind: name of a builtin exception, such as "TimeoutError" or "KeyError".
        text: its only argument; "" for an exception without arguments.
    """

    kind: str
    text: str = ""


class ExtensionError(Exception):
    """Raised by a handler whose request fails; ``Extension`` sends ``reply`` to the requester.

    Attributes:
        reply: the reply to the request.
    """

    def __init__(self, kind: str, text: str = "") -> None:
        super().__init__(kind, text)
        self.reply = ExtensionErrorReply(kind, text)


class Extension:
    """Base of the extensions.

    Methods ``handle_...`` handle the messages with which their second parameter is annotated.

    Attributes:
        name: name in ``core.extensions``, which is stock's name of the extension.
    """

    name: ClassVar[str] = ""

    def handlers(self) -> Registry:
        """Return message class -> handler, which replies with an ExtensionError that it raises."""
        return {kind: _with_error_reply(handler) for kind, handler in handlers_of(self).items()}

    def on_client_removed(self, turn: Turn, client: str) -> None:
        """Handle the removal of `client`."""

    def on_worker_removed(self, turn: Turn, address: str) -> None:
        """Handle the removal of the worker at `address`."""

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        """Drop a request whose connection was closed before the reply."""

    def on_restart(self, turn: Turn) -> None:
        """Handle a restart of the cluster, which released the keys of all clients."""


def _with_error_reply(handler: Handler) -> Handler:
    def handle(turn: Turn, message: object) -> None:
        try:
            handler(turn, message)
        except ExtensionError as error:
            turn.reply(turn.request_id, error.reply)

    return handle
