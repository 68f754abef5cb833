"""Network code of `worker_on_protocol.py`: an asyncio connection, an RPC client and a server."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable

from paceline.protocol import messages as m
from paceline.protocol.connection import Connection, RequestReceived
from paceline.protocol.errors import ProtocolError
from paceline.protocol.framing import FrameReader, pack_frames
from worker_parts import error_fields

#: Errors of a connection that is lost or that received invalid data.
CONNECTION_ERRORS = (OSError, EOFError, ProtocolError)


class Comm:
    """A socket and the `Connection` that interprets its data."""

    def __init__(self, reader, writer, connection: Connection) -> None:
        self.reader, self.writer, self.connection = reader, writer, connection
        self.bytes, self.ready = FrameReader(), deque()
        self.write(connection.start())

    @classmethod
    async def connect(cls, address: str) -> "Comm":
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        comm = cls(*await asyncio.open_connection(host, int(port)), Connection("connector"))
        await comm.receive()  # the handshake
        return comm

    def write(self, frames) -> None:
        self.writer.writelines(pack_frames(frames))

    def send(self, value) -> None:
        self.write(self.connection.send(value))

    async def receive(self):
        """Return the next event. Decode one message at a time: the phase may change."""
        while not self.ready:
            data = await self.reader.read(2**18)
            if not data:
                raise EOFError("the connection has ended")
            self.ready.extend(self.bytes.feed(data))
        (event,) = self.connection.receive_frames(self.ready.popleft())
        return event

    async def messages(self):
        """Yield the messages of a stream until it ends."""
        while self.connection.phase != "closed":
            batch = await self.receive()
            for part in (batch.messages, *(batch.more or ())):
                for message in part:
                    yield message


class RpcClient:
    """Sends requests to peers, over one connection per peer and one request at a time."""

    def __init__(self) -> None:
        self.comms, self.locks = {}, defaultdict(asyncio.Lock)

    async def request(self, address: str, request: m.Message):
        async with self.locks[address]:
            comm = self.comms.pop(address, None) or await Comm.connect(address)
            comm.send(request)
            reply = (await comm.receive()).value
            if isinstance(request, m.GetData) and reply["status"] == "OK":
                comm.send("OK")  # the other worker counts its transfers in progress
            self.comms[address] = comm
            return reply


async def serve(reader, writer, answer: Callable[[m.Message, int], Awaitable]) -> None:
    """Serve an incoming connection: a handshake, then requests. Errors are sent as replies."""
    comm = Comm(reader, writer, Connection("listener", serves="worker_rpc"))
    try:
        while True:
            event = await comm.receive()
            if not isinstance(event, RequestReceived):
                continue  # the handshake, or the "OK" after data was received
            try:
                reply = await answer(event.message, comm.connection.agreement.pickle_protocol)
            except Exception as error:
                reply = {"status": "uncaught-error", **error_fields(error)}
            if event.reply:
                comm.send(reply)
                await writer.drain()
            if event.close or isinstance(event.message, m.CloseRequest):
                break
    except (*CONNECTION_ERRORS, asyncio.CancelledError):  # it is lost, or this worker closes
        pass
    writer.close()
