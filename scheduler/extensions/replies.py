"""What an extension answers when it cannot do what it was asked.

Must not know: how an error travels to a stock peer (the server pickles it into the shape that peers raise).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ErrorReply:
    """The reply to an RPC request that failed.

    Attributes:
        kind: name of a builtin exception, such as "TimeoutError" or "KeyError".
        text: its only argument; "" for an exception without arguments.
    """

    kind: str
    text: str = ""


class Refused(Exception):
    """A handler cannot do what it was asked: ``Machine`` answers with ``reply``.

    Attributes:
        reply: what goes to the one who asked.
    """

    def __init__(self, kind: str, text: str = "") -> None:
        super().__init__(kind, text)
        self.reply = ErrorReply(kind, text)
