"""The backends of all schemes, each created when its scheme is first used."""

from __future__ import annotations

from collections.abc import Callable

from paceline.workers_compat.security.tls_config import Tls

from .distributed_comm import DistributedBackend
from .tcp import TcpBackend
from .tls import TlsBackend
from .transport import CommBackend
from .websocket import WebSocketBackend

#: Limit of schemes, which peers choose by their addresses.
SCHEMES_MAX = 32


def backends(tls: Tls) -> Callable[[str], CommBackend]:
    """Return a function from a scheme to its backend.

    An unknown scheme raises when its backend is used.
    """
    made: dict[str, CommBackend] = {}

    def find(scheme: str) -> CommBackend:
        if scheme not in made:
            if len(made) >= SCHEMES_MAX:
                raise ValueError(f"cannot use {scheme}://: more than {SCHEMES_MAX} schemes")
            made[scheme] = _backend(scheme, tls)
        return made[scheme]

    return find


def _backend(scheme: str, tls: Tls) -> CommBackend:
    if scheme == "tcp":
        return TcpBackend()
    if scheme == "tls":
        return TlsBackend(tls)
    if scheme in ("ws", "wss"):
        return WebSocketBackend(scheme, tls)
    return DistributedBackend(scheme, tls)
