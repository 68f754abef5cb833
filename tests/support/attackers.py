"""Peers that attack a scheduler process over a plain socket, and what the process uses meanwhile."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline.protocol.connection import Connection
from paceline.protocol.framing import FrameReader, pack_frames

from tests.support.real_cluster import Cluster, Process, scheduler_command

#: How long an answer may take on a busy machine, seconds.
ANSWER_SECONDS = 60.0


class Attacker:
    """A blocking socket to a scheduler.

    Args:
        address: ``tcp://host:port`` of the scheduler.
        greet: exchange handshakes first.
    """

    def __init__(self, address: str, greet: bool = True) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS)
        self.connection = Connection("connector")
        self._frames = FrameReader()
        self._events: list[Any] = []
        if greet:
            self.send_frames(self.connection.start())
            self.event()

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send_frames(self, frames: Any) -> None:
        """Send one message."""
        self.socket.sendall(b"".join(pack_frames(frames)))

    def send(self, value: Any) -> None:
        """Send a value as it is."""
        self.send_frames(self.connection.codec.encode(value))

    def event(self) -> Any:
        """Return the next event.

        Raises:
            EOFError: the scheduler closed the connection.
        """
        while not self._events:
            data = self.socket.recv(2**16)
            if not data:
                raise EOFError
            for frames in self._frames.feed(data):
                self._events += self.connection.receive_frames(frames)
        return self._events.pop(0)

    def request(self, value: Any) -> Any:
        """Return the reply to a request."""
        self.send(value)
        return self.event().value

    def is_closed(self) -> bool:
        """Wait until the scheduler closes the connection; False if it sends nothing for long."""
        try:
            while self.socket.recv(2**16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True


@contextlib.contextmanager
def scheduler_process(
    folder: Path, options: tuple[str, ...] = (), config: dict[str, str] | None = None
) -> Iterator[tuple[Process, str]]:
    """Run a ``paceline`` process without workers. Gives the process and its address."""
    cluster = Cluster(
        scheduler_command("paceline"),
        folder,
        nannies=(),
        options=("--no-dashboard", *options),
        config={"DASK_TEMPORARY_DIRECTORY": str(folder), **(config or {})},
    )
    try:
        cluster.start_scheduler()
        yield cluster.processes[0], cluster.address
    finally:
        cluster.close()


def peak_nbytes(pid: int) -> int:
    """Return the highest resident memory a process has had, bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmHWM")


def unlinked_nbytes(pid: int) -> int:
    """Return the disk space of the unlinked files that a process holds open, bytes."""
    total = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(entry).endswith(" (deleted)"):
                total += entry.stat().st_blocks * 512
    return total


def answer_seconds(address: str, during: Callable[[], object]) -> float:
    """Return how long a request on another connection takes right after ``during``, seconds."""
    with Attacker(address) as other:
        during()
        start = time.monotonic()
        other.request({"op": "ncores"})
        return time.monotonic() - start
