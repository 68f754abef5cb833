"""Any input raises only ``RemoteProtocolError``. A short run; set ``ROUNDS=1000000`` for a long one."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest
from paceline.protocol.connection import Connection
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import FrameReader, pack_frames

ROUNDS = int(os.environ.get("ROUNDS", "3000"))
CAPTURES = Path(__file__).parent / "captures"
ROOT = Path(__file__).parents[2]
#: Bytes that change the meaning of msgpack or of a prelude.
TELLING = b"\x00\x01\x80\x81\x90\x91\xa0\xa1\xc0\xc1\xc4\xc7\xd9\xdc\xdd\xde\xdf\xff"


def corpus() -> list[list[bytes]]:
    reader = FrameReader()
    return [
        [bytes(frame) for frame in frames]
        for path in sorted(CAPTURES.glob("*.bin"))
        for frames in reader.feed(path.read_bytes())
    ]


def mutated(data: bytes, random: Random) -> bytes:
    """Return the bytes with a few changes."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5])):
        position = random.randrange(len(changed) + 1)
        match random.randrange(4):
            case 0:
                changed[position : position + 1] = bytes([random.choice(TELLING)])
            case 1:
                del changed[position : position + random.choice([1, 2, 8, 100])]
            case 2:
                changed[position:position] = random.randbytes(random.choice([1, 4, 9]))
            case 3:
                start = random.randrange(len(changed) + 1)
                changed[position:position] = changed[start : start + random.choice([1, 8, 40])]
    return bytes(changed)


def ends(phase: str) -> Connection:
    """Return a connection in a random phase."""
    connection = Connection("connector" if phase.endswith("<") else "listener")
    hello = connection.start()
    if phase != "handshake":
        connection.receive_frames(hello)
    if phase.startswith(("worker", "client")):
        connection.become_stream(phase[:6])  # type: ignore[arg-type]
    return connection


@pytest.mark.parametrize(
    "phase", ["handshake", "rpc", "rpc<", "worker", "worker<", "client", "client<"]
)
def test_any_frames(phase: str) -> None:
    random = Random(phase)
    messages = corpus()
    for _ in range(ROUNDS):
        frames: list[Any] = list(random.choice(messages))
        which = random.randrange(len(frames)) if random.random() < 0.3 else 0
        frames[which] = mutated(frames[which], random)
        if random.random() < 0.1:
            del frames[random.randrange(len(frames))]
        with suppress(RemoteProtocolError):
            ends(phase).receive_frames(frames)


@pytest.mark.parametrize("phase", ["rpc", "worker", "client"])
def test_any_value(phase: str) -> None:
    """Messages whose fields are swapped for the values of others."""
    random = Random(phase)
    opened = [msgpack.unpackb(f[0], strict_map_key=False, use_list=False) for f in corpus()]
    parts = [
        p for v in opened for p in (v if isinstance(v, tuple) else (v,)) if isinstance(p, dict)
    ]
    values = [x for part in parts for x in part.values()]
    strange = [
        2**64 - 1,
        -(2**63),
        float("nan"),
        float("inf"),
        {(): ()},
        {"__Set__": 5, "as-list": 5},
    ]
    strange += [
        {"__Set__": True, "as-list": ({},)},
        {"__Enum__": True},
        {"__Pickled__": (1,)},
        {"op": {}},
    ]
    for _ in range(ROUNDS):
        part = dict(random.choice(parts))
        for name in random.sample(list(part), k=min(len(part), random.choice([1, 1, 2]))):
            part[name] = random.choice(strange if random.random() < 0.3 else values)
        value: Any = part if phase == "rpc" else [part, {"op": "keep-alive"}]
        connection = ends(phase)
        try:
            (event,) = connection.receive_frames([msgpack.packb(value)])
        except RemoteProtocolError:
            assert phase == "rpc"  # a placeholder without a frame
            continue
        if phase == "worker":  # one invalid message affects no other
            assert type(event.messages[-1]).__name__ in ("KeepAlive", "CloseStream")


def test_any_bytes() -> None:
    random = Random(7)
    wire = [b"".join(pack_frames(frames)) for frames in corpus() if sum(map(len, frames)) < 3000]
    for _ in range(ROUNDS):
        data = mutated(random.choice(wire) + random.choice(wire), random)
        reader = FrameReader()
        try:
            for i in range(0, len(data), 501):
                reader.feed(data[i : i + 501])
        except RemoteProtocolError:
            with pytest.raises(RemoteProtocolError):
                reader.feed(b"")


def test_fuzzer_has_no_findings() -> None:
    """A short run of ``make fuzz``."""
    command = [
        sys.executable,
        *("-m", "tests.protocol.fuzz"),
        "--own",
        "--inputs",
        str(ROUNDS),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert f"{ROUNDS} inputs in" in done.stdout
