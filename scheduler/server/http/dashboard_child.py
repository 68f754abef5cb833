"""The dashboard in a process of its own: started when the first page is asked for, given news when it asks for them.

Browsers connect to our port. What asks for a page of the dashboard is handed over to the child as an open connection, so
that no page costs this process anything but the news that open pages read (``workers_compat/dashboard/``).

Must not know: what news hold, what pages show.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import inspect
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from paceline.workers_compat import config
from paceline.workers_compat.dashboard.snapshots import Snapshots
from paceline.workers_compat.dashboard.wire import (
    Answer,
    Poll,
    Question,
    Ready,
    Setup,
    Splitter,
    State,
    pack,
)
from tornado import web

from .dashboard import NoDashboard, ToStatus, page_patterns
from .server import HttpServer, Route

logger = logging.getLogger("distributed.scheduler")

#: The module that the child runs.
CHILD = "paceline.workers_compat.dashboard"
#: After a child has ended it is not started again for so long, seconds.
AGAIN_SECONDS = 5.0
#: Connections that wait for the child to be ready; more are told to try again.
WAITING_MAX = 200
#: How long the child may take to end, seconds.
STOP_SECONDS = 2.0
#: Ops that pages ask.
QUESTIONS = ("benchmark_hardware", "profile", "profile_metadata")
#: What a connection is handed over as: one page, or a websocket that goes on.
PAGE, WEBSOCKET = b"p", b"w"


def possible() -> bool:
    """Whether open connections can be handed to another process here."""
    return hasattr(socket, "send_fds") and hasattr(socket, "AF_UNIX")


class ChildDashboard:
    """The dashboard's process, and what it is told.

    Args:
        facade: the scheduler, to gather news from.
        prefix: before every path.
        facts: of this process, in all news.
    """

    def __init__(self, facade: Any, prefix: str, facts: Callable[[], dict[str, Any]]) -> None:
        self._facade = facade
        self._prefix = prefix
        self._facts = facts
        self._loop = asyncio.get_running_loop()
        self._http: HttpServer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._hands: socket.socket | None = None
        self._channel: _Channel | None = None
        self._waiting: list[tuple[socket.socket, bytes]] = []
        self._ended_at = float("-inf")
        self._ready = False
        self._stopped = False
        self.error = ""

    # see ``Dashboard``

    def routes(self) -> list[Route]:
        """See ``Dashboard``."""
        return [(r"/", ToStatus, {"prefix": self._prefix})]

    def connect(self, http: HttpServer) -> None:
        """See ``Dashboard``."""
        self._http = http
        patterns = page_patterns(self._prefix)
        http.application.add_application(
            web.Application([(pattern, ElsewherePage, {"dashboard": self}) for pattern in patterns])
        )
        http.hand_over(patterns, self.take)

    async def stop(self) -> None:
        """See ``Dashboard``."""
        self._stopped = True
        for connection, _ in self._waiting:
            connection.close()
        self._waiting.clear()
        process = self._process
        self._close()
        if process is None:
            return
        deadline = self._loop.time() + STOP_SECONDS
        while process.poll() is None and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        if process.poll() is None:
            process.kill()
            process.wait()

    @property
    def resting(self) -> bool:
        """Whether the child has ended and is not to be started yet."""
        return self._process is None and time.monotonic() - self._ended_at < AGAIN_SECONDS

    # browsers

    def take(self, connection: socket.socket, path: str) -> bool:
        """Hand a browser's connection over. Returns False where there is nobody to take it: it is ours then."""
        kind = WEBSOCKET if path.endswith("/ws") else PAGE
        if self._ready:
            return self._hand(connection, kind)
        if self._process is None and not self._begin():
            return False
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append((connection, kind))
        return True

    def _hand(self, connection: socket.socket, kind: bytes) -> bool:
        assert self._hands is not None
        try:
            socket.send_fds(self._hands, [kind], [connection.fileno()])
        except OSError:
            return False
        connection.close()
        return True

    # the child

    def _begin(self) -> bool:
        """Start it. Returns whether it may still come to something."""
        if self._stopped or self.resting:
            return False
        assert self._http is not None
        ours, theirs = socket.socketpair()
        hands, hands_theirs = socket.socketpair()
        fds = (theirs.fileno(), hands_theirs.fileno())
        command = [sys.executable, "-m", CHILD, *map(str, fds)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                env=config.child_environment(),
                start_new_session=True,
            )
        except OSError as error:
            logger.warning("The dashboard's process cannot be started: %s", error)
            self.error = str(error)
            return False
        finally:
            theirs.close()
            hands_theirs.close()
        hands.setblocking(False)
        self._hands = hands
        self._channel = channel = _Channel(self)
        setup = Setup(
            config=config.plain(),
            path=list(sys.path),
            prefix=self._prefix,
            port=self._http.port,
            jupyter=bool(self._facade._scheduler.jupyter),
            facts={"address": self._facade.address, "id": self._facade.id},
        )
        channel.snapshots = Snapshots(self._facade, self._facts)
        connecting = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: channel, ours)
        )
        connecting.add_done_callback(lambda _: channel.send(setup))
        return True

    def ready(self, message: Ready) -> None:
        """It serves, or says why it cannot."""
        self.error = message.error
        self._ready = not message.error
        waiting, self._waiting = self._waiting, []
        for connection, kind in waiting:
            if not (self._ready and self._hand(connection, kind)):
                self._keep(connection)
        if message.error:
            logger.warning("The dashboard cannot start: %s", message.error)
            self._close()

    def lost(self, channel: _Channel) -> None:
        """It has ended."""
        if channel is self._channel:
            if not self._stopped:
                logger.warning("The dashboard's process has ended; the next page starts it again")
            self._close()

    def _keep(self, connection: socket.socket) -> None:
        if self._http is not None:
            self._http.serve(connection)

    def _close(self) -> None:
        self._ready = False
        self._ended_at = time.monotonic()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if self._hands is not None:
            self._hands.close()
            self._hands = None
        waiting, self._waiting = self._waiting, []
        for connection, _ in waiting:
            self._keep(connection)
        process, self._process = self._process, None
        if process is not None and not self._stopped:
            self._loop.call_later(STOP_SECONDS, _reap, process)

    # what it asks

    def question(self, channel: _Channel, question: Question) -> None:
        """A page asks something that takes time."""
        if question.what not in QUESTIONS:
            channel.send(Answer(question.number, error=f"nobody answers {question.what!r}"))
            return
        task = self._loop.create_task(self._answer(question))
        task.add_done_callback(lambda done: None if done.cancelled() else channel.send(done.result()))

    async def _answer(self, question: Question) -> Answer:
        try:
            if question.what == "profile_metadata":
                value = self._facade.get_profile_metadata(**question.options)
            else:
                value = self._facade.handlers[question.what](**question.options)
            if inspect.isawaitable(value):
                value = await value
        except Exception as error:
            return Answer(question.number, error=f"{type(error).__name__}: {error}")
        return Answer(question.number, value)


