"""The HTTP server: which handler a path has, and ports that may be taken.

Must not know: what the pages say.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import warnings
from collections.abc import Callable
from typing import Any

from tornado import httputil, iostream, netutil, web
from tornado.httpserver import HTTPServer as TornadoServer
from tornado.netutil import add_accept_handler, bind_sockets

from .token import TokenGate

logger = logging.getLogger("distributed.scheduler")

#: How often another free port is tried.
BIND_ATTEMPTS = 3

#: Of a request's first line, so much is looked at before somebody reads it.
PEEK_NBYTES = 4096
#: Connections that have said nothing yet and may be somebody else's; beyond, they are ours.
PEEKED_MAX = 1_000
#: Pages from which people go on to the dashboard: their connections end after one request.
PASSING = ("/info", "/json", "/statics", "/individual-plots.json", "/sitemap.json")

Route = tuple[str, type[web.RequestHandler], dict[str, Any]]


class PageApplication(web.Application):
    """Our own routes; what none of them matches goes to the applications that others add, in order.

    Attributes:
        applications: tornado applications, as stock's ``http_application`` has them: bokeh's, Jupyter's, of plugins.
    """

    def __init__(self, routes: list[Route], gate: TokenGate | None = None) -> None:
        super().__init__(list(routes))
        self._gate = gate
        self._peers: tuple[str, type[web.RequestHandler], dict[str, Any]] | None = None
        self.applications: list[web.Application] = []

    def add_application(self, application: web.Application) -> None:
        """Serve what it serves, beside our own routes."""
        self.applications.append(application)

    def serve_peers(self, path: str, handler: type[web.RequestHandler], arguments: dict[str, Any]) -> None:
        """Web sockets on this path are workers and clients, who know no token; other requests are for pages."""
        self._peers = (path, handler, arguments)

    def find_handler(self, request: httputil.HTTPServerRequest, **kwargs: Any) -> Any:
        """See tornado."""
        if self._peers is not None:
            path, handler_class, arguments = self._peers
            if request.path == path and request.headers.get("Upgrade", "").lower() == "websocket":
                return self.get_handler_delegate(request, handler_class, arguments)
        if self._gate is not None:
            refusing = self._gate.refusing(request)
            if refusing is not None:
                return self.get_handler_delegate(request, *refusing)
        handler = super().find_handler(request, **kwargs)
        for application in self.applications:
            if handler and not issubclass(handler.handler_class, web.ErrorHandler):
                break
            handler = application.find_handler(request, **kwargs) or handler
        return handler


class HttpServer:
    """Serves the routes on each of the addresses.

    Attributes:
        address, port: of the first one, as bound.
        application: what serves; routes can be added to it.
        prefix: before every path: ``""`` or ``"/a"``.
        tls: whether it speaks https.

    Args:
        routes: path below the prefix, handler, its arguments.
        addresses: (host, port); a port that is taken is replaced by a free one, with stock's warning.
        default_host: for addresses without a host.
        prefix: before every path.
        ssl_context: for https.
        gate: who may see pages; None for everybody.

    Raises:
        OSError: no port could be had.
    """

    def __init__(
        self,
        routes: list[Route],
        addresses: list[tuple[str, int]],
        default_host: str = "",
        prefix: str = "",
        ssl_context: ssl.SSLContext | None = None,
        gate: TokenGate | None = None,
    ) -> None:
        self.prefix = prefix = "/" + prefix.strip("/") if prefix.strip("/") else ""
        rules = [(prefix + path, handler, options) for path, handler, options in routes]
        self.application = PageApplication(rules, gate)
        self.tls = ssl_context is not None
        self._ssl_context = ssl_context
        self._sockets: list[socket.socket] = []
        self._server = TornadoServer(self.application, ssl_options=ssl_context)
        self._closing = TornadoServer(self.application, no_keep_alive=True)
        self._handed: re.Pattern[str] | None = None
        self._take: Callable[[socket.socket, str], bool] | None = None
        self._peeked: dict[int, socket.socket] = {}
        self._stops: list[Callable[[], None]] = []
        bound = [self._bind(host or default_host, port) for host, port in addresses]
        self.address, self.port = bound[0]

    def _bind(self, host: str, port: int) -> tuple[str, int]:
        sockets = _sockets(host, port)
        actual = sockets[0].getsockname()
        for each in sockets:
            self._stops.append(add_accept_handler(each, self._accepted))
        self._sockets += sockets
        if port and actual[1] != port:
            warnings.warn(
                f"Port {port} is already in use.\n"
                "Perhaps you already have a cluster running?\n"
                f"Hosting the HTTP server on port {actual[1]} instead",
                stacklevel=2,
            )
        return str(actual[0]), int(actual[1])

    def stop(self) -> None:
        """Listen no more."""
        for stop in self._stops:
            stop()
        for each in (*self._sockets, *self._peeked.values()):
            each.close()
        self._stops.clear()
        self._sockets.clear()
        self._peeked.clear()

    # connections

    def hand_over(self, patterns: list[str], take: Callable[[socket.socket, str], bool]) -> None:
        """Give connections whose first request is for one of these paths to somebody else.

        Args:
            take: gets the open connection, unread, and the path; returns False where it does not want it.
        """
        if not self.tls:
            self._handed = re.compile("|".join(f"(?:{pattern})$" for pattern in patterns))
            self._take = take

    def _accepted(self, connection: socket.socket, address: Any) -> None:
        if self._take is None or len(self._peeked) >= PEEKED_MAX:
            self.serve(connection)
            return
        connection.setblocking(False)
        self._peeked[connection.fileno()] = connection
        asyncio.get_running_loop().add_reader(connection.fileno(), self._readable, connection)

    def _readable(self, connection: socket.socket) -> None:
        """The first bytes of a request are there: whose is it?"""
        asyncio.get_running_loop().remove_reader(connection.fileno())
        self._peeked.pop(connection.fileno(), None)
        try:
            start = connection.recv(PEEK_NBYTES, socket.MSG_PEEK)
        except OSError:
            start = b""
        if not start:
            connection.close()
            return
        path = request_path(start)
        assert self._handed is not None and self._take is not None
        if path is not None and self._handed.match(path) and self._take(connection, path):
            return
        self.serve(connection, keep=path is None or not self._passing(path))

    def _passing(self, path: str) -> bool:
        """Whether a browser that asks for this is likely to ask for a page of somebody else's next."""
        below = path.removeprefix(self.prefix)
        return below == "/" or below.startswith(PASSING)

    def serve(self, connection: socket.socket, keep: bool = True) -> None:
        """Serve a connection ourselves; without ``keep``, one request of it."""
        connection.setblocking(False)
        try:
            address = connection.getpeername()
        except OSError:
            connection.close()
            return
        stream: iostream.IOStream
        if self._ssl_context is not None:
            wrapped = netutil.ssl_wrap_socket(
                connection, self._ssl_context, server_side=True, do_handshake_on_connect=False
            )
            stream = iostream.SSLIOStream(wrapped, ssl_options=self._ssl_context)
        else:
            stream = iostream.IOStream(connection)
        (self._server if keep else self._closing).handle_stream(stream, address)


def request_path(start: bytes) -> str | None:
    """The path that the first bytes of a request name; None where they do not."""
    line, end, _ = start.partition(b"\r\n")
    parts = line.split(b" ")
    if not end or len(parts) != 3 or parts[0] != b"GET":
        return None
    return parts[1].split(b"?")[0].decode("latin-1")


def _sockets(host: str, port: int) -> list[socket.socket]:
    try:
        return bind_sockets(port, address=host)
    except OSError as error:
        problem = error
    for _ in range(BIND_ATTEMPTS):
        try:
            return bind_sockets(0, address=host)
        except OSError as error:
            problem = error
    raise problem
