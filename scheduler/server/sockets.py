"""Sockets: bound to all families of a host, and set up to notice peers that are gone.

Must not know: connections.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: How often a random port is tried again when IPv4 has it and IPv6 has not.
BIND_ATTEMPTS = 5
#: Keepalive: a silent peer is probed so often before its connection is given up.
KEEPALIVE_PROBES = 10


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """How sockets are set up. Durations in seconds.

    Attributes:
        keepalive_seconds: a peer that answers no probe for so long is gone (stock's ``comm.timeouts.tcp``).
            Linux's TCP_USER_TIMEOUT stays unset: it would end the connection of a worker whose task
            holds the GIL for long, as that reads nothing.
    """

    keepalive_seconds: int = 30


def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to ``host`` and one port on all of its families.

    Raises:
        OSError: none could be bound.
    """
    if host not in ("",):
        found = socket.getaddrinfo(
            host, port, socket.AF_UNSPEC, socket.SOCK_STREAM, 0, socket.AI_PASSIVE
        )
        family, _, _, _, where = found[0]
        return [_bind(socket.AddressFamily(family), str(where[0]), port)]
    for attempt in range(BIND_ATTEMPTS):
        first = _bind(socket.AF_INET, "0.0.0.0", port)
        if not socket.has_ipv6:
            return [first]
        try:
            return [first, _bind(socket.AF_INET6, "::", int(first.getsockname()[1]))]
        except OSError:
            if port or attempt == BIND_ATTEMPTS - 1:  # no IPv6 here
                return [first]
            first.close()
    return []


def bound(sockets: Sequence[socket.socket]) -> tuple[str, int]:
    """Host and port of the first: an IP address also where a name was given, as stock tells it to peers."""
    host, port = sockets[0].getsockname()[:2]
    return str(host), int(port)


def _bind(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def set_socket_options(sock: Any, options: SocketOptions) -> None:
    """No delay for small messages; notice a peer whose machine is gone.

    Raises:
        OSError: the platform refuses one.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform != "linux":
        return
    idle = max(2, options.keepalive_seconds // 4)
    interval = max(1, (options.keepalive_seconds - idle) // KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
