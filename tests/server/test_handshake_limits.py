"""Messages are small until a peer's handshake was accepted, with every transport."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import dask.config
import pytest
from distributed.security import Security
from paceline.protocol.connection import Connection
from paceline.protocol.framing import HANDSHAKE_LIMITS, pack_frames, pack_prelude
from paceline.scheduler.server.scheduler import Scheduler
from tornado.websocket import websocket_connect

from tests.support.certificates import Authority, keywords

TOO_MUCH = HANDSHAKE_LIMITS.max_message_nbytes + 1


@pytest.mark.parametrize("protocol", ["tcp", "tls"])
async def test_large_length_before_the_handshake_is_refused(
    protocol: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    security = Security(**keywords(authority, authority.issue("n")), require_encryption=False)
    with caplog.at_level(logging.WARNING, "distributed.scheduler"):
        async with Scheduler(
            protocol=protocol, security=security, host="127.0.0.1", dashboard_address=":0"
        ) as scheduler:
            context = None
            if protocol == "tls":
                context = security.get_connection_args("worker")["ssl_context"]
            reader, writer = await asyncio.open_connection("127.0.0.1", scheduler.port, ssl=context)
            writer.write(pack_prelude([TOO_MUCH]) + b"\x81")
            async with asyncio.timeout(20):
                await _until_closed(reader)
            writer.close()
    assert f"the limit is {HANDSHAKE_LIMITS.max_message_nbytes}" in caplog.text


async def _until_closed(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(2**16):
            pass
    except (ConnectionError, ssl.SSLError):
        pass


async def test_a_large_web_socket_message_before_the_handshake() -> None:
    async with Scheduler(protocol="ws", host="127.0.0.1", dashboard_address=":0") as scheduler:
        socket = await websocket_connect(scheduler.address)
        await socket.write_message((1).to_bytes(8, "little"), binary=True)
        await socket.write_message(bytes(TOO_MUCH), binary=True)
        async with asyncio.timeout(20):
            while await socket.read_message() is not None:
                pass
        assert not scheduler.server.transport.comms


async def test_request_sent_together_with_the_handshake() -> None:
    async with Scheduler(host="127.0.0.1", dashboard_address=":0") as scheduler:
        connection = Connection("connector")
        request = connection.codec.encode({"op": "log_event", "topic": "t", "msg": "x" * 200_000})
        _reader, writer = await asyncio.open_connection("127.0.0.1", scheduler.port)
        for message in (connection.start(), request, request):
            writer.write(b"".join(pack_frames(message)))
        state: Any = scheduler.server.state
        async with asyncio.timeout(20):
            while "t" not in state.events.topics or state.events.topics["t"].count < 2:
                await asyncio.sleep(0.01)
        writer.close()


async def test_peer_without_secret_cannot_send_large_messages() -> None:
    with dask.config.set({"paceline.security.secret": "s" * 32}):
        async with Scheduler(host="127.0.0.1", dashboard_address=":0") as scheduler:
            connection = Connection("connector")
            reader, writer = await asyncio.open_connection("127.0.0.1", scheduler.port)
            writer.write(b"".join(pack_frames(connection.start())))
            writer.write(pack_prelude([8, 2**35]) + b"\x80" * 8)
            async with asyncio.timeout(20):
                await _until_closed(reader)
            assert not scheduler.server.transport.comms
            writer.close()
