"""What speaks schemes other than ``tcp``: one carrier each.

Must not know: what a carrier does.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.workers_compat.security import Tls

from .seam import Carrier
from .tls import TlsCarrier
from .websocket import WebSocketCarrier


def carriers(tls: Tls) -> Mapping[str, Carrier]:
    """Scheme -> its carrier."""
    return {
        "tls": TlsCarrier(tls),
        "ws": WebSocketCarrier("ws", tls),
        "wss": WebSocketCarrier("wss", tls),
    }
