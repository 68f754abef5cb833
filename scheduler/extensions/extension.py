"""The base class of extensions.

An extension receives messages and notifications about peers that left, sets timers, and replies
through the turn. It has its own state and reads the core's. It changes the core's state only
through functions of the core.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.scheduler.core.registry import Handler, Registry, handlers_of
from paceline.scheduler.core.turn import Turn

from .errors import ExtensionError


class Extension:
    """Base of the extensions.

    Methods ``handle_...`` handle the messages with which their second parameter is annotated.

    Attributes:
        name: name in ``core.extensions``, which is stock's name of the extension.
    """

    name: ClassVar[str] = ""

    def handlers(self) -> Registry:
        """Return message class -> handler, which replies with an ExtensionError that it raises."""
        return {kind: with_error_reply(handler) for kind, handler in handlers_of(self).items()}

    def on_client_gone(self, turn: Turn, client: str) -> None:
        """Handle the removal of `client`."""

    def on_worker_gone(self, turn: Turn, address: str) -> None:
        """Handle the removal of the worker at `address`."""

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        """Drop a request whose connection was closed before the reply."""

    def on_restart(self, turn: Turn) -> None:
        """Handle a restart of the cluster, which released the keys of all clients."""


def with_error_reply(handler: Handler) -> Handler:
    """Return `handler`, replying with the ExtensionErrorReply of an ExtensionError it raises."""

    def handle(turn: Turn, message: object) -> None:
        try:
            handler(turn, message)
        except ExtensionError as error:
            turn.reply(turn.request_id, error.reply)

    return handle
