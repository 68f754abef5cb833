"""Connections of our own to workers and nannies, kept for the next request.

One request is under way on a connection at a time. An address has a limit of connections, the pool one of all;
who finds none free waits. A connection that nobody used for a while is closed; one whose reply did not come
(error, cancellation, time out) is closed at once, as its next bytes would belong to the wrong request.

Must not know: what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.workers_compat import config
from paceline.workers_compat.errors import connection_lost
from paceline.workers_compat.shared_secret import LISTENER

from .addresses import parts
from .peers import HANDSHAKE_SECONDS, Peer, Silent
from .rpc.base import RemoteError

if TYPE_CHECKING:
    from paceline.protocol.framing import Allocator

    from .server import Server

#: Connections to one address: a flow seldom asks a worker for more at once.
CONNECTIONS_PER_ADDRESS_MAX = 8
#: Connections in all; each is an open file here and there.
CONNECTIONS_MAX = 4096
#: A connection that was not used for so long is closed, seconds.
IDLE_SECONDS = 60.0
#: How long connecting may take where the configuration says nothing (``distributed.comm.timeouts.connect``), seconds.
CONNECT_SECONDS = 30.0

Acknowledge = Callable[[Any], Any]


class Outgoing(Silent):
    """A connection that we dialled: its mode.

    Attributes:
        peer: the connection.
        broken: it cannot be used again.
        greeted: its handshake has come.
    """

    __slots__ = ("_future", "_idle_timer", "broken", "greeted", "peer")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.broken = False
        self.greeted = False
        self._future: asyncio.Future[Any] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    async def greeting(self) -> None:
        """Wait for its handshake, which may have come before anybody waited.

        Raises:
            OSError: the connection is gone.
        """
        if not self.greeted:
            await self.next_event()

    async def next_event(self) -> Any:
        """What comes next.

        Raises:
            OSError: the connection is gone.
        """
        if self.broken:
            raise connection_lost(self.peer.address, "it is closed")
        self._future = self.peer.server.loop.create_future()
        try:
            return await self._future
        finally:
            self._future = None

    def event(self, event: Any) -> None:
        first, self.greeted = not self.greeted, True
        if first and self.peer.server.secret is not None:
            refusal = self.peer.server.secret.refusal(event.remote, LISTENER)
            if refusal is not None:
                self.closed(refusal)
                self.peer.server.transport.drop(self.peer.number, refusal)
                return
        if self._future is not None and not self._future.done():
            self._future.set_result(event)
        elif not first:  # nobody asked
            self.abort("it said something unasked")

    def closed(self, reason: str) -> None:
        self.broken = True
        if self._future is not None and not self._future.done():
            self._future.set_exception(connection_lost(self.peer.address, reason))

    def abort(self, reason: str) -> None:
        """Never use it again."""
        self.broken = True
        self.peer.abort(reason)

    def rest(self, when_idle: Callable[[Outgoing], None]) -> None:
        """Nobody uses it; ``when_idle`` is called after a while."""
        self._idle_timer = self.peer.server.loop.call_later(IDLE_SECONDS, when_idle, self)

    def wake(self) -> None:
        """Somebody uses it."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


class _Address:
    """The connections to one address."""

    __slots__ = ("idle", "live", "slots", "users")

    def __init__(self) -> None:
        self.idle: list[Outgoing] = []
        self.live: list[Outgoing] = []
        self.slots = asyncio.Semaphore(CONNECTIONS_PER_ADDRESS_MAX)
        self.users = 0


