"""Large messages of peers are received into a file, which is removed afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed.comm import connect
from distributed.protocol import to_serialize
from paceline.protocol.framing import LARGE_FRAME_NBYTES
from paceline.scheduler.server.peers import receive_spool
from paceline.scheduler.server.peers.receive_spool import ReceiveSpool

from tests.support.fake_peers import until
from tests.support.stock_cluster import cluster

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def spools(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []

    class Watched(receive_spool.Spool):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(receive_spool, "Spool", Watched)
    return made


async def test_scattered_values_pass_through_a_file(tmp_path: Path, spools: list[Any]) -> None:
    async with cluster(2) as (scheduler, client, _workers):
        scheduler.server.request_state.spool_directory = str(tmp_path)
        values = [np.arange(12_000_000), np.arange(5), b"x" * 70_000_000, "text"]
        for _ in range(2):
            futures = await client.scatter(values, hash=False, direct=False)
            back = await client.gather(futures, direct=False)
            assert (
                all(np.array_equal(a, b) for a, b in zip(back[:2], values))
                and back[2:] == values[2:]
            )
        assert len(spools) == 2 and all(s.sealed and s.in_memory_nbytes < 1e6 for s in spools)
        await until(lambda: not any(spool.trim() for spool in spools))
        await until(
            lambda: not [t for t in asyncio.all_tasks() if t.get_name() == "receive-spool-trim"]
        )
        assert not list(tmp_path.iterdir())


async def test_small_messages_stay_in_memory(spools: list[Any]) -> None:
    async with cluster(1) as (_, client, _workers):
        values = [np.arange(100_000), b"x" * 3 * LARGE_FRAME_NBYTES]
        futures = await client.scatter(values, hash=False, direct=False)
        assert np.array_equal((await client.gather(futures))[0], values[0])
        assert not spools


async def test_peer_that_disconnects_halfway_leaves_nothing(spools: list[Any]) -> None:
    async with cluster(1) as (scheduler, _, _workers):
        comm = await connect(scheduler.address)
        data = {"x": to_serialize(np.arange(40_000_000))}
        writing = asyncio.ensure_future(comm.write({"op": "scatter", "data": data, "reply": True}))
        await until(lambda: spools)
        comm.abort()
        await asyncio.wait([writing])
        writing.exception()
        await until(lambda: spools[0].sealed)
        await until(
            lambda: not [t for t in asyncio.all_tasks() if t.get_name() == "receive-spool-trim"]
        )


def test_messages_of_unknown_size_stay_in_memory() -> None:
    given: Any = None
    place = ReceiveSpool(lambda: given, 100, None, lambda c, name: c.close())  # type: ignore[arg-type, return-value]
    assert place.allocate(10**6) is None
    given = ((10, 80), [b"1234567890"])
    assert place.allocate(80) is None
