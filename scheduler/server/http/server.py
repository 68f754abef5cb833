"""The HTTP server: routes, and ports that may be taken.

Must not know: what the pages say.
"""

from __future__ import annotations

import html
import logging
import socket
import warnings
from collections.abc import Callable
from typing import Any

from tornado import web
from tornado.httpserver import HTTPServer as TornadoServer
from tornado.netutil import bind_sockets

from .metrics import MetricsPage

logger = logging.getLogger("distributed.scheduler")

#: How often another free port is tried.
BIND_ATTEMPTS = 3

Route = tuple[str, type[web.RequestHandler], dict[str, Any]]


class HealthHandler(web.RequestHandler):
    """Says that the event loop turns."""

    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.write("ok")


class MetricsHandler(web.RequestHandler):
    """What Prometheus scrapes."""

    def initialize(self, page: MetricsPage) -> None:
        self._page = page

    def get(self) -> None:
        self.set_header("Content-Type", self._page.content_type)
        self.write(self._page.render())


class PlainPage(web.RequestHandler):
    """A page for whoever opens the port in a browser."""

    def initialize(self, facts: Callable[[], dict[str, Any]]) -> None:
        self._facts = facts

    def get(self) -> None:
        rows = "".join(
            f"<tr><th align=left>{html.escape(str(k))}</th><td>{html.escape(str(v))}</td></tr>"
            for k, v in self._facts().items()
        )
        self.write(
            "<!doctype html><title>paceline</title><h1>paceline</h1>"
            f"<table>{rows}</table>"
            "<p><a href='health'>health</a> <a href='metrics'>metrics</a></p>"
        )


class HttpServer:
    """Serves the routes on each of the addresses.

    Attributes:
        address, port: of the first one, as bound.

    Args:
        routes: path below the prefix, handler, its arguments.
        addresses: (host, port); a port that is taken is replaced by a free one, with stock's warning.
        default_host: for addresses without a host.
        prefix: before every path.

    Raises:
        OSError: no port could be had.
    """

    def __init__(
        self,
        routes: list[Route],
        addresses: list[tuple[str, int]],
        default_host: str = "",
        prefix: str = "",
    ) -> None:
        prefix = "/" + prefix.strip("/") if prefix.strip("/") else ""
        rules = [(prefix + path, handler, options) for path, handler, options in routes]
        self.application = web.Application(rules)
        self._server = TornadoServer(self.application)
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


def routes(page: MetricsPage, facts: Callable[[], dict[str, Any]]) -> list[Route]:
    """What is served by default."""
    return [
        (r"/health", HealthHandler, {}),
        (r"/metrics", MetricsHandler, {"page": page}),
        (r"/", PlainPage, {"facts": facts}),
    ]
