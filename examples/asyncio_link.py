"""What the worker among the examples needs of sockets: a connection on asyncio, requests, and answers to them."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable

from paceline.protocol import messages as m
from paceline.protocol.connection import Connection, Request
from paceline.protocol.errors import ProtocolError
from paceline.protocol.framing import FrameReader, pack_frames
from worker_parts import failure

#: What talking to a peer raises when it is gone, or talks nonsense.
GONE = (OSError, EOFError, ProtocolError)


class Link:
    """A connection, and the socket that it has no idea of."""

    def __init__(self, reader, writer, connection: Connection) -> None:
        self.reader, self.writer, self.connection = reader, writer, connection
        self.bytes, self.ready = FrameReader(), deque()
        self.write(connection.start())

    @classmethod
    async def dial(cls, address: str) -> "Link":
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        link = cls(*await asyncio.open_connection(host, int(port)), Connection("connector"))
        await link.hear()  # the handshake
        return link

    def write(self, frames) -> None:
        self.writer.writelines(pack_frames(frames))

    def say(self, value) -> None:
        self.write(self.connection.send(value))

    async def hear(self):
        """The next event. What a message means depends on the phase: it is read no sooner than asked for."""
        while not self.ready:
            data = await self.reader.read(2**18)
            if not data:
                raise EOFError("the connection has ended")
            self.ready.extend(self.bytes.feed(data))
        (event,) = self.connection.receive_frames(self.ready.popleft())
        return event

    async def messages(self):
        """Those of a stream, one by one, to its end."""
        while self.connection.phase != "closed":
            batch = await self.hear()
            for part in (batch.messages, *(batch.more or ())):
                for message in part:
                    yield message


class Asker:
    """Requests to other peers: one connection to each, and one request at a time on it."""

    def __init__(self) -> None:
        self.links, self.locks = {}, defaultdict(asyncio.Lock)

    async def ask(self, address: str, request: m.Message):
        async with self.locks[address]:
            link = self.links.pop(address, None) or await Link.dial(address)
            link.say(request)
            reply = (await link.hear()).value
            if isinstance(request, m.GetData) and reply["status"] == "OK":
                link.say("OK")  # received: the other worker counts the transfers that are under way
            self.links[address] = link
            return reply


async def serve(reader, writer, answer: Callable[[m.Message, int], Awaitable]) -> None:
    """A connection that somebody opened: a handshake, then requests, to each a reply (even to those that fail)."""
    link = Link(reader, writer, Connection("listener", serves="worker_rpc"))
    try:
        while True:
            event = await link.hear()
            if not isinstance(event, Request):
                continue  # the handshake, and the "OK" after data was received
            try:
                reply = await answer(event.message, link.connection.agreement.pickle_protocol)
            except Exception as error:
                reply = {"status": "uncaught-error", **failure(error)}
            if event.reply:
                link.say(reply)
                await writer.drain()
            if event.close or isinstance(event.message, m.CloseRequest):
                break
    except (*GONE, asyncio.CancelledError):  # it is gone, or we are to end
        pass
    writer.close()
