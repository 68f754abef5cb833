"""Attacks on the wire: announced lengths without data, replies that are not read, workers that do not read.

The tests do not depend on how the scheduler limits memory.
"""

from __future__ import annotations

import contextlib
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from paceline.protocol import messages as m
from paceline.protocol.framing import pack_frames

from tests.support.attackers import (
    Attacker,
    answer_seconds,
    peak_nbytes,
    scheduler_process,
    unlinked_nbytes,
)
from tests.support.fake_peers import registration

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MB = 2**20
#: Maximum growth of the scheduler process during an attack.
MEMORY_NBYTES = 200 * MB
#: Size of the message that each attacker announces.
CLAIM_NBYTES = 8 * 2**30


def claim(nbytes: int = CLAIM_NBYTES) -> bytes:
    """Return the first 72 bytes of a message with one large frame."""
    lengths = (8, nbytes, 8, 8, 8, 8)
    return struct.pack("<8Q", 8 * 7 + 8, len(lengths), *lengths) + b"\x80" * 8


def test_large_length_before_the_handshake_closes_the_connection(tmp_path: Path) -> None:
    with scheduler_process(tmp_path) as (process, address):
        before = peak_nbytes(process.pid)
        with contextlib.ExitStack() as stack:
            attackers = [stack.enter_context(Attacker(address, greet=False)) for _ in range(3)]
            for attacker in attackers:
                attacker.socket.sendall(claim())
            assert all(attacker.is_closed() for attacker in attackers)
        assert unlinked_nbytes(process.pid) == 0
        assert peak_nbytes(process.pid) - before < MEMORY_NBYTES
        assert "the limit is" in process.output()


def test_large_length_after_the_handshake_uses_what_has_arrived(tmp_path: Path) -> None:
    with scheduler_process(tmp_path) as (process, address):
        before = peak_nbytes(process.pid)
        with contextlib.ExitStack() as stack:
            attackers = [stack.enter_context(Attacker(address)) for _ in range(3)]

            def attack() -> None:
                for attacker in attackers:
                    attacker.socket.sendall(claim())

            assert answer_seconds(address, attack) < 2
            assert unlinked_nbytes(process.pid) < 64 * MB * len(attackers)
        assert peak_nbytes(process.pid) - before < MEMORY_NBYTES


def test_length_beyond_the_disk_zeroes_no_memory(tmp_path: Path) -> None:
    """If the file system is too small, memory is used, which must not be zeroed before bytes arrive."""
    with scheduler_process(tmp_path) as (process, address), Attacker(address) as attacker:
        before = peak_nbytes(process.pid)
        assert answer_seconds(address, lambda: attacker.socket.sendall(claim(2**35 + 2**34))) < 2
        assert peak_nbytes(process.pid) - before < MEMORY_NBYTES


def test_unread_replies_stop_the_requests(tmp_path: Path) -> None:
    with scheduler_process(tmp_path) as (process, address), Attacker(address) as attacker:
        attacker.request({"op": "set_metadata", "keys": ["blob"], "value": "x" * MB})
        request = b"".join(
            pack_frames(attacker.connection.codec.encode({"op": "get_metadata", "keys": ["blob"]}))
        )
        before = peak_nbytes(process.pid)
        attacker.socket.settimeout(2)
        n_sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(9):  # an observer of connections knows 1024 requests without a reply
                attacker.socket.sendall(request * 100)
                n_sent += 100
        assert n_sent >= 100
        assert answer_seconds(address, lambda: None) < 2
        assert peak_nbytes(process.pid) - before < MEMORY_NBYTES
        attacker.socket.settimeout(60)
        for _ in range(n_sent):
            assert len(attacker.event().value) == MB


def fake_worker(address: str) -> Attacker:
    """Register a worker that does not read."""
    attacker = Attacker(address)
    reply = attacker.request(registration("tcp://127.0.0.1:1"))
    assert reply["status"] == "OK", reply
    return attacker


def test_a_worker_that_does_not_read_gets_its_tasks_later(tmp_path: Path) -> None:
    """Tasks share an array, which is copied into each message once it is encoded."""
    config = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "inf"}
    shared = np.ones(7_000)
    with (
        scheduler_process(tmp_path, config=config) as (process, address),
        fake_worker(address) as worker,
        Client(address) as client,
    ):
        before = peak_nbytes(process.pid)
        futures = client.map(lambda x, y: x, range(6_000), y=shared, pure=False)

        def processing() -> int:
            return sum(map(len, client.processing().values()))

        deadline = time.monotonic() + 60
        while processing() < 2_000 and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(1)
        assert 2_000 <= processing() < len(futures)
        assert peak_nbytes(process.pid) - before < 64 * MB
        worker.connection.become_stream("worker")
        keys = set()
        while len(keys) < len(futures):
            batch = worker.event()
            for part in (batch.messages, *(batch.more or ())):
                keys |= {x.key for x in part if type(x) is m.ComputeTask}


def test_messages_of_a_worker_that_does_not_read_are_not_read(tmp_path: Path) -> None:
    with scheduler_process(tmp_path) as (process, address), fake_worker(address) as worker:
        keys = [f"{i:06}" for i in range(10_000)]
        worker.connection.become_stream("worker")
        worker.send([{"op": "add-keys", "keys": keys, "stimulus_id": "s"}])
        question = {"op": "request-refresh-who-has", "keys": keys, "stimulus_id": "s"}
        before = peak_nbytes(process.pid)
        worker.socket.settimeout(5)
        n_sent = 0
        with contextlib.suppress(TimeoutError):
            while n_sent < 3_000:
                worker.send([question])
                n_sent += 1
        assert n_sent < 3_000
        assert answer_seconds(address, lambda: None) < 2
        assert peak_nbytes(process.pid) - before < MEMORY_NBYTES


def test_a_worker_that_reads_nothing_for_long_is_removed(tmp_path: Path) -> None:
    config = {
        "DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "inf",
        "DASK_PACELINE__SCHEDULER__UNREAD_TIMEOUT": "2s",
    }
    with (
        scheduler_process(tmp_path, config=config) as (process, address),
        fake_worker(address),
        Client(address) as client,
    ):
        futures = client.map(lambda x, y: x, range(2_000), y=np.ones(7_000), pure=False)
        deadline = time.monotonic() + 60
        while client.nthreads() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not client.nthreads()
        assert "has read nothing for 2 s" in process.output()
        assert not any(future.done() for future in futures)
