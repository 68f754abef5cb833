"""The dashboard's process: mirrors the scheduler, serves distributed's Bokeh pages on connections that it is handed.

``python -m paceline.workers_compat.dashboard NEWS HANDS``: numbers of two open sockets, one for messages (``wire.py``) and one
over which the scheduler's process hands browsers' connections.

Must not know: the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import warnings
from typing import Any

from .wire import Answer, Poll, Question, Ready, Setup, Splitter, State, pack

logger = logging.getLogger("distributed.scheduler")

#: While a page is open, news are asked for this often, seconds; slower where gathering them costs the scheduler more
#: than this share of its time.
POLL_SECONDS = 0.1
SHARE = 0.01
#: While none is: so that the next page begins with something.
IDLE_SECONDS = 5.0
#: How much this process steps back where others want the processor, too: scheduling comes first.
NICENESS = 5
#: A page that is opened reads what it needs within so long, seconds.
OPENING_SECONDS = 3.0
#: A page's question is given up after so long, seconds.
QUESTION_SECONDS = 120.0
#: What is asked for before the first page, and while none is open.
ALWAYS = ("workers", "prefixes", "groups", "monitor", "requests")
#: Connections of browsers end after one answer, so that each request finds its process anew; these go on.
SOCKETS = b"w"


class Child:
    """This process."""

    def __init__(self, news: socket.socket, hands: socket.socket) -> None:
        self._news = news
        self._hands = hands
        self._splitter = Splitter()
        self._loop = asyncio.get_running_loop()
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._last_question = 0
        self._mirror: Any = None
        self._servers: dict[bytes, Any] = {}
        self._transport: Any = None
        self._ready = False
        self._opened_at = -OPENING_SECONDS
        self.ended = self._loop.create_future()

    # the scheduler's side: an asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        """See asyncio."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        for message in self._splitter.feed(data):
            if isinstance(message, Setup):
                self._set_up(message)
            elif isinstance(message, State):
                self._take(message)
            elif isinstance(message, Answer):
                self._answered(message)

    def eof_received(self) -> bool:
        """See asyncio."""
        return False

    def pause_writing(self) -> None:
        """See asyncio."""

    def resume_writing(self) -> None:
        """See asyncio."""

    def connection_lost(self, error: Exception | None) -> None:
        """The scheduler is gone, or wants us to go."""
        if not self.ended.done():
            self.ended.set_result(None)

    def _set_up(self, setup: Setup) -> None:
        sys.path[:] = setup.path
        try:
            self._mirror, application = _pages(setup, self._ask)
        except Exception as error:
            logger.warning("The dashboard cannot start: %s", error)
            self._transport.write(pack(Ready(f"{type(error).__name__}: {error}")))
            return
        from tornado.httpserver import HTTPServer

        self._servers = {
            SOCKETS: HTTPServer(application),
            b"p": HTTPServer(application, no_keep_alive=True),
        }
        self._poll()

    def _poll(self) -> None:
        wanted = self._mirror.wanted()
        for topic in ALWAYS:
            wanted.setdefault(topic, None)
        self._transport.write(pack(Poll(wanted)))

    def _take(self, state: State) -> None:
        try:
            self._mirror.apply(state.news)
        except Exception:
            logger.exception("The dashboard's mirror failed")
        if not self._ready:
            self._ready = True
            self._loop.add_reader(self._hands, self._handed)
            self._transport.write(pack(Ready()))
        busy = bool(self._mirror.wanted()) or self._loop.time() < self._opened_at + OPENING_SECONDS
        wait = max(POLL_SECONDS, state.seconds / SHARE) if busy else IDLE_SECONDS
        self._next = self._loop.call_later(wait, self._poll)

    # browsers

    def _handed(self) -> None:
        """A browser's connection comes."""
        from tornado.iostream import IOStream

        try:
            kind, fds, _, _ = socket.recv_fds(self._hands, 1, 1)
        except BlockingIOError:
            return
        if not kind:
            self._loop.remove_reader(self._hands)
            return
        for fd in fds:
            connection = socket.socket(fileno=fd)
            connection.setblocking(False)
            try:
                address = connection.getpeername()
            except OSError:
                connection.close()
                continue
            self._servers[kind].handle_stream(IOStream(connection), address)
        self._opened_at = self._loop.time()
        if self._next.when() - self._opened_at > POLL_SECONDS:
            self._next.cancel()
            self._next = self._loop.call_later(0, self._poll)

    # questions

    def _ask(self, what: str, options: dict[str, Any]) -> asyncio.Future[Any]:
        self._last_question = number = self._last_question + 1
        future = self._questions[number] = self._loop.create_future()
        self._transport.write(pack(Question(number, what, options)))
        self._loop.call_later(QUESTION_SECONDS, self._answered, Answer(number, error="no answer"))
        return future

    def _answered(self, answer: Answer) -> None:
        future = self._questions.pop(answer.number, None)
        if future is None or future.done():
            return
        if answer.error:
            future.set_exception(RuntimeError(answer.error))
        else:
            future.set_result(answer.value)


def _pages(setup: Setup, ask: Any) -> tuple[Any, Any]:
    """The mirror, and the application that serves its pages.

    Raises:
        ImportError: bokeh is missing, or is not one that distributed takes.
    """
    from types import SimpleNamespace

    import dask

    dask.config.update(dask.config.config, setup.config, priority="new")
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables
    from tornado.ioloop import IOLoop

    from .applications import pages
    from .mirror import MirrorScheduler

    mirror = MirrorScheduler(ask, IOLoop.current(), setup.jupyter, setup.facts)
    mirror.http_server = SimpleNamespace(port=setup.port)
    application = BokehApplication(
        pages(), mirror, prefix=setup.prefix, template_variables=template_variables(mirror)
    )
    application.initialize(IOLoop.current())
    application.start()
    return mirror, application


def main() -> None:
    """Serve until the scheduler has gone."""
    with contextlib.suppress(OSError, AttributeError):  # not everywhere
        os.nice(NICENESS)
    warnings.simplefilter("ignore")
    news, hands = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    for each in (news, hands):
        each.setblocking(False)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    def begin() -> None:
        child = Child(news, hands)
        child.ended.add_done_callback(lambda _: loop.stop())
        task = loop.create_task(loop.connect_accepted_socket(lambda: child, news))
        child.connecting = task

    loop.call_soon(begin)
    loop.run_forever()


if __name__ == "__main__":
    main()
