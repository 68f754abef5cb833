"""What the keeper holds, and what it and the scheduler process send each other."""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from paceline.protocol.framing import SCRATCH_NBYTES

#: A message to the keeper begins with its kind and a number.
HEAD: Final = struct.Struct("<cI")
#: Hold a connection, release it; hold listening sockets, under the name that follows.
KEEP, RELEASE, LISTEN = b"k", b"r", b"l"
#: The scheduler serves its peers; its log is incomplete; it has forked a standby.
READY, GIVE_UP, STANDBY = b"a", b"g", b"s"
#: Largest message that wakes a standby, and the number of sockets in it.
WAKE_NBYTES: Final = 64 * 2**10
WAKE_SOCKETS_MAX: Final = 250


class Death(NamedTuple):
    """The end of a scheduler process.

    Attributes:
        how: the way it ended, as text.
        time: seconds since the epoch.
        connection: number of the connection whose input it was handling, or 0.
        stimulus: digest of the stimulus of the server that it was handling, or 0.
    """

    how: str
    time: float
    connection: int
    stimulus: int = 0


class Awakening(NamedTuple):
    """The last message that wakes a standby, with its channel, the next standby's, the template's.

    Attributes:
        listening: as in ``Kept``, with the numbers of descriptors that follow those.
        last_number, deaths: as in ``Kept``.
        template_pid: process id of the template.
    """

    listening: dict[str, int]
    last_number: int
    deaths: list[Death]
    template_pid: int


class Progress:
    """Memory in which a scheduler process notes what it does; the keeper reads it."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def alive(self) -> None:
        """Note that the event loop runs."""
        self._words[0] = time.monotonic_ns()

    def idle_seconds(self) -> float:
        """Return the time since ``alive`` was called."""
        return (time.monotonic_ns() - self._words[0]) / 1e9

    @property
    def connection(self) -> int:
        """Number of the connection whose input is being handled, or 0."""
        return self._words[1]

    @connection.setter
    def connection(self, number: int) -> None:
        self._words[1] = number

    @property
    def stimulus(self) -> int:
        """Digest of the stimulus of the server that is being handled, or 0."""
        return self._words[2]

    @stimulus.setter
    def stimulus(self, digest: int) -> None:
        self._words[2] = digest


@dataclass
class Kept:
    """What the keeper holds.

    Attributes:
        connections: number -> descriptor of a connection.
        listening: "host:port" as given -> descriptors that listen there.
        last_number: the highest number of a connection so far.
        deaths: the ends of scheduler processes so far, oldest first.
        scratch: memory into which the scheduler reads.
        progress: what the scheduler process does.
    """

    connections: dict[int, int] = field(default_factory=dict)
    listening: dict[str, list[int]] = field(default_factory=dict)
    last_number: int = 0
    deaths: list[Death] = field(default_factory=list)
    scratch: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, SCRATCH_NBYTES))
    progress: Progress = field(default_factory=Progress)

    @property
    def fds(self) -> list[int]:
        """The descriptors of all sockets."""
        return [*self.connections.values(), *(fd for fds in self.listening.values() for fd in fds)]
