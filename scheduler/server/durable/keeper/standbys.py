"""The standbys that the keeper can wake."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.scheduler.server.durable.channel.kept import Kept
from paceline.scheduler.server.durable.channel.messages import (
    parse_greeting,
    receive,
    request_standby,
)
from paceline.scheduler.server.durable.log.segments import remove_segments
from paceline.scheduler.server.runtime import build

if TYPE_CHECKING:
    from paceline.scheduler.server.runtime.template import Template

logger = logging.getLogger("distributed.scheduler")

#: Time within which a standby must be ready, and have left another one when it was woken, seconds.
WAKE_SECONDS = 5.0


@dataclass
class Standby:
    """A standby as the keeper knows it.

    Attributes:
        sock: socket to it.
        segment: the first segment of the log that it needs.
        pid: its process id, once it is ready.
        release: its version of paceline, once it is ready.
    """

    sock: socket.socket
    segment: int
    pid: int = 0
    release: str = ""

    def greeted(self, message: bytes) -> None:
        """Store what the standby has sent when it was ready."""
        self.pid, self.release = parse_greeting(message)

    def end(self) -> None:
        """Close the socket; the process then exits."""
        self.sock.close()


class Standbys:
    """The standbys of the scheduler process.

    Args:
        folder: the folder of the log.
        kept: what a standby receives when it is woken.

    Attributes:
        current: the one to wake, or None.
        upcoming: a newer one that is not ready yet, or None.
        fallback: the one of the old release, until that of the other release is ready, or None.
        is_trimmed: whether the log does not go back to the start, so that only a standby continues.
    """

    def __init__(self, folder: Path, kept: Kept) -> None:
        self._folder = folder
        self._kept = kept
        self.current: Standby | None = None
        self.upcoming: Standby | None = None
        self.fallback: Standby | None = None
        self.is_trimmed = False

    @property
    def socks(self) -> list[socket.socket]:
        """The sockets of the standbys of the scheduler process."""
        return [each.sock for each in (self.current, self.upcoming) if each is not None]

    @property
    def fds(self) -> list[int]:
        """The descriptors of all standbys."""
        socks = [*self.socks, *([self.fallback.sock] if self.fallback is not None else [])]
        return [sock.fileno() for sock in socks]

    def add(self, sock: socket.socket, segment: int) -> None:
        """Add a standby that is not ready yet, in place of an earlier one."""
        if self.upcoming is not None:
            self.upcoming.end()
        self.upcoming = Standby(sock, segment)

    def end(self) -> None:
        """End the standbys of the scheduler process."""
        for each in (self.current, self.upcoming):
            if each is not None:
                each.end()
        self.current = None
        self.upcoming = None

    def set_fallback(self, successor: Standby | None) -> None:
        """Let ``successor``, of the other release, be woken, and keep one of the old release."""
        self.fallback = self.current or self.upcoming
        self.current = successor
        self.upcoming = None

    def use_fallback(self) -> None:
        """Let the standby of the old release be woken."""
        self.end()
        self.current = self.fallback
        self.fallback = None

    def end_fallback(self) -> None:
        """End the standby of the old release."""
        if self.fallback is not None:
            self.fallback.end()
            self.fallback = None

    def handle(
        self, ready: list[Any], channel: socket.socket | None, upgrade_segment: int | None
    ) -> None:
        """Replace the standby by the next one when that is ready. Report if it has ended.

        Args:
            ready: the sockets that are ready.
            channel: to the scheduler process, which another standby is requested from.
            upgrade_segment: the first segment of the log that an upgrade needs, or None.
        """
        upcoming = self.upcoming
        if upcoming is not None and upcoming.sock in ready:
            self.upcoming = None
            data, _ = receive(upcoming.sock)
            if data:
                upcoming.greeted(data)
                if self.current is not None:
                    self.current.end()
                self.current = upcoming
                self.is_trimmed = upcoming.segment > 1
                self.remove_segments(upcoming.segment, upgrade_segment)
            else:
                logger.error("A standby process has ended before it was ready")
                upcoming.end()
                request_standby(channel)
        elif self.current is not None and self.current.sock in ready:
            logger.error("The standby process %d has ended; forking another one", self.current.pid)
            self.current.end()
            self.current = None
            request_standby(channel)

    def remove_segments(self, before: int, upgrade_segment: int | None) -> None:
        """Remove the segments of the log that no standby needs."""
        needed = [before]
        if self.fallback is not None:
            needed.append(self.fallback.segment)
        if upgrade_segment is not None:
            needed.append(upgrade_segment)
        with logging_errors():
            remove_segments(self._folder, min(needed))

    def wake(
        self, channel: socket.socket, template: Template | None, upgrade_segment: int | None
    ) -> int:
        """Let a standby become the scheduler process. Return its process id, 0 if none answers.

        Args:
            channel: its end of the channel.
            template: starts its child processes.
            upgrade_segment: as in ``handle``.
        """
        while self.current is not None or self.upcoming is not None:
            upcoming = self.upcoming
            if self.current is None and upcoming is not None:
                if wait([upcoming.sock], WAKE_SECONDS):
                    self.handle([upcoming.sock], None, upgrade_segment)
                else:
                    upcoming.end()
                    self.upcoming = None
            standby, self.current = self.current, None
            if standby is not None and self._wake(standby, channel, template):
                return standby.pid
        return 0

    def _wake(self, standby: Standby, channel: socket.socket, template: Template | None) -> bool:
        """Let a standby become the scheduler process, and wait for the standby that it leaves.

        Kill it if it does not answer, unless there is no other way to continue than to wait for it.
        Return whether it is the scheduler process.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        standby.sock.settimeout(WAKE_SECONDS)
        if standby.release != build.description():  # its messages to graph compilers may differ
            template = None
        try:
            with standby.sock, theirs:
                self._kept.send(standby.sock, [channel, theirs], template)
            has_answered = bool(wait([ours], WAKE_SECONDS))
            data = receive(ours)[0] if has_answered else b""
        except OSError as error:
            logger.warning("The standby process %d cannot be woken: %s", standby.pid, error)
            ours.close()
            return False
        others = self.upcoming or self.fallback
        can_wait = not has_answered and self.is_trimmed and others is None
        if not data and not can_wait:
            logger.error("The standby process %d does not answer; killing it", standby.pid)
            ours.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(standby.pid, signal.SIGKILL)
            return False
        if self.upcoming is not None:
            self.upcoming.end()
        following = Standby(ours, standby.segment)
        following.greeted(data)
        self.current, self.upcoming = (following, None) if data else (None, following)
        return True


@contextlib.contextmanager
def logging_errors() -> Iterator[None]:
    """Log errors of the system instead of raising them: if the keeper ends, the cluster does."""
    try:
        yield
    except OSError as error:
        logger.error("The keeper continues after an error: %s", error)
