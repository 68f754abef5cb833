"""The messages between the keeper, the scheduler process and its standbys."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Final, NamedTuple

from .deaths import Deaths

#: Version of these messages and of the state that a keeper passes to another release.
FORMAT: Final = 4
#: A message to the keeper begins with its kind and a number.
HEAD: Final = struct.Struct("<cI")
#: Hold a connection, release it; hold listening sockets, under the name that follows.
KEEP, RELEASE, LISTEN = b"k", b"r", b"l"
#: The scheduler serves its peers; it begins to close; its log is incomplete; it has forked a
#: standby.
READY, ENDING, GIVE_UP, STANDBY = b"a", b"e", b"g", b"s"
#: Messages of the keeper that request a standby. The second one ignores the interval of forks.
STANDBY_SOON, STANDBY_NOW = b"standby", b"standby now"
#: Largest message that wakes a standby, and the number of sockets in it.
WAKE_NBYTES: Final = 64 * 2**10
WAKE_SOCKETS_MAX: Final = 250
#: Largest other message, and the number of sockets in it.
MESSAGE_NBYTES: Final = 4096
MESSAGE_SOCKETS_MAX: Final = 64


class Awakening(NamedTuple):
    """The last of the messages that wake a standby.

    The descriptors of its channel, of the next standby's socket and of the template's socket
    follow, then those of ``listening``.

    Attributes:
        listening: as in ``Kept``, with the numbers of descriptors.
        last_number, deaths: as in ``Kept``.
        template_pid: process id of the template.
    """

    listening: dict[str, int]
    last_number: int
    deaths: Deaths
    template_pid: int


class SnapshotRequest(NamedTuple):
    """A message that lets a standby write a snapshot.

    The descriptors of an empty file and of a pipe for a ``SnapshotReply`` follow. The pipe is
    closed without a reply if the process died.
    """


class SnapshotReply(NamedTuple):
    """The result of a ``SnapshotRequest``.

    Attributes:
        nbytes: size of the snapshot.
        error: why there is none, or "".
    """

    nbytes: int
    error: str = ""


def greeting(release: str) -> bytes:
    """Return the message of a standby of this ``release`` that is ready."""
    return os.getpid().to_bytes(8, "little") + release.encode()


def parse_greeting(message: bytes) -> tuple[int, str]:
    """Return the process id and the release of the standby that has sent ``greeting``."""
    return int.from_bytes(message[:8], "little"), message[8:].decode()


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message and its descriptors; b"" if the other process has ended."""
    try:
        message, fds, _, _ = socket.recv_fds(sock, MESSAGE_NBYTES, MESSAGE_SOCKETS_MAX)
    except ConnectionResetError:  # it had not read everything
        return b"", []
    return message, fds


def request_standby(channel: socket.socket | None, message: bytes = STANDBY_SOON) -> None:
    """Request a standby from the scheduler process, unless that has ended or has many requests."""
    if channel is not None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            channel.send(message, socket.MSG_DONTWAIT)
