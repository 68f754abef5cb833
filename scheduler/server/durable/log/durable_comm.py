"""The comm of ``tcp://`` in a durable scheduler: what it reads and writes is in the log.

All data is read into the buffer of the transport, which the keeper shares. So what the process has
read last is there, even if it is killed before it is in the log.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from paceline.protocol.compression import Buffer
from paceline.protocol.framing import pack_frames
from paceline.scheduler.server.comm.sockets import Bind, bind_sockets
from paceline.scheduler.server.comm.tcp import JOIN_MAX_NBYTES, TcpBackend, TcpComm
from paceline.scheduler.server.comm.transport import Transport
from paceline.scheduler.server.durable.recovery.recorded_connection import (
    NOT_KEPT,
    RecordedConnection,
)

if TYPE_CHECKING:
    from paceline.protocol.connection import Connection
    from paceline.scheduler.server.durable.channel.keeper_channel import KeeperChannel

    from .recorder import LogRecorder

#: Larger replies are not logged. If one is cut off, its connection is closed. All messages of
#: streams are logged.
LOGGED_MAX_NBYTES = 8 * 2**20
#: Time after which the memory of large output is released, if the socket has accepted it, seconds.
FORGET_SECONDS = 1.0


class DurableComm(TcpComm):
    """An accepted connection that is recorded.

    Args:
        known: what is known of a connection that a process before this one has accepted.

    Attributes:
        read_nbytes, written_nbytes: bytes so far.
        recent: what was written last, at least what the socket has not accepted.
    """

    def __init__(
        self,
        owner: Transport,
        recorder: LogRecorder,
        keeper: KeeperChannel,
        known: RecordedConnection | None = None,
    ) -> None:
        super().__init__(owner, outgoing=False)
        self._recorder = recorder
        self._keeper = keeper
        self._known = known
        self.read_nbytes = self.written_nbytes = 0
        self.recent: list[Buffer] = []
        if known is not None:
            self.number = known.number
            self.read_nbytes, self.written_nbytes = known.read, known.written
            self.facts = known.facts
            self.is_stream = bool(known.kind)
            self.has_replied = known.has_replied
            self._reader = known.reader
            self._out = [bytes(known.unsent)] if known.unsent else []
            self._out_nbytes = len(known.unsent)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._owner.scratch

    def begin(self) -> None:
        if self._known is None:
            self._recorder.opened(self.number, self.facts)
            super().begin()
            return
        self._known = None
        self._owner.comms.add(self)
        self.flush()
        if self._closing:
            self.close_when_written()

    def buffer_updated(self, nbytes: int) -> None:
        data = self._owner.scratch[:nbytes]
        self.read_nbytes += nbytes
        self._recorder.read(self.number, data)
        if not self._closing:
            previous = self._recorder.handling(self.number)
            self._process(self._reader.feed, data)
            self._recorder.handling(previous)

    def connection_lost(self, error: Exception | None) -> None:
        try:
            self._recorder.commit()  # what was handled precedes the end of the connection
            self._recorder.closed(self.number)
            self._keeper.release(self.number)
        finally:
            super().connection_lost(error)

    def collect(self, frames: Sequence[Buffer]) -> None:
        pieces = pack_frames(frames)
        nbytes = sum(map(len, pieces))
        if self.is_stream or nbytes <= LOGGED_MAX_NBYTES:
            data = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
            self._recorder.wrote(self.number, self.n_messages, data)
            pieces = [data]
        else:
            self._recorder.wrote_unlogged(self.number, nbytes)
        self.has_replied = self.written_nbytes > 0
        self.written_nbytes += nbytes
        self._out += pieces
        self._out_nbytes += nbytes

    def flush(self) -> None:
        self._recorder.commit()
        if self._transport is not None:
            self._remember_output()
        super().flush()

    def _remember_output(self) -> None:
        """Add what is about to be written to ``recent``."""
        self._forget_sent()
        if self.is_stream or self._out_nbytes <= LOGGED_MAX_NBYTES:
            self.recent += self._out
        else:
            self.recent.clear()
        if self._out_nbytes > JOIN_MAX_NBYTES:
            asyncio.get_running_loop().call_later(FORGET_SECONDS, self._forget_sent)

    def _forget_sent(self) -> None:
        if self._transport is None or not self._transport.get_write_buffer_size():
            self.recent.clear()

    def capture(self, connection: Connection) -> RecordedConnection:
        """Return what another process needs to continue the connection."""
        return RecordedConnection(
            self.number,
            self.facts,
            NOT_KEPT,
            connection,
            self._reader,
            read=self.read_nbytes,
            written=self.written_nbytes,
            is_admitted=True,
            has_replied=self.has_replied,
            unsent=bytearray(b"".join([*self.recent, *self._out])),
        )


class DurableBackend(TcpBackend):
    """Listens with ``tcp://``; connections that are accepted are recorded."""

    def __init__(self, recorder: LogRecorder, keeper: KeeperChannel) -> None:
        self._recorder = recorder
        self._keeper = keeper
        self._n_listeners: Counter[str] = Counter()

    def sockets(
        self, host: str, port: int, bind: Bind = bind_sockets, use: str = ""
    ) -> list[socket.socket]:
        """Return sockets for `host` and `port`: those that the keeper holds, or new ones of `bind`.

        `use` distinguishes listeners of other protocols.
        """
        name = f"{use}{host}:{port}"
        self._n_listeners[name] += 1
        if self._n_listeners[name] > 1:  # there are several with port 0
            name += f" {self._n_listeners[name]}"
        sockets = self._keeper.listening(name) or bind(host, port)
        self._keeper.listen(name, sockets)
        return sockets

    def new_comm(self, transport: Transport) -> DurableComm:
        return DurableComm(transport, self._recorder, self._keeper)

    def accept(
        self, transport: Transport, sock: socket.socket, number: int = 0
    ) -> Coroutine[Any, Any, None]:
        """Let the keeper hold an accepted socket, and return a coroutine that opens a comm on it.

        The keeper holds a socket with a `number` already.
        """
        comm = self.new_comm(transport)
        comm.number = number or self._keeper.keep(sock)
        return self._open_kept(comm, sock)

    async def _open_kept(self, comm: DurableComm, sock: socket.socket) -> None:
        if not await self.open(comm, sock):
            self._keeper.release(comm.number)
