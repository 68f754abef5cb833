"""HTTP connections with limits on their number, idle time and the size of request bodies.

The scheduler's process and the dashboard's process serve HTTP. HTTP connections must not use the
file descriptors that workers and clients need, so their number is limited, and a new connection
closes the least recently used one.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tornado import httputil, iostream, netutil
from tornado.httpserver import HTTPServer

logger = logging.getLogger("distributed.scheduler")

#: HTTP uses at most the limit of file descriptors divided by this.
DESCRIPTORS_DIVISOR = 4
#: Minimum interval of warnings about too many connections, seconds.
LOG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of an HTTP server.

    Attributes:
        connections: number of open connections (``paceline.http.connections``).
        idle_seconds: time for a request's headers, its body, and for a client to read
            (``paceline.http.idle-timeout``).
        body_nbytes: size of a request's body (``paceline.http.body-size``).
    """

    connections: int = 1_000
    idle_seconds: float = 75.0
    body_nbytes: int = 2**20


def affordable(connections: int, divisor: int = DESCRIPTORS_DIVISOR) -> int:
    """Return ``connections``, or the limit of open files divided by `divisor` if that is less."""
    if sys.platform == "win32":
        return connections
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, soft // divisor))


class OpenConnections:
    """Up to `limit` open connections by descriptor. Another one closes the least recently used."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._close: dict[int, Callable[[], None]] = {}
        self._logged_at = float("-inf")

    def __len__(self) -> int:
        return len(self._close)

    def add(self, descriptor: int, close: Callable[[], None]) -> None:
        """Add a connection. ``close`` must close it, and may call ``remove``."""
        while len(self._close) >= self._limit:
            self._log()
            oldest = next(iter(self._close))
            self._close.pop(oldest)()
        self._close[descriptor] = close

    def touch(self, descriptor: int) -> None:
        """Mark the connection as the most recently used one."""
        close = self._close.pop(descriptor, None)
        if close is not None:
            self._close[descriptor] = close

    def remove(self, descriptor: int) -> None:
        """Remove a connection that was closed or has no limits any more."""
        self._close.pop(descriptor, None)

    def _log(self) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.warning(
                "More than %d HTTP connections are open; closing the least recently used ones. "
                "To allow more, raise paceline.http.connections and the limit of open files "
                "(ulimit -n)",
                self._limit,
            )


class _Limited(iostream.IOStream):
    """A stream that is counted until it is closed."""

    connections: OpenConnections

    def count(self, connections: OpenConnections, idle_seconds: float) -> None:
        """Count the stream, and close it if the client does not read for ``idle_seconds``."""
        self.connections = connections
        connections.add(self.socket.fileno(), self.close)
        self._drop_unread_after(idle_seconds)

    def exempt(self) -> None:
        """Stop counting the stream: it belongs to a worker or client, which has no HTTP limits."""
        self.connections.remove(self.socket.fileno())
        self._drop_unread_after(0)

    def close_fd(self) -> None:
        self.connections.remove(self.socket.fileno())
        super().close_fd()

    def _drop_unread_after(self, seconds: float) -> None:
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            with contextlib.suppress(OSError):
                timeout = int(seconds * 1000)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout)


class _LimitedTls(_Limited, iostream.SSLIOStream):
    """An encrypted stream that is counted until it is closed."""


class _Server(HTTPServer):
    connections: OpenConnections

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> Any:
        """Mark the connection as used. See tornado."""
        stream = getattr(request_conn, "stream", None)
        if stream is not None and stream.socket is not None:
            self.connections.touch(stream.socket.fileno())
        return super().start_request(server_conn, request_conn)


class ConnectionServer:
    """Serves HTTP on accepted sockets.

    Args:
        router: finds the handlers of requests.
        limits: limits of the connections.
        ssl_context: None for plain HTTP.
        buffer_nbytes: size of a connection's buffer for unread data; None for tornado's default.
    """

    def __init__(
        self,
        router: httputil.HTTPServerConnectionDelegate,
        limits: HttpLimits,
        ssl_context: ssl.SSLContext | None = None,
        buffer_nbytes: int | None = None,
    ) -> None:
        self.connections = OpenConnections(limits.connections)
        self._limits = limits
        self._ssl_context = ssl_context
        self._buffer_nbytes = buffer_nbytes
        self._servers = {keep: self._server(router, keep) for keep in (True, False)}

    def _server(self, router: httputil.HTTPServerConnectionDelegate, keep_alive: bool) -> _Server:
        server = _Server(
            router,
            no_keep_alive=not keep_alive,
            ssl_options=self._ssl_context,
            idle_connection_timeout=self._limits.idle_seconds,
            body_timeout=self._limits.idle_seconds,
            max_body_size=self._limits.body_nbytes,
        )
        server.connections = self.connections
        return server

    def serve(self, sock: socket.socket, keep_alive: bool = True) -> None:
        """Serve an accepted socket. If `keep_alive` is set, it may send several requests."""
        sock.setblocking(False)
        try:
            address = sock.getpeername()
        except OSError:  # the client closed it
            sock.close()
            return
        options = {} if self._buffer_nbytes is None else {"max_buffer_size": self._buffer_nbytes}
        stream: _Limited
        if self._ssl_context is not None:
            wrapped = netutil.ssl_wrap_socket(
                sock, self._ssl_context, server_side=True, do_handshake_on_connect=False
            )
            stream = _LimitedTls(wrapped, ssl_options=self._ssl_context, **options)
        else:
            stream = _Limited(sock, **options)
        stream.count(self.connections, self._limits.idle_seconds)
        self._servers[keep_alive].handle_stream(stream, address)
