"""The HTTP server: which handler a path has, and ports that may be taken.

Must not know: what the pages say.
"""

from __future__ import annotations

import logging
import socket
import ssl
import warnings
from typing import Any

from tornado import httputil, web
from tornado.httpserver import HTTPServer as TornadoServer
from tornado.netutil import bind_sockets

from .token import TokenGate

logger = logging.getLogger("distributed.scheduler")

#: How often another free port is tried.
BIND_ATTEMPTS = 3

Route = tuple[str, type[web.RequestHandler], dict[str, Any]]


class PageApplication(web.Application):
    """Our own routes; what none of them matches goes to the applications that others add, in order.

    Attributes:
        applications: tornado applications, as stock's ``http_application`` has them: bokeh's, Jupyter's, of plugins.
    """

    def __init__(self, routes: list[Route], gate: TokenGate | None = None) -> None:
        super().__init__(list(routes))
        self._gate = gate
        self.applications: list[web.Application] = []

    def add_application(self, application: web.Application) -> None:
        """Serve what it serves, beside our own routes."""
        self.applications.append(application)

    def find_handler(self, request: httputil.HTTPServerRequest, **kwargs: Any) -> Any:
        """See tornado."""
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
        self._server = TornadoServer(self.application, ssl_options=ssl_context)
        bound = [self._bind(host or default_host, port) for host, port in addresses]
        self.address, self.port = bound[0]

    def _bind(self, host: str, port: int) -> tuple[str, int]:
        sockets = _sockets(host, port)
        actual = sockets[0].getsockname()
        self._server.add_sockets(sockets)
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
        self._server.stop()


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
