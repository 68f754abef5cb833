"""The pool of connections that the scheduler opens to workers and nannies.

A connection carries one request at a time. The number of connections in use is limited in total, as
in stock; further requests wait. Requests to one address share a few connections, which are kept for
a while. A request that finds them in use for long opens another one, because a request can last as
long as a function that a client runs in the worker. A connection whose reply did not arrive (error,
cancellation, timeout) is closed immediately, because its next bytes would be taken for the reply to
another request.

Connecting is retried until ``distributed.comm.timeouts.connect``, as in stock, unless the worker is
removed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

from paceline.scheduler.server.comm.addresses import parts
from paceline.scheduler.server.comm.errors import FatalConnectError
from paceline.scheduler.server.server_api import RemoteError, op_name
from paceline.workers_compat.config import config
from paceline.workers_compat.errors import connection_lost
from paceline.workers_compat.security.http_connections import affordable

from .outgoing_rpc import OutgoingRpc
from .peer import HANDSHAKE_SECONDS, Peer

if TYPE_CHECKING:
    from paceline.protocol.framing import Allocator
    from paceline.scheduler.server.comm.transport import Comm
    from paceline.scheduler.server.server_api import Acknowledge, ServerApi

#: Connections in use, but at most the limit of open files divided by ``DESCRIPTORS_DIVISOR``.
CONNECTIONS_MAX = 2**16
#: See ``CONNECTIONS_MAX``. As in stock.
DESCRIPTORS_DIVISOR = 2
#: Connections to one address that requests share, and that are kept unused.
SHARED_PER_ADDRESS = 8
#: Time for which a request waits for one of them, seconds.
SHARED_WAIT_SECONDS = 0.1
#: An unused connection is closed after this time, seconds.
IDLE_SECONDS = 60.0
#: Default of ``distributed.comm.timeouts.connect``, seconds.
CONNECT_SECONDS = 30.0
#: Longest pause before the second attempt to connect, seconds. It doubles with each attempt; the
#: pause is random.
FIRST_PAUSE_SECONDS = 0.01
#: Longest pause between two attempts to connect, seconds.
PAUSE_SECONDS_MAX = 1.0
#: Fraction of the timeout that the first attempt may take, because a single packet may have been
#: lost.
FIRST_ATTEMPT_FRACTION = 0.2

logger = logging.getLogger("distributed.scheduler")


class _Address:
    """The connections to one address.

    Attributes:
        connecting: time limits of the current attempts to connect.
        removed: why the peer was removed; None if it was not.
        timed_out_at: event loop time at which connecting last timed out.
        users: number of calls that use or wait for a connection.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.connecting: set[asyncio.Timeout] = set()
        self.removed: str | None = None
        self.timed_out_at = float("-inf")
        self.idle: list[OutgoingRpc] = []
        self.live: set[OutgoingRpc] = set()
        self.shared = asyncio.Semaphore(SHARED_PER_ADDRESS)
        self.users = 0

    async def take_shared(self) -> bool:
        """Wait for one of the shared connections, but not for long. Return whether one is free."""
        try:
            async with asyncio.timeout(SHARED_WAIT_SECONDS):
                return await self.shared.acquire()
        except TimeoutError:
            return False


