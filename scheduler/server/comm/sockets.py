"""Sockets: bound to all address families of a host, with options that detect dead peers."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.workers_compat.addressing import join_host_port
from paceline.workers_compat.config import config
from paceline.workers_compat.security.tls_config import certificate_names
from tornado.netutil import bind_sockets as bind_to_port

#: Attempts to find a random port that is free for both IPv4 and IPv6.
BIND_ATTEMPTS = 5
#: Default of ``distributed.comm.timeouts.tcp``: a peer that answers no probe for this time is
#: considered gone, seconds. Unlike stock, Linux's TCP_USER_TIMEOUT stays unset: it would close the
#: connection of a worker whose task holds the GIL for long, because that reads nothing.
KEEPALIVE_SECONDS = 30
#: Keepalive probes of a silent peer before its connection is closed.
KEEPALIVE_PROBES = 10
#: Returns sockets that are bound to a host and port.
Bind = Callable[[str, int], list[socket.socket]]


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """Facts about a connection when it opens.

    Attributes:
        outgoing: whether this end connected.
        names: names in the peer's certificate; () without TLS.
    """

    peer_address: str
    local_address: str
    outgoing: bool
    names: tuple[str, ...] = ()


def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to a port of `host`, in all of its address families. Raises OSError."""
    for _ in range(BIND_ATTEMPTS - 1 if port == 0 else 0):
        with contextlib.suppress(OSError):
            return bind_to_port(port, host)
    return bind_to_port(port, host)


def bound(sockets: Sequence[socket.socket]) -> tuple[str, int]:
    """Return host and port of the first socket; as in stock, the host is always an IP address."""
    host, port = sockets[0].getsockname()[:2]
    return str(host), int(port)


def set_socket_options(sock: Any) -> None:
    """Disable delays of small messages, and detect peers whose machine is gone."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # a platform without one of the options, or a time that the system does not accept
    with contextlib.suppress(OSError, OverflowError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            configured = config.seconds(config.get("distributed.comm.timeouts.tcp"))
            timeout = int(configured or KEEPALIVE_SECONDS)
            interval = max(1, (timeout - max(2, timeout // 4)) // KEEPALIVE_PROBES)
            idle = max(1, timeout - interval * KEEPALIVE_PROBES)  # both as in stock
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)


def socket_facts(peer: Any, local: Any, certificate: Any, scheme: str, outgoing: bool) -> PeerFacts:
    """Return the facts of a connection from its socket names and the peer's certificate."""
    return PeerFacts(
        peer_address=f"{scheme}://{join_host_port(str(peer[0]), int(peer[1]))}",
        local_address=f"{scheme}://{join_host_port(str(local[0]), int(local[1]))}",
        outgoing=outgoing,
        names=certificate_names(certificate) if scheme in ("tls", "wss") else (),
    )


def is_half_closed(fd: int) -> bool:
    """Return whether the peer of a connected socket sends no more data. False if unknown."""
    if not hasattr(select, "POLLRDHUP"):  # other systems than Linux
        return False
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    return bool(poller.poll(0))
