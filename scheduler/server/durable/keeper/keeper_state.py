"""The state that a keeper passes to another release of itself, which it executes."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import Any

from paceline.protocol.framing import SCRATCH_NBYTES
from paceline.scheduler.server.durable.channel.deaths import Death, DeathKind, Deaths
from paceline.scheduler.server.durable.channel.kept import Kept
from paceline.scheduler.server.durable.channel.messages import FORMAT
from paceline.scheduler.server.durable.channel.progress import KeptMemory, Progress

from .standbys import Standby


@dataclass
class KeeperState:
    """The state of a keeper.

    Attributes:
        kept: what it holds.
        lock: the descriptor that holds the lock of the folder.
        control: the socket that listens for requests.
        channel: the channel to the scheduler process.
        pid: process id of the scheduler process.
        is_trimmed: whether the log does not go back to the start.
        standby, next_standby: the standbys of the scheduler process.
        successor: the standby of this release.
        from_release: the release of the scheduler process.
        caller: the socket for the reply to the request, or None.
    """

    kept: Kept
    lock: int
    control: socket.socket
    channel: socket.socket
    pid: int
    is_trimmed: bool
    standby: Standby | None
    next_standby: Standby | None
    successor: Standby
    from_release: str
    caller: socket.socket | None

    def save(self) -> int:
        """Write the state to memory, and let its descriptors be inherited.

        Return the descriptor of the memory.
        """
        kept = self.kept
        fd = os.memfd_create("paceline-keeper")
        saved = {
            "format": FORMAT,
            "connections": list(kept.connections.items()),
            "listening": kept.listening,
            "last_number": kept.last_number,
            "deaths": vars(kept.deaths),
            "scratch": kept.scratch.fd,
            "progress": kept.progress.shared.fd,
            "lock": self.lock,
            "control": self.control.fileno(),
            "channel": self.channel.fileno(),
            "pid": self.pid,
            "is_trimmed": self.is_trimmed,
            "standby": _saved_standby(self.standby),
            "next_standby": _saved_standby(self.next_standby),
            "successor": _saved_standby(self.successor),
            "from_release": self.from_release,
            "caller": None if self.caller is None else self.caller.fileno(),
        }
        with open(fd, "w", closefd=False) as file:
            json.dump(saved, file)
        standbys = [each for each in (self.standby, self.next_standby, self.successor) if each]
        socks = [self.control, self.channel, self.caller, *(each.sock for each in standbys)]
        fds = [fd, self.lock, kept.scratch.fd, kept.progress.shared.fd, *kept.fds]
        for each in [*fds, *(sock.fileno() for sock in socks if sock is not None)]:
            os.set_inheritable(each, True)
        return fd

    @classmethod
    def load(cls, fd: int) -> KeeperState:
        """Read the state of a keeper that has executed this process."""
        with open(fd) as file:
            file.seek(0)
            saved = json.load(file)
        deaths = Deaths(**saved["deaths"])
        deaths.last = [_loaded_death(*death) for death in saved["deaths"]["last"]]
        kept = Kept(
            {number: _private(fd) for number, fd in saved["connections"]},
            {name: [_private(fd) for fd in fds] for name, fds in saved["listening"].items()},
            saved["last_number"],
            deaths,
            KeptMemory(SCRATCH_NBYTES, _private(saved["scratch"])),
            Progress(_private(saved["progress"])),
        )
        successor = _loaded_standby(saved["successor"])
        assert successor is not None
        return cls(
            kept=kept,
            lock=_private(saved["lock"]),
            control=_socket(saved["control"]),
            channel=_socket(saved["channel"]),
            pid=saved["pid"],
            is_trimmed=saved["is_trimmed"],
            standby=_loaded_standby(saved["standby"]),
            next_standby=_loaded_standby(saved["next_standby"]),
            successor=successor,
            from_release=saved["from_release"],
            caller=None if saved["caller"] is None else _socket(saved["caller"]),
        )


def _loaded_death(code: int, seconds: float, connection: int, stimulus: int, kind: str) -> Death:
    return Death(code, seconds, connection, stimulus, DeathKind(kind))


def _saved_standby(standby: Standby | None) -> Any:
    if standby is None:
        return None
    return [standby.sock.fileno(), standby.segment, standby.pid, standby.release]


def _loaded_standby(saved: Any) -> Standby | None:
    return None if saved is None else Standby(_socket(saved[0]), *saved[1:])


def _private(fd: int) -> int:
    """Return a descriptor that processes which this one executes do not inherit."""
    os.set_inheritable(fd, False)
    return fd


def _socket(fd: int) -> socket.socket:
    return socket.socket(fileno=_private(fd))
