"""Detect peers that do not read what is written to them.

A process that is stopped, or that holds the GIL for long, keeps its TCP connection because its
kernel answers. Such a peer has ``paceline.scheduler.unread-timeout`` to read anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from paceline.workers_compat.config import config

#: Default of ``paceline.scheduler.unread-timeout``, seconds.
UNREAD_SECONDS = 300.0


class UnreadTimer:
    """A timer that runs while a peer has bytes to read.

    Args:
        unread: returns the number of bytes that wait for the peer.
        expired: called with the timeout in seconds if this number did not fall during the timeout.
    """

    def __init__(self, unread: Callable[[], int], expired: Callable[[float], object]) -> None:
        configured = config.seconds(config.get("paceline.scheduler.unread-timeout"))
        self._seconds = UNREAD_SECONDS if configured is None else configured
        self._unread = unread
        self._expired = expired
        self._nbytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer, or restart it because the peer has read something."""
        self.stop()
        self._nbytes = self._unread()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, self._check)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        if self._unread() < self._nbytes:
            self.start()
        else:
            self._timer = None
            self._expired(self._seconds)
