"""The base class of extensions.

An extension receives messages, timers and notifications about peers that left, and replies through
the turn. It has its own state and reads the core's. It changes the core's state only through
functions of the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeVar

from paceline.scheduler.core.registry import Handler, Registry

from .errors import ExtensionError

if TYPE_CHECKING:
    from paceline.scheduler.core.turn import Turn

M = TypeVar("M")


class Extension:
    """Base of the extensions.

    Attributes:
        name: name in ``core.extensions``, which is stock's name of the extension.
    """

    name: ClassVar[str] = ""

    def routes(self) -> Registry:
        """Return the handler of each class of messages and timer messages."""
        raise TypeError(f"{type(self).__name__} has no routes")

    def handlers(self) -> Registry:
        """Return ``routes`` with handlers that reply to a request that raises ExtensionError."""
        return {kind: with_error_reply(handler) for kind, handler in self.routes().items()}

    def on_client_gone(self, turn: Turn, client: str) -> None:
        """Handle the removal of `client`."""

    def on_worker_gone(self, turn: Turn, address: str) -> None:
        """Handle the removal of the worker at `address`."""

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        """Drop a request whose connection was closed before the reply."""

    def on_restart(self, turn: Turn) -> None:
        """Handle a restart of the cluster, which released the keys of all clients."""


def with_error_reply(handler: Handler[M]) -> Handler[M]:
    """Return `handler`, replying with the ExtensionErrorReply of an ExtensionError it raises."""

    def handle(turn: Turn, message: M, /) -> None:
        try:
            handler(turn, message)
        except ExtensionError as error:
            turn.reply(turn.request_id, error.reply)

    return handle
