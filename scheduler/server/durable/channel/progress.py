"""Memory that the keeper and the scheduler process share."""

from __future__ import annotations

import mmap
import os
import time
from typing import Final

from paceline.workers_compat.config import config

#: Default of ``paceline.scheduler.hang-timeout``, seconds.
HANG_SECONDS: Final = 300.0


def hang_seconds() -> float:
    """Return the seconds after which an event loop that does not run is considered to hang."""
    seconds = config.seconds(config.get("paceline.scheduler.hang-timeout"))
    return HANG_SECONDS if seconds is None else seconds


class KeptMemory:
    """Memory that processes share.

    Args:
        nbytes: its size, if it is allocated.
        fd: its descriptor; None to allocate it.
    """

    def __init__(self, nbytes: int, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("durable")
            os.ftruncate(fd, nbytes)
        self.fd = fd
        self.memory = mmap.mmap(fd, 0)


class Progress:
    """Memory in which a scheduler process notes what it does; the keeper reads it."""

    def __init__(self, fd: int | None = None) -> None:
        self.shared = KeptMemory(mmap.PAGESIZE, fd)
        self._words = memoryview(self.shared.memory).cast("Q")

    def alive(self) -> None:
        """Note that the event loop runs."""
        self._words[0] = time.monotonic_ns()

    def idle_seconds(self) -> float:
        """Return the time since ``alive`` was called."""
        return (time.monotonic_ns() - self._words[0]) / 1e9

    @property
    def clock(self) -> float:
        """The time that the clock of the scheduler process would show now; 0 if it is unknown."""
        offset = self._words[3]
        return (time.monotonic_ns() + offset) / 1e9 if offset else 0.0

    @clock.setter
    def clock(self, now: float) -> None:
        self._words[3] = max(0, int(now * 1e9) - time.monotonic_ns())

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
