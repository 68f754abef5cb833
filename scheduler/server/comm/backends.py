"""The backends of all schemes."""

from __future__ import annotations

from collections.abc import Callable

from paceline.workers_compat.security.tls_config import Tls

from .distributed_comm import DistributedBackend
from .tcp import TcpBackend
from .tls import TlsBackend
from .transport import CommBackend
from .websocket import WebSocketBackend


def backends(tls: Tls, tcp: CommBackend | None = None) -> Callable[[str], CommBackend]:
    """Return a function from a scheme to its backend, which raises if the scheme is unknown.

    ``tcp`` replaces the backend of ``tcp://``.
    """
    own: dict[str, CommBackend] = {
        "tcp": tcp or TcpBackend(),
        "tls": TlsBackend(tls),
        "ws": WebSocketBackend("ws", tls),
        "wss": WebSocketBackend("wss", tls),
    }
    return lambda scheme: own.get(scheme) or DistributedBackend(scheme, tls)
