"""The scheduler's end of the channel to the keeper."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.scheduler.server.durable.log.segments import Position
from paceline.scheduler.server.runtime.template import Template

from .kept import Kept
from .messages import (
    ENDING,
    GIVE_UP,
    HEAD,
    KEEP,
    LISTEN,
    READY,
    RELEASE,
    STANDBY,
    WAKE_NBYTES,
    WAKE_SOCKETS_MAX,
    SnapshotRequest,
)

if TYPE_CHECKING:
    from paceline.scheduler.server.durable.recovery.replay import RecordedState


class KeeperChannel:
    """The scheduler's end of the channel to the keeper.

    Args:
        channel: socket to the keeper; it ends when the keeper does.
        kept: what the keeper holds; its descriptors are valid in this process, too.
        folder: the folder of the log.
        template: starts child processes.

    Attributes:
        recorded, position: the state to continue from, and its position in the log; None to start
            from the beginning of the log.
        standbys: ids of processes that this one has forked.
        ancestors: objects of the processes that this one is a copy of. If they were deleted, they
            would close descriptors, which have other meanings here.
        serve: runs a scheduler with a channel until it ends.
    """

    def __init__(
        self, channel: socket.socket, kept: Kept, folder: Path, template: Template | None = None
    ) -> None:
        self.channel = channel
        self.kept = kept
        self.folder = folder
        self.template = template
        self.recorded: RecordedState | None = None
        self.position: Position | None = None
        self.standbys: list[int] = []
        self.ancestors: list[Any] = []
        self.serve: Callable[[KeeperChannel], None] = lambda channel: None
        self._last_number = kept.last_number

    @property
    def is_successor(self) -> bool:
        """Return whether another scheduler process ran before this one."""
        return bool(self.kept.deaths.last)

    def keep(self, sock: Any) -> int:
        """Let the keeper hold a duplicate of ``sock``. Return the number of the connection."""
        self._last_number += 1
        self._send(HEAD.pack(KEEP, self._last_number), [sock.fileno()])
        return self._last_number

    def release(self, number: int) -> None:
        """Let the keeper close its duplicate of a connection."""
        self._send(HEAD.pack(RELEASE, number))

    def _send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message. If the keeper has ended, which ``Durability`` handles, do nothing.

        uvloop makes the channel non-blocking. While the channel is full, wait for the keeper.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                try:
                    socket.send_fds(self.channel, [message], fds)
                    return
                except BlockingIOError:
                    writable = select.poll()
                    writable.register(self.channel, select.POLLOUT)
                    writable.poll()

    def listen(self, name: str, sockets: Sequence[socket.socket]) -> None:
        """Let the keeper hold the sockets that listen at ``name``."""
        fds = [sock.fileno() for sock in sockets]
        self._send(HEAD.pack(LISTEN, 0) + name.encode(), fds)

    def listening(self, name: str) -> list[socket.socket]:
        """Return the sockets that the scheduler before this one listened on at ``name``."""
        return [socket.socket(fileno=fd) for fd in self.kept.listening.pop(name, ())]

    def ready(self) -> None:
        """Report that the scheduler serves its peers."""
        self.kept.progress.alive()
        self._send(HEAD.pack(READY, 0))

    def ending(self) -> None:
        """Report that the scheduler begins to close, so that its end is no death."""
        self._send(HEAD.pack(ENDING, 0))

    def give_up(self) -> None:
        """Let the keeper close its duplicates and end with this process: the log is incomplete."""
        self._send(HEAD.pack(GIVE_UP, 0))

    def standby(self, sock: socket.socket, segment: int) -> None:
        """Pass the socket of a new standby to the keeper.

        Once it is ready, segments of the log before ``segment`` are not needed.
        """
        self._send(HEAD.pack(STANDBY, segment), [sock.fileno()])

    def receive_successor(
        self, sock: socket.socket, write_snapshot: Callable[[int, int], None]
    ) -> tuple[KeeperChannel, socket.socket] | None:
        """Wait until the keeper wakes this standby, which has the socket ``sock``.

        Return the channel of the scheduler process that it becomes, and the socket of the next
        standby; None if it is not needed. Call ``write_snapshot`` with the descriptors of each
        ``SnapshotRequest``.
        """
        connections: dict[int, int] = {}
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(sock, WAKE_NBYTES, WAKE_SOCKETS_MAX)
            except ConnectionResetError:  # the keeper has ended
                return None
            if not message:
                return None
            content = pickle.loads(message)
            if type(content) is SnapshotRequest:
                write_snapshot(*fds)
                continue
            if type(content) is list:
                connections.update(zip(content, fds, strict=True))
                continue
            channel, next_sock, template, *listening = fds
            kept = Kept(
                connections,
                {
                    name: [listening.pop(0) for _ in range(n)]
                    for name, n in content.listening.items()
                },
                content.last_number,
                content.deaths,
                self.kept.scratch,
                self.kept.progress,
            )
            successor = KeeperChannel(
                socket.socket(fileno=channel),
                kept,
                self.folder,
                Template(content.template_pid, socket.socket(fileno=template)),
            )
            successor.serve = self.serve
            return successor, socket.socket(fileno=next_sock)

    def close(self) -> None:
        """Close all descriptors."""
        if self.template is not None:
            self.template.close()
        self.channel.close()
        for fd in self.kept.fds:
            os.close(fd)
