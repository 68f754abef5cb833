"""What all extensions have in common: the shape of a machine.

A machine is told of messages, timers and departures, and answers through the turn. It holds its own state and
reads the core's; it changes the core's state only through the functions that the core offers for it.

Must not know: any particular machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from .replies import Refused

if TYPE_CHECKING:
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.core.turn import Turn

Handler: TypeAlias = "Callable[[Turn, Stimulus], None]"


class Machine:
    """Base of the extensions.

    Attributes:
        name: under which ``core.extensions`` holds it; stock's name of the extension.
    """

    name: ClassVar[str] = ""

    def routes(self) -> Mapping[type[Any], Handler]:
        """Message class, or class of one of its timer messages -> method."""
        raise TypeError(f"{type(self).__name__} has no routes")

    def handlers(self) -> dict[type[Any], Handler]:
        """``routes``, with what a handler refuses turned into the error reply."""
        return {message: answering(handler) for message, handler in self.routes().items()}

    def on_client_gone(self, turn: Turn, client: str) -> None:
        """A client left for good."""

    def on_worker_gone(self, turn: Turn, address: str) -> None:
        """A worker left."""

    def on_request_gone(self, turn: Turn, request_id: int) -> None:
        """Nobody waits for the reply to this request any more."""

    def on_keys_known(self, turn: Turn) -> None:
        """Tasks were added. Optional: machines that wait for a task also look by themselves."""

    def on_restart(self, turn: Turn) -> None:
        """The cluster restarts: every client's wishes have ended, and pseudo clients' too."""


def answering(handler: Handler) -> Handler:
    """``handler``, answering with an ErrorReply where it raises Refused."""

    def handle(turn: Turn, stimulus: Stimulus) -> None:
        try:
            handler(turn, stimulus)
        except Refused as refusal:
            turn.reply(stimulus.request_id, refusal.reply)

    return handle


def sender(stimulus: Stimulus) -> str:
    """The client that a stream message is from: the one it names (a worker's client speaks for itself), or
    the one whose stream it is."""
    return stimulus.message.client or stimulus.source
