"""Adding an op: `tally`, which counts votes under a name, from the typed message to its reply.

These are the places that a new op touches:

1. `protocol/messages/`: its class, in the module of its direction (here `Tally`);
2. `protocol/catalogue.py`: its line, from which the decoder, the documentation and the handlers' table follow;
3. who handles it: a machine of `scheduler/extensions/` (here), a handler of the core (`core.HANDLERS`), or, where it
   needs an await, `scheduler/server/rpc/` and `flows/`;
4. a test beside those of its room. `tests/tidy/` fails while an op of the catalogue has no handler.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from paceline.protocol.messages import Request
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.stimuli import Stimulus
from paceline.scheduler.core.turn import Turn
from paceline.scheduler.extensions.events import EventLog
from paceline.scheduler.extensions.machine import Handler, Machine
from paceline.scheduler.extensions.replies import Refused
from paceline.workers_compat.errors import ErrorFactory

NAMES_MAX = 1_000  # every container has a limit with a name


class Tally(Request, frozen=True, kw_only=True, tag="tally"):
    """Add votes under a name. Returns: the votes so far.

    Attributes:
        name: what is voted for.
        votes: how many; may be negative.
    """

    name: str
    votes: int = 1


class Tallies(Machine):
    """Op `tally`."""

    name: ClassVar[str] = "tallies"

    def __init__(self) -> None:
        self._votes: dict[str, int] = {}

    def routes(self) -> Mapping[type[Any], Handler]:
        return {Tally: self.handle_tally}

    def handle_tally(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies the sum; refuses what would exceed the limit."""
        message: Tally = stimulus.message
        if message.name not in self._votes and len(self._votes) >= NAMES_MAX:
            raise Refused("RuntimeError", f"More than {NAMES_MAX} names have votes")
        self._votes[message.name] = self._votes.get(message.name, 0) + message.votes
        turn.reply(stimulus.request_id, self._votes[message.name])


core = SchedulerCore(SchedulerConfig(), ErrorFactory(), EventLog(), [Tallies()])

for request_id, votes in enumerate((1, 41), 1):
    on_the_wire = msgspec.msgpack.encode(Tally(name="blue", votes=votes))
    message = msgspec.msgpack.decode(on_the_wire, type=Tally)
    stimulus = Stimulus("tcp://10.0.0.9:5", message, f"tally-{request_id}", request_id)
    outbox = core.handle(stimulus, now=float(request_id))
    print(f"{msgspec.to_builtins(message)} -> {outbox.replies}")
assert outbox.replies == [(2, 42)]
