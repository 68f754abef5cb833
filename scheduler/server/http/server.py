"""The HTTP server: routing, listening, and passing connections to the dashboard's process."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import socket
import ssl
import warnings
from collections.abc import Callable
from typing import Any

from paceline.scheduler.server.comm.accepting import SocketAcceptor
from paceline.scheduler.server.comm.sockets import Bind, bind_sockets, bound
from paceline.workers_compat.security.http_connections import ConnectionServer, HttpLimits
from paceline.workers_compat.security.http_token import TokenGate
from tornado import httputil, web

logger = logging.getLogger("distributed.scheduler")

#: Bytes of a request that are peeked at to find the process that serves it.
PEEK_NBYTES = 4096

Route = tuple[str, type[web.RequestHandler], dict[str, Any]]


class Page(web.RequestHandler):
    """A page whose content a function returns: text, or a dict that is sent as JSON."""

    def initialize(self, content: Callable[[], Any], content_type: str | None) -> None:
        self._content = content
        self._content_type = content_type

    async def get(self) -> None:
        content = self._content()
        if inspect.isawaitable(content):
            content = await content
        if self._content_type is not None:
            self.set_header("Content-Type", self._content_type)
        self.write(content)


def page(path: str, content: Callable[[], Any], content_type: str | None = None) -> Route:
    """Return the route of a page."""
    return path, Page, {"content": content, "content_type": content_type}


class PageApplication(web.Application):
    """The scheduler's routes.

    Requests that match none of them go to the added applications, in order.

    Attributes:
        applications: tornado applications of bokeh, Jupyter and plugins, as in stock's
            ``http_application``.
    """

    def __init__(self, routes: list[Route], gate: TokenGate | None = None) -> None:
        super().__init__(list(routes))
        self._gate = gate
        self._peers: tuple[type[web.RequestHandler], dict[str, Any]] | None = None
        self.applications: list[web.Application] = []

    def add_application(self, application: web.Application) -> None:
        """Serve the routes of ``application`` in addition."""
        self.applications.append(application)

    def serve_peers(self, handler: type[web.RequestHandler], arguments: dict[str, Any]) -> None:
        """Handle web sockets of workers and clients at ``/``, without a token."""
        self._peers = (handler, arguments)

    def find_handler(self, request: httputil.HTTPServerRequest, **kwargs: Any) -> Any:
        if self._peers is not None:
            upgrade = request.headers.get("Upgrade", "").lower()
            if request.path == "/" and upgrade == "websocket":
                return self.get_handler_delegate(request, *self._peers)
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


def bind_or_replace(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to a port of `host`, or to a free one if that is in use."""
    try:
        return bind_sockets(host, port)
    except OSError:
        return bind_sockets(host, 0)


