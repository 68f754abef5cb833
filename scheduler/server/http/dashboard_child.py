"""The dashboard in a child process, which is started at the first request for a page.

Browsers connect to the port of the scheduler's process. Connections that request a page of the
dashboard are passed to the child, so that pages cost this process only the updates that they read
(``workers_compat/dashboard/``).
"""

from __future__ import annotations

import asyncio
import html
import inspect
import logging
import socket
import sys
import time
from typing import Any

from paceline.scheduler.server.runtime import child_process
from paceline.scheduler.server.runtime.child_process import ChildProcess, Spawn
from paceline.scheduler.server.runtime.measures import LoopLag
from paceline.workers_compat.config import config
from paceline.workers_compat.dashboard.state_deltas import StateDeltas
from paceline.workers_compat.dashboard.wire import (
    Call,
    CallReply,
    DashboardReady,
    MessageReader,
    Poll,
    Setup,
    Updates,
    pack,
)
from paceline.workers_compat.facade.server_port import FacadeServer
from paceline.workers_compat.security.http_connections import HttpLimits
from paceline.workers_compat.security.http_token import TokenGate
from tornado import web

from .dashboard import Dashboard, page_patterns, reason_page, same_page
from .handover import Handover
from .server import HttpServer

logger = logging.getLogger("distributed.scheduler")

#: The module that the child runs.
CHILD = "paceline.workers_compat.dashboard.__main__"
#: Time after the end of a child before it is started again, seconds.
RESTART_SECONDS = 5.0
#: A child that is not ready after this time is killed, seconds. Importing bokeh takes long on a
#: busy machine.
START_SECONDS = 60.0
#: Time that a child has to end before it is killed, seconds.
STOP_SECONDS = 2.0
#: Methods that pages may call.
CALLABLE = ("benchmark_hardware", "profile", "profile_metadata")
#: Kinds of connections that are passed to the child: one page, or a websocket that stays open.
PAGE, WEBSOCKET = b"p", b"w"


def is_supported() -> bool:
    """Return whether this system can pass open connections to another process."""
    return hasattr(socket, "send_fds") and hasattr(socket, "AF_UNIX")


