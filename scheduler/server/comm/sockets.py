"""Create sockets: bound to all address families of a host, with options that detect dead peers."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from typing import Any

from paceline.workers_compat.addressing import join_host_port
from paceline.workers_compat.security.tls_config import certificate_names

from .addresses import WILDCARDS
from .transport import PeerFacts

#: Attempts to find a random port that is free for both IPv4 and IPv6.
BIND_ATTEMPTS = 5
#: A peer that answers no probe for this time is considered gone (stock's ``comm.timeouts.tcp``),
#: seconds. Linux's TCP_USER_TIMEOUT stays unset: it would close the connection of a worker whose
#: task holds the GIL for long, because that reads nothing.
KEEPALIVE_SECONDS = 30
#: Keepalive probes of a silent peer before its connection is closed.
KEEPALIVE_PROBES = 10


def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to `host` and one port, in all of its address families.

    Raises:
        OSError: none could be bound.
    """
    if host:
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
    """Return host and port of the first socket; as in stock, the host is always an IP address."""
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


def set_socket_options(sock: Any) -> None:
    """Disable delays of small messages, and detect peers whose machine is gone."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # a platform without one of the options
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            idle = KEEPALIVE_SECONDS // 4
            interval = (KEEPALIVE_SECONDS - idle) // KEEPALIVE_PROBES
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)


def socket_facts(peer: Any, local: Any, certificate: Any, scheme: str, outgoing: bool) -> PeerFacts:
    """Return the facts of a connection from its socket names and the peer's certificate."""
    return PeerFacts(
        peer_address=f"{scheme}://{join_host_port(str(peer[0]), int(peer[1]))}",
        local_address=f"{scheme}://{join_host_port(str(local[0]), int(local[1]))}",
        same_host=peer[0] == local[0] and peer[0] not in WILDCARDS,
        outgoing=outgoing,
        names=certificate_names(certificate) if scheme in ("tls", "wss") else (),
    )