class HttpServer:
    """Serves routes on one or more addresses. `address` and `port` are the first one, as bound.

    Args:
        routes: (path below the prefix, handler, its arguments).
        addresses: (host, port); if a port is in use, a free one is bound instead, with stock's
            warning.
        prefix: prefix of every path: ``""`` or ``"/a"``.
        gate: checks the token of each request; None if pages need no token.
        bind: binds the sockets of an address.

    Raises:
        OSError: no port is available.
    """

    def __init__(
        self,
        routes: list[Route],
        addresses: list[tuple[str, int]],
        default_host: str = "",
        prefix: str = "",
        ssl_context: ssl.SSLContext | None = None,
        gate: TokenGate | None = None,
        limits: HttpLimits | None = None,
        bind: Bind = bind_or_replace,
    ) -> None:
        self._bind_sockets = bind
        self.prefix = prefix
        rules = [(prefix + path, handler, options) for path, handler, options in routes]
        if prefix:  # stock redirects the first; the second is often typed
            front = {"url": prefix + "/", "permanent": False}
            rules += [(path, web.RedirectHandler, front) for path in ("/", prefix)]
        self.application = PageApplication(rules, gate)
        self.tls = ssl_context is not None
        self._sockets: list[SocketAcceptor] = []
        limits = limits or HttpLimits()
        self._server = ConnectionServer(self.application, limits, ssl_context)
        self._idle_seconds = limits.idle_seconds
        self._passed_on: re.Pattern[str] | None = None
        self._pass_on: Callable[[socket.socket, str, bool], bool] | None = None
        self._peeked: dict[socket.socket, asyncio.TimerHandle] = {}
        where = [self._bind(host or default_host, port) for host, port in addresses]
        self.address, self.port = where[0]

    def _bind(self, host: str, port: int) -> tuple[str, int]:
        sockets = self._bind_sockets(host, port)
        self._sockets += [SocketAcceptor(each, self._accepted) for each in sockets]
        address, actual_port = bound(sockets)
        if port and actual_port != port:
            warnings.warn(
                f"Port {port} is already in use.\n"
                "Perhaps you already have a cluster running?\n"
                f"Hosting the HTTP server on port {actual_port} instead",
                stacklevel=2,
            )
        return address, actual_port

    def stop(self) -> None:
        """Stop listening, and close connections that have not sent a request."""
        for each in self._sockets:
            each.close()
        for connection in list(self._peeked):
            self._drop(connection)
        self._sockets.clear()

    # connections

    def hand_over(
        self, patterns: list[str], accept: Callable[[socket.socket, str, bool], bool]
    ) -> None:
        """Pass connections whose first request is for a path of ``patterns`` to another process.

        ``accept`` receives the open connection, unread, the path, and whether the request may open
        a websocket. If it returns False, the connection is served here.
        """
        if not self.tls:
            self._passed_on = re.compile("|".join(f"(?:{pattern})$" for pattern in patterns))
            self._pass_on = accept

    def _accepted(self, connection: socket.socket) -> None:
        if self._pass_on is None:
            self.serve(connection)
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._idle_seconds, self._drop, connection)
        self._peeked[connection] = timer
        self._server.connections.add(connection.fileno(), lambda: self._drop(connection))
        loop.add_reader(connection.fileno(), self._readable, connection)

    def _unpeek(self, connection: socket.socket) -> None:
        self._peeked.pop(connection).cancel()
        self._server.connections.remove(connection.fileno())
        asyncio.get_running_loop().remove_reader(connection.fileno())

    def _drop(self, connection: socket.socket) -> None:
        """Close a connection that has not sent a request."""
        self._unpeek(connection)
        connection.close()

    def _readable(self, connection: socket.socket) -> None:
        """Serve the connection, or pass it on, depending on the path of its first request."""
        self._unpeek(connection)
        try:
            start = connection.recv(PEEK_NBYTES, socket.MSG_PEEK)
        except OSError:
            start = b""
        if not start:
            connection.close()
            return
        path = request_path(start)
        assert self._passed_on is not None and self._pass_on is not None
        # another request on this connection could be for a page of the other process
        keep_alive = may_upgrade(start)
        if (
            path is None
            or not self._passed_on.match(path)
            or not self._pass_on(connection, path, keep_alive)
        ):
            self.serve(connection, keep_alive)

    def serve(self, connection: socket.socket, keep_alive: bool = True) -> None:
        """Serve a connection in this process; without ``keep_alive``, only one request."""
        self._server.serve(connection, keep_alive)


def request_path(start: bytes) -> str | None:
    """Return the path of a GET from its first bytes, or None if they hold no whole path."""
    found = re.match(rb"GET ([^ ?\r\n]+)[ ?]", start)
    return None if found is None else found[1].decode("latin-1")


def may_upgrade(start: bytes) -> bool:
    """Return whether the request may open a websocket, from its first bytes."""
    return b"\r\n\r\n" not in start or bool(re.search(rb"(?i)\r\nupgrade:\s*websocket", start))
