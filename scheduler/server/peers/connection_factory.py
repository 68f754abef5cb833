"""Create the protocol state of connections (``protocol/connection.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from paceline.protocol.handshake import local_offer
from paceline.workers_compat.security.shared_secret import CONNECTOR, LISTENER, Secret
from paceline.workers_compat.security.unpickling import read_scalar, serialize_value

from .message_checks import connection_type

if TYPE_CHECKING:
    from paceline.protocol.connection import Connection

#: The handshake that accepted connections receive. Stock peers ignore the second encoding.
OFFER: Mapping[str, Any] = MappingProxyType(local_offer(in_place=True))


class ConnectionFactory:
    """Creates the protocol state of connections.

    Args:
        secret: the secret that peers must know, or None.
    """

    def __init__(self, secret: Secret | None) -> None:
        self._secret = secret
        self._new = connection_type()

    def outgoing(self) -> Connection:
        """Return the state of a connection that the scheduler opens."""
        return self._connection("connector", self._offer(None, CONNECTOR))

    def accepted(self) -> Connection:
        """Return the state of a connection that the scheduler accepts."""
        return self._connection("listener", self._offer(OFFER, LISTENER))

    def _connection(self, role: str, offer: Mapping[str, Any] | None) -> Connection:
        return self._new(
            role, offer=offer, read_scalar=read_scalar, serialize_value=serialize_value
        )

    def _offer(self, offer: Mapping[str, Any] | None, role: str) -> Mapping[str, Any] | None:
        """Return the handshake to send, or None for the default one."""
        if self._secret is None:
            return offer
        return {**(offer or {}), **self._secret.proof(role)}
