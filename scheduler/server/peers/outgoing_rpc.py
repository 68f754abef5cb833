"""The handler of connections that the scheduler opened, which ``pool`` keeps."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

from paceline.workers_compat.errors import connection_lost
from paceline.workers_compat.security.shared_secret import LISTENER

from .peer import EventHandler, Peer


class OutgoingRpc(EventHandler):
    """Handles a connection that the scheduler opened.

    Attributes:
        broken: the connection cannot be used again.
        has_handshake: the handshake of the other side has arrived.
        ended: called with this object when the connection has ended.
        idle_timer: closes the connection if it stays unused.
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.broken = False
        self.has_handshake = False
        self.ended: Callable[[OutgoingRpc], None] = lambda rpc: None
        self.idle_timer: asyncio.TimerHandle | None = None
        self._future: asyncio.Future[Any] | None = None

    async def next_event(self) -> Any:
        """Return the next event. Raise OSError if the connection has ended.

        Its ``errno`` is ENOMEM if there was no memory or disk space for the reply.
        """
        if self.broken:
            raise connection_lost(self.peer.address, "it is closed")
        self._future = self.peer.server.loop.create_future()
        try:
            return await self._future
        finally:
            self._future = None

    def event(self, event: Any) -> None:
        """See ``EventHandler``. The first event is the handshake."""
        first, self.has_handshake = not self.has_handshake, True
        server = self.peer.server
        if first and server.secret is not None:
            refusal = server.secret.refusal(event.remote, LISTENER)
            if refusal is not None:
                self.closed(refusal)
                self.peer.comm.drop(refusal)
                return
        if self._future is not None and not self._future.done():
            self._future.set_result(event)
        elif not first:
            self.abort("it sent a message without a request")
        if first:
            self.peer.comm.admit()

    def closed(self, reason: str) -> None:
        self.broken = True
        if self._future is not None and not self._future.done():
            error = connection_lost(self.peer.address, reason)
            if self.peer.comm.out_of_memory:
                error.errno = errno.ENOMEM
            self._future.set_exception(error)
        self.stop_idle_timer()
        self.ended(self)

    def abort(self, reason: str) -> None:
        """Close the connection immediately."""
        self.broken = True
        self.peer.comm.abort(reason)

    def close(self) -> None:
        """Close the connection once everything is written."""
        self.broken = True
        self.peer.comm.close()

    def stop_idle_timer(self) -> None:
        """Keep the connection open, because it is used or has ended."""
        if self.idle_timer is not None:
            self.idle_timer.cancel()
            self.idle_timer = None
