"""Peers for tests: the other end of a scheduler's connection, which sends the messages of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.connection import Connection
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.scheduler.server.scheduler import Scheduler

#: Time limit of a wait, seconds; far more than a loaded machine needs.
WAIT_SECONDS = 40.0


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition()` is true. Raise TimeoutError after ``WAIT_SECONDS``."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


class Peer:
    """The other end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._frames = FrameReader()
        self._ready: list[Any] = []
        self.writer = writer
        self.connection = Connection("connector")

    @classmethod
    async def connect(cls, scheduler: Scheduler) -> Peer:
        peer = cls(*await asyncio.open_connection("127.0.0.1", scheduler.port))
        peer.write(peer.connection.start())
        await peer.event()
        return peer

    def write(self, frames: Any) -> None:
        for buffer in pack_frames(frames):
            self.writer.write(buffer)

    def send(self, value: Any) -> None:
        self.write(self.connection.send(value))

    def send_raw(self, value: Any) -> None:
        self.write(self.connection.codec.encode(value))

    async def event(self) -> Any:
        async with asyncio.timeout(WAIT_SECONDS):
            while not self._ready:
                data = await self._reader.read(2**16)
                if not data:
                    raise EOFError
                for frames in self._frames.feed(data):
                    self._ready += self.connection.receive_frames(frames)
        return self._ready.pop(0)

    async def request(self, value: Any) -> Any:
        self.send_raw(value)
        return (await self.event()).value

    async def messages(self) -> list[Any]:
        return list((await self.event()).messages)

    async def ended(self) -> bool:
        try:
            while True:
                await self.event()
        except (EOFError, ConnectionError):
            return True


def registration(address: str = "tcp://127.0.0.1:1", name: str = "alice", **other: Any) -> Any:
    metrics = {"bandwidth": {"total": 1e8, "workers": {}, "types": {}}, "memory": 1}
    metrics |= {"spilled_bytes": {"memory": 0, "disk": 0}, "digests_total_since_heartbeat": {}}
    return {
        "op": "register-worker", "reply": False, "address": address, "status": "running",
        "nthreads": 2, "name": name, "now": 1.0, "resources": {}, "memory_limit": 0,
        "local_directory": "", "services": {}, "nanny": None, "pid": 1, "versions": {},
        "metrics": metrics, "extra": {}, "stimulus_id": "s", "server_id": "Worker-1", **other,
    }  # fmt: skip


async def worker(scheduler: Scheduler, **other: Any) -> Peer:
    peer = await Peer.connect(scheduler)
    reply = await peer.request(registration(**other))
    assert reply["status"] == "OK", reply
    peer.connection.become_stream("worker")
    return peer


async def client(scheduler: Scheduler, name: str = "client-1") -> Peer:
    peer = await Peer.connect(scheduler)
    peer.send_raw({"op": "register-client", "client": name, "reply": False, "versions": {}})
    peer.connection.become_stream("client")
    (start,) = await peer.messages()
    assert isinstance(start, m.StreamStart)
    return peer
