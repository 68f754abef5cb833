"""The ends of scheduler processes, and whether the last ones have the same cause."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from .progress import hang_seconds

#: Deaths in a row while input of the same connection was handled, after which it is closed.
DEATHS_MAX: Final = 3
#: Longest time between two deaths of the same cause, in addition to ``hang_seconds``, seconds.
DEATH_SECONDS: Final = 60.0


class DeathKind(StrEnum):
    """Why a scheduler process ended."""

    #: It ended by itself or was killed.
    DIED = "died"
    #: It was replaced on purpose, by another release or by its own.
    UPGRADED = "was replaced by another release"
    RENEWED = "was replaced by a new process"


class Death(NamedTuple):
    """The end of a scheduler process.

    Attributes:
        code: its exit code, or the number of the signal that killed it, negative.
        time: seconds since the epoch.
        connection: number of the connection whose input it was handling, or 0.
        stimulus: digest of the stimulus of the server that it was handling, or 0.
        kind: why it ended.
    """

    code: int
    time: float
    connection: int = 0
    stimulus: int = 0
    kind: DeathKind = DeathKind.DIED

    @property
    def is_replacement(self) -> bool:
        """Return whether the process was replaced on purpose."""
        return self.kind is not DeathKind.DIED

    @property
    def how(self) -> str:
        """The way the process ended, as text."""
        if self.is_replacement:
            return self.kind.value
        if self.code < 0:
            names = {int(each): each.name for each in signal.Signals}  # no real-time signals
            return f"was killed by {names.get(-self.code, f'signal {-self.code}')}"
        return f"ended with {self.code}"


@dataclass
class Deaths:
    """The ends of scheduler processes so far.

    Attributes:
        last: the last ``DEATHS_MAX``, oldest first.
        n_restarts: number of processes that died.
        n_upgrades: number of processes that were replaced by another release.
        n_predecessors: number of dead processes whose memory the present one has inherited.
    """

    last: list[Death] = field(default_factory=list)
    n_restarts: int = 0
    n_upgrades: int = 0
    n_predecessors: int = 0

    def add(self, death: Death) -> None:
        """Count a death. Forget the oldest one if there are more than ``DEATHS_MAX``."""
        self.last = [*self.last, death][-DEATHS_MAX:]
        if death.is_replacement:
            self.n_upgrades += death.kind is DeathKind.UPGRADED
            self.n_predecessors = 0
        else:
            self.n_restarts += 1
            self.n_predecessors += 1

    @property
    def poisonous_connection(self) -> int:
        """The number of the connection whose input has ended ``DEATHS_MAX`` processes, or 0."""
        return self._repeated.connection

    @property
    def poisonous_stimulus(self) -> int:
        """The digest of the stimulus without a connection that has ended them, or 0."""
        return 0 if self._repeated.connection else self._repeated.stimulus

    @property
    def _repeated(self) -> Death:
        """The last death, if it had the same cause as ``DEATHS_MAX`` - 1 shortly before it.

        A successor handles the input of the dead process at once. So deaths that are further apart
        have other causes, even if the same busy client was served each time.
        """
        last = self.last
        connections = {death.connection for death in last}
        causes = connections if connections != {0} else {death.stimulus for death in last}
        seconds_max = hang_seconds() + DEATH_SECONDS
        is_repeated = (
            len(last) == DEATHS_MAX
            and len(causes) == 1
            and all(later.time - earlier.time < seconds_max for earlier, later in pairwise(last))
        )
        return last[-1] if is_repeated else Death(0, 0.0)
