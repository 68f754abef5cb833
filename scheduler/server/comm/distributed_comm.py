"""Comms of distributed: ``inproc://``, and schemes that other packages register."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from paceline.protocol.compression import Buffer
from paceline.workers_compat import foreign_comm
from paceline.workers_compat.security.tls_config import Tls

from .async_comm import AsyncComm
from .sockets import PeerFacts
from .transport import Comm, Listener, Transport


class DistributedComm(AsyncComm):
    """A comm of distributed."""

    def __init__(self, owner: Transport, comm: Any, scheme: str, outgoing: bool) -> None:
        facts = PeerFacts(
            peer_address=_with_scheme(comm.peer_address, scheme),
            local_address=_with_scheme(comm.local_address, scheme),
            outgoing=outgoing,
        )
        super().__init__(owner, facts)
        self._comm = comm
        self._scheme = scheme

    async def send(self, frames: Sequence[Buffer]) -> None:
        await self._comm.write(foreign_comm.to_message(frames, self._scheme))

    def end(self) -> None:
        self.run_task(self._close_comm())

    async def _close_comm(self) -> None:
        try:
            await self._comm.close()
        finally:
            self.lost("closed")

    def close_now(self) -> None:
        self._comm.abort()

    async def read(self) -> None:
        """Process received messages until the comm is closed."""
        reason = "closed by peer"
        try:
            while not self._gone:
                await self.may_read()
                self.message_received(foreign_comm.to_frames(await self._comm.read(), self._scheme))
        except (OSError, EOFError) as error:
            reason = str(error) or reason
        except Exception as error:
            self.drop(f"{type(error).__name__}: {error}")
        self.lost(reason)


class DistributedBackend:
    """Listens and connects with any scheme that distributed knows."""

    def __init__(self, scheme: str, tls: Tls) -> None:
        self._scheme = scheme
        self._tls = tls

    async def listen(self, transport: Transport, host: str, port: int) -> Listener:
        security = self._tls.security
        arguments = security.get_listen_args("scheduler") if security is not None else None

        async def handle(comm: Any) -> None:
            comm = DistributedComm(transport, comm, self._scheme, outgoing=False)
            transport.connection_made(comm)
            await comm.read()

        listener = foreign_comm.listener(self._scheme, host, handle, arguments)
        await listener.start()
        return DistributedListener(listener, self._scheme)

    async def connect(self, transport: Transport, host: str, port: int) -> Comm:
        security = self._tls.security
        arguments = security.get_connection_args("scheduler") if security is not None else None
        comm = await foreign_comm.connect(self._scheme, host, arguments)
        comm = DistributedComm(transport, comm, self._scheme, outgoing=True)
        transport.connection_made(comm)
        comm.run_task(comm.read())
        return comm


class DistributedListener:
    """A listener of distributed."""

    def __init__(self, listener: Any, scheme: str) -> None:
        self._listener = listener
        self._stopping: asyncio.Future[Any] | None = None
        self._scheme = scheme

    @property
    def listen_address(self) -> str:
        return _with_scheme(self._listener.listen_address, self._scheme)

    @property
    def contact_address(self) -> str:
        return _with_scheme(self._listener.contact_address, self._scheme)

    def close(self) -> None:
        stopping = self._listener.stop()
        if inspect.isawaitable(stopping):
            self._stopping = asyncio.ensure_future(stopping)


def _with_scheme(address: str, scheme: str) -> str:
    return address if "://" in address else f"{scheme}://{address}"
