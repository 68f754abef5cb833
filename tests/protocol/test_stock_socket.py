"""A stock comm reads from a socket what ``pack_frames`` writes, and the other way round."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from distributed.comm import connect
from distributed.protocol.serialize import Serialized, to_serialize
from paceline.protocol.connection import Connection, HandshakeDone, Value
from paceline.protocol.framing import LARGE_FRAME_NBYTES, FrameReader, pack_frames
from paceline.protocol.payload import Payload


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A scheduler's end that echoes what it receives."""
    connection, frame_reader = Connection("listener"), FrameReader()
    for piece in pack_frames(connection.start()):
        writer.write(piece)
    while data := await reader.read(100_000):
        for frames in frame_reader.feed(data):
            for event in connection.receive_frames(frames):
                if type(event) is HandshakeDone:
                    continue
                assert type(event) is Value
                for piece in pack_frames(connection.send(event.value)):
                    writer.write(piece)
    writer.close()


async def there_and_back(values: list[Any]) -> list[Any]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    comm = await connect(f"tcp://{host}:{port}", deserialize=True)
    answers = []
    for value in values:
        await comm.write(value)
        answers.append(await asyncio.wait_for(comm.read(), 20))
    await comm.close()
    server.close()
    return answers


async def test_values_of_all_shapes() -> None:
    sizes = [0, 1, LARGE_FRAME_NBYTES - 1, LARGE_FRAME_NBYTES, 3_000_000]
    arrays = [np.arange(size, dtype="u1") for size in sizes]
    values = [
        {"a": (1, {2}), "k": {("x", 1): b"y"}},
        {"empty last": to_serialize(arrays[0])},
        *({"one": to_serialize(array)} for array in arrays),
        {"many": [to_serialize(array) for array in arrays * 3]},
        {"nested": to_serialize({"deep": arrays, "more": ["x"] * 3})},
        ["x"] * 1000,
    ]
    answers = await there_and_back(values)
    assert answers[0] == values[0]
    assert answers[1]["empty last"].size == 0
    for array, answer in zip(arrays, answers[2:7], strict=True):
        assert (answer["one"] == array).all()
    assert all((a == b).all() for a, b in zip(answers[7]["many"], arrays * 3, strict=True))
    assert all((a == b).all() for a, b in zip(answers[8]["nested"]["deep"], arrays, strict=True))
    assert answers[9] == tuple(values[9])


async def test_empty_frames_at_any_position() -> None:
    """Includes the end of the block that a reader receives at once."""
    for lengths in (
        [0],
        [0, 0],
        [5, 0],
        [0, LARGE_FRAME_NBYTES, 0],
        [LARGE_FRAME_NBYTES, 0, 0, 7, 0],
    ):
        frames = [bytes(n) for n in lengths]
        closed = Serialized({"serializer": "mine"}, frames)
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        comm = await connect(f"tcp://{host}:{port}", deserialize=False)
        await comm.write({"v": closed})
        answer = await asyncio.wait_for(comm.read(), 20)
        assert list(map(bytes, answer["v"].frames)) == frames
        await comm.close()
        server.close()


def test_payload_keeps_its_memory() -> None:
    """Large frames are not copied when they are written again."""
    large = bytes(LARGE_FRAME_NBYTES * 4)
    payload = Payload("serialized", b"\x81\xaenum-sub-frames\x01", (large,))
    connection = Connection("listener")
    connection.receive_frames(Connection("connector").start())
    pieces = pack_frames(connection.send({"v": payload}))
    assert any(piece is large for piece in pieces)
    (frames,) = FrameReader().feed(b"".join(pieces))
    (event,) = connection.receive_frames(frames)
    assert event == Value({"v": payload})
    view = event.value["v"].frames[0]
    assert any(
        getattr(piece, "obj", None) is view.obj
        for piece in pack_frames(connection.send(event.value))
    )