class Pool:
    """All outgoing connections; ``connect_seconds`` limits all attempts to connect together."""

    def __init__(self, server: ServerApi) -> None:
        self._server = server
        configured = config.seconds(config.get("distributed.comm.timeouts.connect"))
        self.connect_seconds: float = configured or CONNECT_SECONDS
        self._addresses: dict[str, _Address] = {}
        self._slots = asyncio.Semaphore(affordable(CONNECTIONS_MAX, DESCRIPTORS_DIVISOR))

    async def call(
        self,
        address: str,
        request: Any,
        timeout: float | None = None,
        *,
        acknowledge: Acknowledge | None = None,
        allocate: Allocator | None = None,
    ) -> Any:
        """See ``ServerApi.rpc_call``."""
        async with asyncio.timeout(timeout):
            entry = self._addresses.setdefault(address, _Address(address))
            entry.users += 1
            since = self._server.loop.time()
            is_shared = False
            try:
                is_shared = await entry.take_shared()
                async with self._slots:
                    if entry.removed is not None:
                        raise connection_lost(address, entry.removed)
                    if entry.timed_out_at > since:
                        raise self._timed_out(address)
                    return await self._call(entry, request, acknowledge, allocate)
            finally:
                if is_shared:
                    entry.shared.release()
                entry.users -= 1
                self._discard_unused(entry)

    async def _call(
        self,
        entry: _Address,
        request: Any,
        acknowledge: Acknowledge | None,
        allocate: Allocator | None,
    ) -> Any:
        rpc = await self._acquire(entry)
        answered = False
        try:
            if allocate is not None:
                rpc.peer.comm.receive_large_into(allocate)
            rpc.peer.send(request)
            reply = (await rpc.next_event()).value
            if acknowledge is not None:
                acknowledgement = acknowledge(reply)
                if acknowledgement is not None:
                    rpc.peer.send(acknowledgement)
            answered = True
        finally:
            if allocate is not None:
                rpc.peer.comm.receive_large_into(None)
            self._release(entry, rpc, answered)
        if type(reply) is dict and reply.get("status") == "uncaught-error":
            raise RemoteError(entry.address, op_name(request), reply)
        return reply

    def remove(self, address: str) -> None:
        """Close the connections to a removed peer. Calls and attempts to connect fail."""
        entry = self._addresses.pop(address, None)
        if entry is None:
            return
        entry.removed = "the worker is gone"
        for rpc in list(entry.live):
            rpc.abort(entry.removed)
            rpc.closed(entry.removed)
        for attempt in entry.connecting:
            if not attempt.expired():
                attempt.reschedule(self._server.loop.time())

    def close(self) -> None:
        """Close all connections."""
        for address in list(self._addresses):
            self.remove(address)

    @property
    def counts(self) -> tuple[int, int]:
        """The number of open connections, and of those in use."""
        n_live = sum(len(entry.live) for entry in self._addresses.values())
        n_idle = sum(len(entry.idle) for entry in self._addresses.values())
        return n_live, n_live - n_idle

    async def _acquire(self, entry: _Address) -> OutgoingRpc:
        while entry.idle:
            rpc = entry.idle.pop()
            rpc.stop_idle_timer()
            if not rpc.broken:
                return rpc
        address = entry.address
        try:
            async with asyncio.timeout(self.connect_seconds) as limit:
                entry.connecting.add(limit)
                rpc = await self._connect(address)
        except TimeoutError as error:
            if entry.removed is not None:
                raise connection_lost(address, entry.removed) from None
            if not limit.expired():
                raise
            entry.timed_out_at = self._server.loop.time()
            raise self._timed_out(address) from error
        finally:
            entry.connecting.discard(limit)
        if not rpc.broken:
            entry.live.add(rpc)
            rpc.ended = lambda rpc: self._ended(entry, rpc)
        return rpc

    def _timed_out(self, address: str) -> OSError:
        return OSError(f"Timed out trying to connect to {address} after {self.connect_seconds:g} s")

    async def _connect(self, address: str) -> OutgoingRpc:
        peer = (await self._dial(address)).events
        if not isinstance(peer, Peer):
            raise connection_lost(address, "it is closed")
        rpc = peer.handler
        assert isinstance(rpc, OutgoingRpc)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                if not rpc.has_handshake:
                    await rpc.next_event()
        except BaseException:
            rpc.abort("no handshake")
            raise
        return rpc

    async def _dial(self, address: str) -> Comm:
        """Return a new connection. Retry until the caller's time limit ends it."""
        limit: float | None = self.connect_seconds * FIRST_ATTEMPT_FRACTION
        pause_max = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with asyncio.timeout(limit):
                    return await self._server.transport.connect(*parts(address))
            except FatalConnectError:
                raise
            except OSError as error:  # a TimeoutError too
                logger.debug("Cannot connect to %s, trying again: %s", address, error)
            await asyncio.sleep(random.uniform(0, pause_max))
            pause_max = min(2 * pause_max, PAUSE_SECONDS_MAX)
            limit = None

    def _release(self, entry: _Address, rpc: OutgoingRpc, answered: bool) -> None:
        if rpc.broken:
            return
        if not answered:
            rpc.abort("its reply is no longer wanted")
            return
        if len(entry.idle) >= SHARED_PER_ADDRESS:
            rpc.close()
            return
        entry.idle.append(rpc)
        rpc.idle_timer = self._server.loop.call_later(IDLE_SECONDS, rpc.abort, "idle")

    def _ended(self, entry: _Address, rpc: OutgoingRpc) -> None:
        entry.live.discard(rpc)
        if rpc in entry.idle:
            entry.idle.remove(rpc)
        self._discard_unused(entry)

    def _discard_unused(self, entry: _Address) -> None:
        if not entry.users and not entry.live and self._addresses.get(entry.address) is entry:
            del self._addresses[entry.address]
