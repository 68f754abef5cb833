"""A faulty network between the workers of a soak and their scheduler: relays which hold all bytes, or cut connections.

A worker that uses a relay's address in place of its scheduler's is *partitioned* while the relay holds: both continue,
but receive nothing from each other, as with an unplugged cable. TCP loses no data meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from urllib.parse import urlsplit

#: Maximum size of one read, bytes.
CHUNK_NBYTES = 2**16
#: Timeout for starting and ending a relay, seconds.
ANSWER_SECONDS = 30


class Relay:
    """Forward connections from its own port. All methods but ``address`` run in the loop of its ``Net``."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._open = asyncio.Event()
        self._open.set()
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._server: asyncio.Server | None = None
        self.address = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold(self) -> None:
        """Hold all bytes in both directions."""
        self._open.clear()

    def heal(self) -> None:
        """Deliver the bytes that were held, and forward again."""
        self._open.set()

    def cut(self) -> None:
        """Break the existing connections; accept new ones."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await self._open.wait()
            there, back = await asyncio.open_connection(*self._target)
            self._writers |= {writer: None, back: None}
            try:
                await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
            finally:
                for each in (writer, back):
                    self._writers.pop(each, None)
                    each.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_NBYTES):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        await self._open.wait()
        writer.close()


class Net(threading.Thread):
    """Relays in a thread with its own event loop; use it as a context manager."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="net")
        self._loop = asyncio.new_event_loop()
        self._relays: list[Relay] = []

    def run(self) -> None:
        self._loop.run_forever()

    def __enter__(self) -> Net:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for relay in self._relays:
            asyncio.run_coroutine_threadsafe(relay.close(), self._loop).result(ANSWER_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.join(ANSWER_SECONDS)

    def relay(self, address: str) -> Relay:
        """Return a new relay to an address (``tcp://host:port``)."""
        parts = urlsplit(address)
        relay = Relay(str(parts.hostname), int(parts.port or 0))
        asyncio.run_coroutine_threadsafe(relay.start(), self._loop).result(ANSWER_SECONDS)
        self._relays.append(relay)
        return relay

    def do(self, relay: Relay, what: str) -> None:
        """Call ``hold``, ``heal`` or ``cut`` of a relay."""
        self._loop.call_soon_threadsafe(getattr(relay, what))
