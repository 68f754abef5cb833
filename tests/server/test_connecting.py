"""Connections of the scheduler to workers: refused ones are retried until the time limit, as in stock."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import dask
import pytest
from paceline.protocol.connection import Connection, HandshakeDone
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.messages.worker_rpc import WorkerVersions
from paceline.scheduler.server.peers import pool as pool_module
from paceline.scheduler.server.requests.broadcast import broadcast
from paceline.scheduler.server.scheduler import Scheduler

from tests.support.fake_peers import worker

pytestmark = pytest.mark.timeout(60)


@contextlib.asynccontextmanager
async def scheduler_with(connect: str) -> AsyncIterator[Scheduler]:
    """Start a scheduler whose connect timeout is `connect`."""
    with dask.config.set({"distributed.comm.timeouts.connect": connect}):
        async with Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler:
            yield scheduler


@contextlib.contextmanager
def refusing_socket() -> Iterator[tuple[socket.socket, str]]:
    """Yield a bound socket that does not listen, and its address."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock, f"tcp://127.0.0.1:{sock.getsockname()[1]}"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request on a connection with 42."""
    connection, frames = Connection("listener"), FrameReader()

    def write(message: Any) -> None:
        writer.writelines([bytes(buffer) for buffer in pack_frames(message)])

    write(connection.start())
    while data := await reader.read(2**16):
        for got in frames.feed(data):
            for event in connection.receive_frames(got):
                if not isinstance(event, HandshakeDone):
                    write(connection.codec.encode(42))
    writer.close()


def count_attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each attempt to connect."""
    addresses: list[str] = []
    parts = pool_module.parts

    def counted(address: str) -> Any:
        addresses.append(address)
        return parts(address)

    monkeypatch.setattr(pool_module, "parts", counted)
    return addresses


async def test_connecting_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduler_with("30s") as scheduler:
        attempts = count_attempts(monkeypatch)
        with refusing_socket() as (sock, address):
            call = asyncio.create_task(scheduler.server.rpc_call(address, WorkerVersions()))
            while len(attempts) < 3:
                await asyncio.sleep(0.01)
            async with await asyncio.start_server(answer, sock=sock):
                assert await call == 42
                scheduler.server.pool.close()


async def test_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for requests that waited for one of the connections: none waits for twice the timeout."""
    n_connecting = 0
    connect = pool_module.Pool._connect

    async def counted(self: Any, address: str) -> Any:
        nonlocal n_connecting
        n_connecting += 1
        return await connect(self, address)

    monkeypatch.setattr(pool_module.Pool, "_connect", counted)
    monkeypatch.setattr(pool_module, "CONNECTIONS_MAX", 8)
    async with scheduler_with("300ms") as scheduler:
        with refusing_socket() as (_, address):
            calls = [scheduler.server.rpc_call(address, WorkerVersions()) for _ in range(30)]
            errors = await asyncio.gather(*calls, return_exceptions=True)
    text = f"Timed out trying to connect to {address} after 0.3 s"
    assert [(type(e), str(e)) for e in errors] == [(OSError, text)] * 30
    assert n_connecting == 8


async def test_a_removed_worker_ends_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduler_with("1h") as scheduler:
        attempts = count_attempts(monkeypatch)
        with refusing_socket() as (_, address):
            peer = await worker(scheduler, address=address)
            asked = [
                asyncio.create_task(
                    broadcast(scheduler.server, WorkerVersions(), on_error="return")
                )
                for _ in range(20)
            ]
            while len(attempts) < 3:
                await asyncio.sleep(0.01)
            peer.writer.close()
            async with asyncio.timeout(10):
                replies = await asyncio.gather(*asked)
    assert len(replies) == 20 and all(list(r) == [address] for r in replies)


async def test_permanent_errors_are_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduler_with("1h") as scheduler:
        attempts = count_attempts(monkeypatch)
        with pytest.raises(OSError, match="needs certificates"):
            await scheduler.server.rpc_call("tls://127.0.0.1:1", WorkerVersions())
        assert len(attempts) == 1