class _Channel(asyncio.Protocol):
    """Messages to and from one child."""

    def __init__(self, dashboard: ChildDashboard) -> None:
        self._dashboard = dashboard
        self._splitter = Splitter()
        self._transport: Any = None
        self.snapshots: Snapshots | None = None
        self._seconds = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self, message: Any) -> None:
        """Send one."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(message))

    def data_received(self, data: bytes) -> None:
        for message in self._splitter.feed(data):
            if isinstance(message, Poll):
                self._news(message)
            elif isinstance(message, Question):
                self._dashboard.question(self, message)
            elif isinstance(message, Ready):
                self._dashboard.ready(message)

    def _news(self, poll: Poll) -> None:
        assert self.snapshots is not None
        started = time.perf_counter()
        try:
            news = self.snapshots.news(poll.wanted)
            data = pack(State(news, self._seconds))
        except Exception:
            logger.exception("News for the dashboard failed")
            self.close()
            return
        self._seconds = time.perf_counter() - started
        if self._transport is not None:
            self._transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.snapshots is not None:
            self.snapshots.stop()
        self._dashboard.lost(self)

    def close(self) -> None:
        """Say no more; the child ends."""
        if self._transport is not None:
            self._transport.close()


def _reap(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)


class ElsewherePage(web.RequestHandler):
    """A page of the dashboard was asked for on a connection that is ours: where there is a dashboard, the browser comes
    again on another one; where there is none, the page says why."""

    def initialize(self, dashboard: ChildDashboard) -> None:
        self._dashboard = dashboard

    def get(self, *_: Any) -> None:
        if self._dashboard.error:
            NoDashboard.say(self, html.escape(self._dashboard.error))
            return
        self.set_header("Connection", "close")
        if self._dashboard.resting:
            self.set_header("Refresh", str(int(AGAIN_SECONDS)))
            NoDashboard.say(self, "The dashboard's process has ended; it is started again soon.")
            return
        self.set_header("Cache-Control", "no-store")
        self.redirect(self.request.uri or "/status", status=307)