class ChildDashboard(Dashboard):
    """The dashboard's process, and the connections that are passed to it.

    Args:
        loop_lag: the time between ticks is part of each update.
        gate, limits: check tokens and limit connections in the dashboard's process.
        spawn: starts the process.

    Attributes:
        error: the reason why the child cannot serve pages; empty if it can.
    """

    def __init__(
        self,
        server: FacadeServer,
        prefix: str,
        loop_lag: LoopLag,
        gate: TokenGate | None,
        limits: HttpLimits,
        spawn: Spawn,
    ) -> None:
        super().__init__(prefix)
        self._spawn = spawn
        self._server = server
        self._facade: Any = server.plugins.facade
        self._loop_lag = loop_lag
        self._gate = gate
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._http: HttpServer | None = None
        self._process: ChildProcess | None = None
        self._child_socket: socket.socket | None = None
        self._channel: _Channel | None = None
        self._handover = Handover(self._unresponsive)
        self._starting: asyncio.TimerHandle | None = None
        self._ended_at = float("-inf")
        self._stopped = False
        self.error = ""

    def connect(self, http: HttpServer) -> None:
        self._http = http
        self.add_pages(http, ChildPage)
        http.hand_over(page_patterns(self.prefix), self.accept)

    async def stop(self) -> None:
        self._stopped = True
        process = self._process
        self._close()
        if process is not None:
            await child_process.stop([process], STOP_SECONDS)

    def _facts(self) -> dict[str, Any]:
        cpu = self._facade.system_monitor().recent().get("cpu", 0.0)
        return {"tick_seconds": self._loop_lag.seconds, "cpu": cpu}

    @property
    def is_restarting(self) -> bool:
        """Return whether the child has ended, and is not started again yet."""
        return self._process is None and time.monotonic() - self._ended_at < RESTART_SECONDS

    @property
    def is_busy(self) -> bool:
        """Return whether too many connections wait for the child."""
        return self._handover.is_full

    # browsers

    def accept(self, connection: socket.socket, path: str, may_upgrade: bool) -> bool:
        """Pass a browser's connection to the child. Return False if the caller must serve it."""
        kind = WEBSOCKET if may_upgrade and path.endswith("/ws") else PAGE
        if self._process is None and not self._start():
            return False
        return self._handover.add(connection, kind)

    # the child

    def _start(self) -> bool:
        """Start the child, and return whether it was started."""
        if self._stopped or self.is_restarting:
            return False
        assert self._http is not None
        messages, child_messages = socket.socketpair()
        connections, child_connections = socket.socketpair()
        fds = (child_messages.fileno(), child_connections.fileno())
        try:
            self._process = self._spawn(CHILD, fds)
        except OSError as error:
            logger.warning("The dashboard's process cannot be started: %s", error)
            self.error = str(error)
            return False
        finally:
            child_messages.close()
            child_connections.close()
        connections.setblocking(False)
        self._child_socket = connections
        self._channel = channel = _Channel(self)
        setup = Setup(
            config=config.plain_config(),
            path=list(sys.path),
            prefix=self.prefix,
            port=self._http.port,
            jupyter=bool(self._facade.scheduler.jupyter),
            gate=self._gate,
            limits=self._limits,
        )
        channel.deltas = StateDeltas(self._server, self._facts)
        connecting = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: channel, messages)
        )
        connecting.add_done_callback(lambda _: channel.send(setup))
        self._starting = self._loop.call_later(START_SECONDS, self._unresponsive)
        return True

    def ready(self, message: DashboardReady) -> None:
        """Pass the waiting connections to the child, or log why it cannot serve pages."""
        self._cancel_timeout()
        self.error = message.error
        if message.error:
            logger.warning("The dashboard cannot start: %s", message.error)
            self._close()
            return
        connections, self._child_socket = self._child_socket, None
        assert connections is not None
        for connection in self._handover.connect(connections):
            self._serve_here(connection)

    def lost(self, channel: _Channel) -> None:
        """Handle the end of the child."""
        if channel is self._channel:
            if not self._stopped:
                logger.warning(
                    "The dashboard's process ended; the next request for a page starts it again"
                )
            self._close()

    def _unresponsive(self) -> None:
        """Kill a child that does not become ready or does not accept connections."""
        process = self._process
        if process is not None:
            logger.warning("The dashboard's process (%d) does not respond; killing it", process.pid)
            process.kill()

    def _cancel_timeout(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None

    def _serve_here(self, connection: socket.socket) -> None:
        if self._stopped or self._http is None:
            connection.close()
        else:
            self._http.serve(connection, keep_alive=False)

    def _close(self) -> None:
        self._cancel_timeout()
        self._ended_at = time.monotonic()
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        if channel is not None:
            channel.close()
        if self._child_socket is not None:
            self._child_socket.close()
            self._child_socket = None
        for connection in self._handover.disconnect():
            self._serve_here(connection)
        if process is not None and not self._stopped:
            self._loop.call_later(STOP_SECONDS, child_process.reap, process)

    # calls of pages

    def call(self, channel: _Channel, call: Call) -> None:
        """Call a method of the scheduler and send the reply over ``channel``."""
        if call.method not in CALLABLE:
            channel.send(CallReply(call.number, error=f"unknown method {call.method!r}"))
            return
        task = self._loop.create_task(self._reply(call))
        task.add_done_callback(
            lambda done: None if done.cancelled() else channel.send(done.result())
        )

    async def _reply(self, call: Call) -> CallReply:
        try:
            if call.method == "profile_metadata":
                value = self._facade.get_profile_metadata(**call.options)
            else:
                value = self._facade.handlers[call.method](**call.options)
            if inspect.isawaitable(value):
                value = await value
        except Exception as error:
            return CallReply(call.number, error=f"{type(error).__name__}: {error}")
        return CallReply(call.number, value)


class _Channel(asyncio.Protocol):
    """Messages to and from one child."""

    def __init__(self, dashboard: ChildDashboard) -> None:
        self._dashboard = dashboard
        self._reader = MessageReader()
        self._transport: Any = None
        self.deltas: StateDeltas | None = None
        self._seconds = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self, message: Any) -> None:
        """Send a message if the child is still connected."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(message))

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            if isinstance(message, Poll):
                self._send_updates(message)
            elif isinstance(message, Call):
                self._dashboard.call(self, message)
            elif isinstance(message, DashboardReady):
                self._dashboard.ready(message)

    def _send_updates(self, poll: Poll) -> None:
        assert self.deltas is not None
        started = time.perf_counter()
        try:
            data = pack(Updates(self.deltas.updates(poll.wanted), self._seconds))
        except Exception:
            logger.exception("Updates for the dashboard failed; stopping its process")
            self.close()
            return
        self._seconds = time.perf_counter() - started
        if self._transport is not None:
            self._transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.deltas is not None:
            self.deltas.stop()
        self._dashboard.lost(self)

    def close(self) -> None:
        """Close the connection, at which the child ends."""
        if self._transport is not None:
            self._transport.close()


class ChildPage(web.RequestHandler):
    """A page of the dashboard that was requested on a connection of this process.

    Redirect the browser, so that it opens another connection, which is passed to the child; or
    respond with the reason why there is no page.
    """

    def initialize(self, dashboard: ChildDashboard) -> None:
        self._dashboard = dashboard

    def get(self, *_: Any) -> None:
        if self._dashboard.error:
            self.write(reason_page(html.escape(self._dashboard.error)))
            return
        self.set_header("Connection", "close")
        self.set_header("Cache-Control", "no-store")
        if self._dashboard.is_restarting:
            self._unavailable("The dashboard's process ended. It is started again soon.")
        elif self._dashboard.is_busy:
            self._unavailable("Too many connections are waiting for the dashboard's process.")
        else:
            self.redirect(same_page(self.request), status=307)

    def _unavailable(self, reason: str) -> None:
        self.set_status(503)
        for name in ("Refresh", "Retry-After"):
            self.set_header(name, str(int(RESTART_SECONDS)))
        self.write(reason_page(reason))
