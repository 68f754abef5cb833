"""The state of the keeper, and the messages between it and the scheduler process."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import pickle
import signal
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from paceline.protocol.framing import SCRATCH_NBYTES
from paceline.workers_compat.config import config

if TYPE_CHECKING:
    from paceline.scheduler.server.runtime.template import Template

logger = logging.getLogger("distributed.scheduler")

#: Version of these messages and of the state that a keeper passes to another release.
FORMAT: Final = 3
#: A message to the keeper begins with its kind and a number.
HEAD: Final = struct.Struct("<cI")
#: Hold a connection, release it; hold listening sockets, under the name that follows.
KEEP, RELEASE, LISTEN = b"k", b"r", b"l"
#: The scheduler serves its peers; its log is incomplete; it has forked a standby.
READY, GIVE_UP, STANDBY = b"a", b"g", b"s"
#: Messages of the keeper that request a standby, the second without regard to the last one's time.
STANDBY_SOON, STANDBY_NOW = b"standby", b"standby now"
#: Largest message that wakes a standby, and the number of sockets in it.
WAKE_NBYTES: Final = 64 * 2**10
WAKE_SOCKETS_MAX: Final = 250
#: Largest other message, and the number of sockets in it.
MESSAGE_NBYTES: Final = 4096
MESSAGE_SOCKETS_MAX: Final = 64
#: Deaths in a row while input of the same connection was handled, after which it is closed.
DEATHS_MAX: Final = 3
#: Longest time between two deaths of the same cause, in addition to ``hang_seconds``, seconds.
DEATH_SECONDS: Final = 60.0
#: Default of ``paceline.scheduler.hang-timeout``, seconds.
HANG_SECONDS: Final = 300.0


def hang_seconds() -> float:
    """Return the seconds after which an event loop that does not run is considered to hang."""
    seconds = config.seconds(config.get("paceline.scheduler.hang-timeout"))
    return HANG_SECONDS if seconds is None else seconds


class DeathKind(StrEnum):
    """Why a scheduler process ended."""

    #: Of itself, or it was killed.
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
            return f"was killed by {signal.Signals(-self.code).name}"
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


class Awakening(NamedTuple):
    """The last message that wakes a standby, with its channel, the next standby's, the template's.

    Attributes:
        listening: as in ``Kept``, with the numbers of descriptors that follow those.
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

    @staticmethod
    def greeting(release: str) -> bytes:
        """Return the message of a standby that is ready."""
        return os.getpid().to_bytes(8, "little") + release.encode()

    def greeted(self, message: bytes) -> None:
        """Store what the standby has sent when it was ready."""
        self.pid, self.release = int.from_bytes(message[:8], "little"), message[8:].decode()

    def end(self) -> None:
        """Close the socket; the process then exits."""
        self.sock.close()


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


@dataclass
class Kept:
    """The state of the keeper.

    Attributes:
        connections: number -> descriptor of a connection.
        listening: "host:port" as given -> descriptors that listen there. A number follows the name
            of the second listener and further ones with port 0.
        last_number: the highest number of a connection so far.
        deaths: the ends of scheduler processes so far.
        scratch: memory into which the scheduler reads.
        progress: what the scheduler process does.
    """

    connections: dict[int, int] = field(default_factory=dict)
    listening: dict[str, list[int]] = field(default_factory=dict)
    last_number: int = 0
    deaths: Deaths = field(default_factory=Deaths)
    scratch: KeptMemory = field(default_factory=lambda: KeptMemory(SCRATCH_NBYTES))
    progress: Progress = field(default_factory=Progress)

    def handle(self, message: bytes, fds: list[int]) -> None:
        """Handle a message of the scheduler process about its sockets."""
        kind, number = HEAD.unpack_from(message)
        if kind == KEEP:
            self.last_number = number
            if fds:
                self.connections[number] = fds[0]
            else:
                logger.error("Connection %d cannot be kept: too many open files", number)
        elif kind == RELEASE:
            fd = self.connections.pop(number, None)
            if fd is not None:
                os.close(fd)
        elif kind == LISTEN:
            name = message[HEAD.size :].decode()
            for fd in self.listening.pop(name, ()):
                os.close(fd)
            self.listening[name] = fds

    def release_all(self) -> None:
        """Close the duplicates of all connections."""
        for fd in self.connections.values():
            os.close(fd)
        self.connections.clear()

    def send(
        self, sock: socket.socket, channels: list[socket.socket], template: Template | None
    ) -> None:
        """Send a standby its channels, and duplicates of all sockets.

        If ``template`` is None, the standby starts new interpreters instead.
        """
        numbers = list(self.connections)
        for first in range(0, len(numbers), WAKE_SOCKETS_MAX):
            part = numbers[first : first + WAKE_SOCKETS_MAX]
            fds = [self.connections[number] for number in part]
            socket.send_fds(sock, [pickle.dumps(part)], fds)
        listening = {name: len(fds) for name, fds in self.listening.items()}
        pid = os.getpid() if template is None else template.pid
        last = Awakening(listening, self.last_number, self.deaths, pid)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as unconnected:
            fds = [*(each.fileno() for each in channels), (template or unconnected).fileno()]
            fds += [fd for found in self.listening.values() for fd in found]
            socket.send_fds(sock, [pickle.dumps(last)], fds)

    @property
    def fds(self) -> list[int]:
        """The descriptors of all sockets."""
        return [*self.connections.values(), *(fd for fds in self.listening.values() for fd in fds)]


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


@contextlib.contextmanager
def logging_errors() -> Iterator[None]:
    """Log errors of the system instead of raising them: if the keeper ends, the cluster does."""
    try:
        yield
    except OSError as error:
        logger.error("The keeper continues after an error: %s", error)
