"""Accept connections on listening sockets, and pause while no file descriptor is available.

Every listener of the scheduler uses this, because event loops differ in what they do when
descriptors run out: asyncio logs thousands of tracebacks per second, tornado spins, and libuv
closes the connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.workers_compat.addressing import contact_host, join_host_port
from paceline.workers_compat.config import config

logger = logging.getLogger("distributed.scheduler")

#: Default of ``distributed.comm.socket-backlog``, the number of connections queued to be accepted:
#: a large cluster may connect all at once.
LISTEN_BACKLOG = 2048
#: Connections accepted in one wake-up of the event loop.
ACCEPTS_MAX = 32
#: Pause after the system refused a connection, seconds.
ACCEPT_AGAIN_SECONDS = 1.0
#: Sockets of one listener whose handshake has not ended. Further ones are closed; peers retry.
HANDSHAKES_MAX = 4096
#: Interval in which a listener logs at most one refusal, seconds.
LOG_SECONDS = 60.0


class SocketAcceptor:
    """A listening socket.

    Args:
        sock: bound, not listening yet.
        take: called with each accepted socket, which is non-blocking.
    """

    def __init__(self, sock: socket.socket, take: Callable[[socket.socket], None]) -> None:
        self._sock = sock
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._logged_at = float("-inf")
        sock.setblocking(False)
        sock.listen(int(config.get("distributed.comm.socket-backlog") or LISTEN_BACKLOG))
        self._loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        for _ in range(ACCEPTS_MAX):
            if self._closed:
                return
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or memory is available
                self._pause(error)
                return
            sock.setblocking(False)
            try:
                self._take(sock)
            except OSError as error:
                sock.close()
                logger.error("Closing a new connection, which cannot be opened: %s", error)

    def _pause(self, error: OSError) -> None:
        self._loop.remove_reader(self._sock)
        self._loop.call_later(ACCEPT_AGAIN_SECONDS, self._resume)
        now = self._loop.time()
        if now - self._logged_at < LOG_SECONDS:
            return
        self._logged_at = now
        host, port = self._sock.getsockname()[:2]
        logger.error(
            "Cannot accept connections on %s: %s; trying again every %s s. "
            "Close connections, or raise the limit of open files (ulimit -n)",
            join_host_port(host, port),
            error,
            ACCEPT_AGAIN_SECONDS,
        )

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._sock, self._readable)

    def close(self) -> None:
        """Stop listening."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._sock)
            self._sock.close()


def in_tasks(
    accept: Callable[[socket.socket], Coroutine[Any, Any, None]],
) -> Callable[[socket.socket], None]:
    """Return a function that runs ``accept(sock)`` in a task, unless there are too many."""
    tasks: set[asyncio.Task[None]] = set()

    def take(sock: socket.socket) -> None:
        if len(tasks) >= HANDSHAKES_MAX:
            sock.close()
            return
        task = asyncio.get_running_loop().create_task(accept(sock), name="accept")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return take


@dataclass(slots=True)
class SocketListener:
    """Sockets that accept connections; the port is the actual one."""

    acceptors: Sequence[SocketAcceptor]
    scheme: str
    host: str
    port: int

    @property
    def listen_address(self) -> str:
        return f"{self.scheme}://{join_host_port(self.host, self.port)}"

    @property
    def contact_address(self) -> str:
        return f"{self.scheme}://{join_host_port(contact_host(self.host), self.port)}"

    def close(self) -> None:
        for acceptor in self.acceptors:
            acceptor.close()
