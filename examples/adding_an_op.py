"""Add an operation: `tally` counts votes under a name. Shown from the typed message to its reply.

A new operation needs:

1. in `protocol/messages/`: its class, in the module of its direction (here `Tally`);
2. in `protocol/catalogue.py`: its entry, from which decoder, documentation and table of
   handlers follow;
3. a handler: in an extension in `scheduler/extensions/` (as here), in the core
   (`scheduler/core/handlers/`), or, if it needs an `await`, in `scheduler/server/requests/`;
4. a test. `tests/tidy/` fails while an operation of the catalogue has no handler.
"""

from typing import ClassVar

import msgspec
from paceline.protocol.messages import Request
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.extension import Extension, ExtensionError
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.stimuli import Stimulus
from paceline.scheduler.core.turn import Turn
from paceline.workers_compat.errors import ErrorFactory

NAMES_MAX = 1_000  # every container has a named limit


class Tally(Request, frozen=True, kw_only=True, tag="tally"):
    """Add votes under a name. Returns: the sum of votes.

    Attributes:
        name: the name that the votes are for.
        votes: number of votes; may be negative.
    """

    name: str
    votes: int = 1


class Tallies(Extension):
    """Handles the operation `tally`."""

    name: ClassVar[str] = "tallies"

    def __init__(self) -> None:
        self._votes: dict[str, int] = {}

    def handle_tally(self, turn: Turn, message: Tally) -> None:
        """Add the votes and reply with the sum. Refuse a name above the limit."""
        if message.name not in self._votes and len(self._votes) >= NAMES_MAX:
            raise ExtensionError("RuntimeError", f"More than {NAMES_MAX} names have votes")
        self._votes[message.name] = self._votes.get(message.name, 0) + message.votes
        turn.reply(turn.request_id, self._votes[message.name])


core = SchedulerCore(SchedulerConfig(), ErrorFactory(), EventLog(), [Tallies()])

for request_id, votes in enumerate((1, 41), 1):
    on_the_wire = msgspec.msgpack.encode(Tally(name="blue", votes=votes))
    message = msgspec.msgpack.decode(on_the_wire, type=Tally)
    stimulus = Stimulus("tcp://10.0.0.9:5", message, f"tally-{request_id}", request_id)
    outbox = core.handle(stimulus, now=float(request_id))
    print(f"{msgspec.to_builtins(message)} -> {outbox.replies}")
assert outbox.replies == [(2, 42)]
