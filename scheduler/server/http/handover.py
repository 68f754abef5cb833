"""Pass connections to the dashboard's process.

A connection stays open here until the dashboard's process confirms that it received it, because a
process that is stopped or busy with a page does not read from its socket. A browser that waits too
long gets a page with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

#: Connections that wait for the process; if there are more, a browser gets status 503.
WAITING_MAX = 200
#: Time after which a browser whose connection was not confirmed gets status 503, seconds.
RESPOND_SECONDS = 10.0
#: Time after which a process that has not confirmed a connection is killed, seconds.
UNRESPONSIVE_SECONDS = 30.0
#: Confirmations read at a time.
READ_NBYTES = 4096
#: Bytes of a request that are read before its connection is closed: closing with unread data would
#: discard the response.
REQUEST_MAX_NBYTES = 2**16

BODY = (
    b"<!doctype html><title>paceline</title><h1>The dashboard does not respond</h1>"
    b"<p>The dashboard's process has not responded for some time. "
    b"It is started again if it does not recover. "
    b"The scheduler is not affected. This page reloads by itself.</p>"
)
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\n"
    b"Retry-After: 5\r\nRefresh: 5\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
) + BODY


@dataclass(eq=False, slots=True)
class Waiting:
    """A connection that the process has not confirmed.

    Attributes:
        connection: None after a response was sent here because the process was too slow.
        kind: kind of connection, for the process.
    """

    connection: socket.socket | None
    kind: bytes
    timer: asyncio.TimerHandle | None = None


class Handover:
    """Connections that wait for the dashboard's process.

    If one is not confirmed in time, ``unresponsive`` is called.
    """

    def __init__(self, unresponsive: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._unresponsive = unresponsive
        self._process: socket.socket | None = None
        self._unsent: deque[Waiting] = deque()
        self._unconfirmed: deque[Waiting] = deque()

    @property
    def is_full(self) -> bool:
        """Return whether no further connection is accepted."""
        return len(self._unsent) + len(self._unconfirmed) >= WAITING_MAX

    def add(self, connection: socket.socket, kind: bytes) -> bool:
        """Send a connection to the process once it is ready. Return False if it cannot be sent."""
        if self.is_full:
            return False
        waiting = Waiting(connection, kind)
        if self._process is None:
            self._unsent.append(waiting)
            return True
        return self._send(waiting)

    def connect(self, process: socket.socket) -> list[socket.socket]:
        """Send the waiting connections to ``process``. Return those that cannot be sent."""
        self._process = process
        self._loop.add_reader(process.fileno(), self._confirmed)
        unsent, self._unsent = self._unsent, deque()
        return [each.connection for each in unsent if not self._send(each) and each.connection]

    def disconnect(self) -> list[socket.socket]:
        """Forget the process, which has ended. Return the connections that it did not receive."""
        if self._process is not None:
            self._loop.remove_reader(self._process.fileno())
            self._process.close()
            self._process = None
        lost = [*self._unconfirmed, *self._unsent]
        self._unconfirmed.clear()
        self._unsent.clear()
        for each in lost:
            if each.timer is not None:
                each.timer.cancel()
        return [each.connection for each in lost if each.connection is not None]

    def _send(self, waiting: Waiting) -> bool:
        assert self._process is not None and waiting.connection is not None
        try:
            socket.send_fds(self._process, [waiting.kind], [waiting.connection.fileno()])
        except OSError:
            return False
        waiting.timer = self._loop.call_later(RESPOND_SECONDS, self._respond, waiting)
        self._unconfirmed.append(waiting)
        return True

    def _confirmed(self) -> None:
        """Close the connections whose receipt the process confirmed."""
        assert self._process is not None
        try:
            data = self._process.recv(READ_NBYTES)
        except OSError:
            data = b""
        if not data:  # the process has ended, which its owner notices
            self._loop.remove_reader(self._process.fileno())
            return
        for _ in range(min(len(data), len(self._unconfirmed))):
            waiting = self._unconfirmed.popleft()
            if waiting.timer is not None:
                waiting.timer.cancel()
            if waiting.connection is not None:
                waiting.connection.close()

    def _respond(self, waiting: Waiting) -> None:
        """Respond to a connection that has waited too long, and close it."""
        connection, waiting.connection = waiting.connection, None
        rest = UNRESPONSIVE_SECONDS - RESPOND_SECONDS
        waiting.timer = self._loop.call_later(rest, self._unresponsive)
        if connection is None:
            return
        with contextlib.suppress(OSError), connection:
            connection.send(UNAVAILABLE)
            connection.recv(REQUEST_MAX_NBYTES)
            connection.shutdown(socket.SHUT_RDWR)
