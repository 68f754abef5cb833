"""Names of workers in requests.

Must not know: who asks.
"""

from __future__ import annotations

from typing import Any

from paceline.scheduler.core import queries

from ..addresses import resolve
from .ports import FlowServer


def resolved_address(server: FlowServer, worker: Any) -> str:
    """The address of a worker given by address, alias, ``(host, port)``, or address with a host name.

    Raises:
        TypeError: it is none of these.
        OSError: the host name is unknown.
    """
    address = queries.coerce_address(server.state, worker)
    if address in server.state.workers:
        return address
    return resolve(address)
