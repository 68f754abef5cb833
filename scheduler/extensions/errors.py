"""The error reply of a request to an extension, and the exception that causes it."""

from __future__ import annotations

from dataclasses import dataclass


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
