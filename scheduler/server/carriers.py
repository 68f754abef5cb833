"""What speaks schemes other than ``tcp``: one carrier each, made when its scheme is first used.

Must not know: what a carrier does.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.workers_compat.security import Tls

from .foreign import CommCarrier
from .seam import Carrier
from .tls import TlsCarrier
from .websocket import WebSocketCarrier

#: Schemes that one scheduler dials: peers name their own addresses.
SCHEMES_MAX = 32


def carriers(tls: Tls) -> Callable[[str], Carrier]:
    """Scheme -> its carrier. Whether anybody speaks a scheme that is none of ours shows when it is used."""
    made: dict[str, Carrier] = {}

    def find(scheme: str) -> Carrier:
        if scheme not in made:
            if len(made) >= SCHEMES_MAX:
                raise ValueError(f"more than {SCHEMES_MAX} schemes: {scheme}:// is not tried")
            made[scheme] = _carrier(scheme, tls)
        return made[scheme]

    return find


def _carrier(scheme: str, tls: Tls) -> Carrier:
    if scheme == "tls":
        return TlsCarrier(tls)
    if scheme in ("ws", "wss"):
        return WebSocketCarrier(scheme, tls)
    return CommCarrier(scheme, tls)
