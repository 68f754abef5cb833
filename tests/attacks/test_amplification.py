"""Attacks by messages that are short on the wire but long, or slow, to decode.

The tests do not depend on how the scheduler limits decoding.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import msgpack
import pytest
from paceline.protocol.framing import pack_frames
from paceline.protocol.handshake import local_offer
from paceline.protocol.payload import serialized_payload

from tests.support.attackers import Attacker, answer_seconds, peak_nbytes, scheduler_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MB = 2**20
MEMORY_NBYTES = 300 * MB
#: Multiples of the modulus of Python's hash of integers: all have the hash 0.
ZEROS = [k * (2**61 - 1) for k in range(8)]


def test_placeholders_that_share_frames(tmp_path: Path) -> None:
    """8 MB of placeholders would become 4 GB of references, and exabytes when they are passed on."""
    n_placeholders, n_frames = 400_000, 1_500
    header = serialized_payload({"serializer": "pickle"}, [b""] * n_frames).header
    request = {"op": "scatter", "data": [{"__Serialized__": 1}] * n_placeholders}
    frames = [msgpack.packb(request), header, *[b"x"] * n_frames]
    with scheduler_process(tmp_path) as (process, address), Attacker(address) as attacker:
        before = peak_nbytes(process.pid)
        attacker.send_frames(frames)
        assert attacker.is_closed()
        assert peak_nbytes(process.pid) - before < MEMORY_NBYTES
        assert answer_seconds(address, lambda: None) < 2


@pytest.mark.parametrize("size", [16_000, 200_000])
def test_colliding_keys_before_the_handshake(tmp_path: Path, size: int) -> None:
    keys = itertools.islice(itertools.product(ZEROS, repeat=5), 6_000)
    pairs = [msgpack.packb(key) + b"\0" for key in keys][: size // 40]
    offer = msgpack.packb({**local_offer(), "map": 0})
    frame = offer[:-1] + b"\xdf" + len(pairs).to_bytes(4, "big") + b"".join(pairs)
    sending = b"".join(pack_frames([frame]))
    with (
        scheduler_process(tmp_path) as (_, address),
        Attacker(address, greet=False) as attacker,
    ):
        assert answer_seconds(address, lambda: attacker.socket.sendall(sending)) < 2
        if size > 2**14:
            assert attacker.is_closed()