class Pool:
    """All outgoing connections of a server.

    Attributes:
        connect_seconds: how long connecting may take.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        configured = config.seconds(config.get("distributed.comm.timeouts.connect"))
        self.connect_seconds: float = configured or CONNECT_SECONDS
        self._addresses: dict[str, _Address] = {}
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)

    async def call(
        self,
        address: str,
        request: Any,
        timeout: float | None = None,
        *,
        acknowledge: Acknowledge | None = None,
        allocate: Allocator | None = None,
        on_connection: Callable[[int], None] | None = None,
    ) -> Any:
        """One request and its reply, raw. See ``rpc.base.ServerPort.rpc_call``.

        Args:
            acknowledge: given the reply, what is to be written after it; None for nothing.
            allocate: where large frames of the reply are received to.
            on_connection: told the number of the connection before the request goes out.

        Raises:
            OSError, TimeoutError, RemoteError.
        """
        async with asyncio.timeout(timeout):
            place = self._addresses.setdefault(address, _Address())
            place.users += 1
            try:
                async with place.slots, self._slots:
                    return await self._call(
                        address, place, request, acknowledge, allocate, on_connection
                    )
            finally:
                place.users -= 1
                self._tidy(address, place)

    async def _call(
        self,
        address: str,
        place: _Address,
        request: Any,
        acknowledge: Acknowledge | None,
        allocate: Allocator | None,
        on_connection: Callable[[int], None] | None,
    ) -> Any:
        outgoing = await self._take(address, place)
        if on_connection is not None:
            on_connection(outgoing.peer.number)
        answered = False
        try:
            if allocate is not None:
                self._server.transport.receive_large_into(outgoing.peer.number, allocate)
            outgoing.peer.send(request)
            reply = (await outgoing.next_event()).value
            if acknowledge is not None:
                word = acknowledge(reply)
                if word is not None:
                    outgoing.peer.send(word)
            answered = True
        finally:
            if allocate is not None:
                self._server.transport.receive_large_into(outgoing.peer.number, None)
            self._give_back(place, outgoing, answered)
        if type(reply) is dict and reply.get("status") == "uncaught-error":
            raise RemoteError(address, self._server.op_name(request), reply)
        return reply

    def forget(self, address: str) -> None:
        """The peer is gone: its connections break, and calls under way fail."""
        place = self._addresses.get(address)
        if place is not None:
            for outgoing in list(place.live):
                outgoing.abort("the worker is gone")
                outgoing.closed("the worker is gone")

    def close(self) -> None:
        """Break all."""
        for address in list(self._addresses):
            self.forget(address)

    @property
    def counts(self) -> tuple[int, int]:
        """Connections open, and of those in use."""
        n_live = sum(len(p.live) for p in self._addresses.values())
        return n_live, n_live - sum(len(p.idle) for p in self._addresses.values())

    async def _take(self, address: str, place: _Address) -> Outgoing:
        while place.idle:
            outgoing = place.idle.pop()
            outgoing.wake()
            if not outgoing.broken:
                return outgoing
        try:
            async with asyncio.timeout(self.connect_seconds) as patience:
                outgoing = await self._connect(address)
        except TimeoutError:
            if not patience.expired():
                raise
            raise OSError(
                f"Timed out trying to connect to {address} after {self.connect_seconds:g} s"
            ) from None
        place.live.append(outgoing)
        return outgoing

    async def _connect(self, address: str) -> Outgoing:
        scheme, host, port = parts(address)
        number = await self._server.transport.dial(host, port, scheme)
        peer = self._server.peers.get(number)
        outgoing = peer.mode if peer is not None else None
        if not isinstance(outgoing, Outgoing):
            raise ConnectionError(f"{address} hung up at once")
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await outgoing.greeting()
        except BaseException:
            outgoing.abort("no handshake")
            raise
        return outgoing

    def _give_back(self, place: _Address, outgoing: Outgoing, answered: bool) -> None:
        if not answered and not outgoing.broken:
            outgoing.abort("its reply is no longer wanted")
        if outgoing.broken:
            place.live.remove(outgoing)
        else:
            place.idle.append(outgoing)
            outgoing.rest(lambda idle: self._retire(place, idle))

    def _retire(self, place: _Address, outgoing: Outgoing) -> None:
        with contextlib.suppress(ValueError):
            place.idle.remove(outgoing)
            place.live.remove(outgoing)
        outgoing.abort("idle")
        for address, other in list(self._addresses.items()):
            if other is place:
                self._tidy(address, place)

    def _tidy(self, address: str, place: _Address) -> None:
        if place.users:
            return
        for outgoing in [o for o in place.idle if o.broken]:
            outgoing.wake()
            place.idle.remove(outgoing)
            place.live.remove(outgoing)
        if not place.live and self._addresses.get(address) is place:
            del self._addresses[address]
