"""The dashboard's process: serves distributed's Bokeh pages from a copy of the scheduler's state.

``main`` takes the file descriptors of two open sockets, one for messages (``wire.py``) and one over
which the scheduler's process passes browsers' connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from paceline.workers_compat.security.http_connections import ConnectionServer
from paceline.workers_compat.security.http_token import GatedRouter
from setproctitle import setproctitle

from .wire import Call, CallReply, DashboardReady, MessageReader, Poll, Setup, Updates, pack

logger = logging.getLogger("distributed.scheduler")

#: Interval of polls while a page is open, seconds.
POLL_SECONDS = 0.1
#: Polls are less frequent if the scheduler would spend more than this share of its time on
#: collecting updates.
SCHEDULER_TIME_SHARE = 0.01
#: Interval of polls while no page is open, seconds. The next page starts with this data.
IDLE_SECONDS = 5.0
#: Niceness of this process: scheduling has priority.
NICENESS = 5
#: Time within which an opened page reads the topics it needs, seconds.
OPENING_SECONDS = 3.0
#: Timeout of a page's call, seconds.
CALL_SECONDS = 120.0
#: Topics that are always requested.
ALWAYS = ("workers", "prefixes", "groups", "monitor", "requests")
#: Kind of connections that stay open. Others are closed after one response, so that each request is
#: routed again.
WEBSOCKET = b"w"
#: Sent for each connection that was received.
CONFIRMED = b"+"


class DashboardProcess(asyncio.Protocol):
    """The connection to the scheduler's process, and the server of pages.

    Browsers' connections arrive over the socket `connections`. ``ended`` is done when the
    connection to the scheduler is lost.
    """

    def __init__(self, connections: socket.socket) -> None:
        self._connections = connections
        self._reader = MessageReader()
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._last_call = 0
        self._proxy: Any = None
        self._server: Any = None
        self._transport: Any = None
        self._ready = False
        self._opened_at = -OPENING_SECONDS
        self.ended: asyncio.Future[None] = self._loop.create_future()

    # messages of the scheduler

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            if isinstance(message, Setup):
                self._set_up(message)
            elif isinstance(message, Updates):
                self._apply(message)
            elif isinstance(message, CallReply):
                self._finish_call(message)

    def connection_lost(self, error: Exception | None) -> None:
        """End this process: the scheduler has ended, or stops the dashboard."""
        if not self.ended.done():
            self.ended.set_result(None)

    def _set_up(self, setup: Setup) -> None:
        sys.path[:] = setup.path
        try:
            self._proxy, application = _make_application(setup, self._call)
        except Exception as error:
            logger.warning("The dashboard cannot start: %s", error)
            self._transport.write(pack(DashboardReady(f"{type(error).__name__}: {error}")))
            return
        self._server = ConnectionServer(GatedRouter(application, setup.gate), setup.limits)
        self._poll()

    def _poll(self) -> None:
        wanted = self._proxy.wanted()
        for topic in ALWAYS:
            wanted.setdefault(topic, None)
        self._transport.write(pack(Poll(wanted)))

    def _apply(self, message: Updates) -> None:
        try:
            self._proxy.apply(message.updates)
        except Exception:
            logger.exception("The dashboard could not apply updates of the scheduler")
        if not self._ready:
            self._ready = True
            self._loop.add_reader(self._connections, self._receive_connection)
            self._transport.write(pack(DashboardReady()))
        busy = bool(self._proxy.wanted()) or self._loop.time() < self._opened_at + OPENING_SECONDS
        wait = max(POLL_SECONDS, message.seconds / SCHEDULER_TIME_SHARE) if busy else IDLE_SECONDS
        self._next_poll = self._loop.call_later(wait, self._poll)

    # browsers

    def _receive_connection(self) -> None:
        """Confirm and serve a browser's connection."""
        try:
            kind, fds, _, _ = socket.recv_fds(self._connections, 1, 1)
        except BlockingIOError:
            return
        if not kind:
            self._loop.remove_reader(self._connections)
            return
        with contextlib.suppress(OSError):  # the scheduler has ended
            self._connections.send(CONFIRMED)
        for fd in fds:
            self._server.serve(socket.socket(fileno=fd), keep_alive=kind == WEBSOCKET)
        self._opened_at = self._loop.time()
        if self._next_poll.when() - self._opened_at > POLL_SECONDS:
            self._next_poll.cancel()
            self._next_poll = self._loop.call_later(0, self._poll)

    # calls

    def _call(self, method: str, options: dict[str, Any]) -> asyncio.Future[Any]:
        self._last_call = number = self._last_call + 1
        future = self._calls[number] = self._loop.create_future()
        self._transport.write(pack(Call(number, method, options)))
        expired = CallReply(number, error="the scheduler did not reply")
        self._loop.call_later(CALL_SECONDS, self._finish_call, expired)
        return future

    def _finish_call(self, reply: CallReply) -> None:
        future = self._calls.pop(reply.number, None)
        if future is None or future.done():
            return
        if reply.error:
            future.set_exception(RuntimeError(reply.error))
        else:
            future.set_result(reply.value)


def _make_application(setup: Setup, call: Any) -> tuple[Any, Any]:
    """Return the scheduler's proxy, and the application that serves its pages.

    Raise ImportError if bokeh is missing, or distributed does not support its version.
    """
    import dask

    dask.config.update(dask.config.config, setup.config, priority="new")
    from tornado.ioloop import IOLoop

    from .applications import make_application
    from .scheduler_proxy import SchedulerProxy

    proxy = SchedulerProxy(call, IOLoop.current(), setup.jupyter)
    proxy.http_server = SimpleNamespace(port=setup.port)
    return proxy, make_application(proxy, setup.prefix)


def main(fds: Sequence[int]) -> int:
    """Serve pages until the scheduler ends. Return the exit code.

    Args:
        fds: two sockets, for messages and for browsers' connections.
    """
    with contextlib.suppress(OSError, AttributeError):  # not available on all systems
        os.nice(NICENESS)
    warnings.simplefilter("ignore")
    setproctitle("paceline dashboard")
    messages, connections = (socket.socket(fileno=fd) for fd in fds)
    for each in (messages, connections):
        each.setblocking(False)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    connecting = loop.connect_accepted_socket(lambda: DashboardProcess(connections), messages)
    _, process = loop.run_until_complete(connecting)
    loop.run_until_complete(process.ended)
    return 0


if __name__ == "__main__":
    sys.exit(main([int(fd) for fd in sys.argv[1:]]))
