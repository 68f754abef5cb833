"""The state of the keeper: sockets, shared memory and the deaths of scheduler processes."""

from __future__ import annotations

import logging
import os
import pickle
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.protocol.framing import SCRATCH_NBYTES

from .deaths import Deaths
from .messages import HEAD, KEEP, LISTEN, RELEASE, WAKE_SOCKETS_MAX, Awakening
from .progress import KeptMemory, Progress

if TYPE_CHECKING:
    from paceline.scheduler.server.runtime.template import Template

logger = logging.getLogger("distributed.scheduler")


@dataclass
class Kept:
    """The state of the keeper.

    Attributes:
        connections: number -> descriptor of a connection.
        listening: "host:port" as given -> descriptors that listen there. A number follows the name
            of the second listener and further ones with port 0. "http " precedes those of pages.
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
        """Wake the standby at ``sock``: send its channels, and duplicates of all sockets.

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
