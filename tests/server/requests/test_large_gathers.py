"""Gathers of large results with stock workers and clients, and when workers or the client are lost meanwhile."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from distributed import wait
from distributed.comm import connect
from paceline.scheduler.server.peers.spool import FileFrame, ReplyAllocator

from tests.support.fake_peers import until
from tests.support.stock_cluster import cluster

pytestmark = pytest.mark.timeout(90)


def run_after(monkeypatch: pytest.MonkeyPatch, nbytes: int, action: Any) -> list[int]:
    """Call ``action`` once when ``nbytes`` have been received into files. Return a list of the bytes received so far."""
    received = [0]
    write = FileFrame.write

    def counting(self: FileFrame, data: memoryview) -> None:
        before = received[0]
        received[0] += len(data)
        write(self, data)
        if before < nbytes <= received[0]:
            asyncio.get_running_loop().call_soon(action)

    monkeypatch.setattr(FileFrame, "write", counting)
    return received


VALUES = [
    np.arange(20_000_000),
    np.arange(1_000_000).reshape(1000, 1000).T,
    pd.DataFrame({"x": np.arange(300_000.0), "name": ["a", "b", "c"] * 100_000}),
    [b"a" * 3_000_000, {"x": np.zeros(9_000_000), "y": [np.ones(3), "text"]}],
    "text",
    None,
    np.empty(0),
    bytes(70_000_000),
]


def assert_same(got: Any, expected: Any) -> None:
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(got, expected)
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            assert_same(a, b)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        assert_same(list(got.values()), list(expected.values()))
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(got, expected)
    else:
        assert got == expected


async def test_values_of_all_kinds() -> None:
    async with cluster(2) as (scheduler, client, _workers):
        futures = await client.scatter(VALUES, hash=False)
        for _ in range(2):
            assert_same(await client.gather(futures, direct=False), VALUES)
        assert await client.submit(lambda: 1) == 1
        live, in_use = scheduler.server.pool.counts
        assert live and not in_use


async def test_two_gathers_at_once() -> None:
    async with cluster(2) as (_, client, _workers):
        xs = client.map(np.full, [10_000_000] * 4, range(4))
        both = await asyncio.gather(*(client.gather(xs, direct=False) for _ in range(2)))
        for result in both:
            assert [int(x[-1]) for x in result] == [0, 1, 2, 3]


async def test_another_holder_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(2) as (scheduler, client, _workers):
        x, y = await client.scatter(
            [np.arange(20_000_000), np.arange(9_000_000)], broadcast=True, hash=False
        )

        def abort() -> None:
            pool = scheduler.server.pool
            busy = [o for a in pool._addresses.values() for o in a.live if o not in a.idle]
            busy[0].abort("a test")

        received = run_after(monkeypatch, 60_000_000, abort)
        a, b = await client.gather([x, y], direct=False)
        assert np.array_equal(a, np.arange(20_000_000)) and np.array_equal(b, np.arange(9_000_000))
        assert received[0] > 232_000_000, "some bytes were received twice"


async def test_result_that_is_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of different runs are never mixed: the client receives one of them as a whole."""
    async with cluster(2) as (_, client, workers):

        def made(n: int) -> np.ndarray:
            from distributed import get_worker

            return np.full(n, hash(get_worker().address), dtype="i8")

        x = client.submit(made, 20_000_000, workers=["w0"], allow_other_workers=True)
        await wait(x)
        tasks: list[Any] = []
        run_after(
            monkeypatch,
            40_000_000,
            lambda: tasks.append(asyncio.ensure_future(workers[0].close(executor_wait=False))),
        )
        result = await client.gather(x, direct=False)
        assert len(tasks) == 1
        await tasks[0]
        assert len(result) == 20_000_000 and len(set(result)) == 1


async def test_a_client_that_disconnects_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.ERROR)
    async with cluster(2) as (scheduler, client, _workers):
        scheduler.server.request_state.spool_directory = str(tmp_path)
        xs = client.map(np.full, [10_000_000] * 4, range(4))
        await wait(xs)
        comm = await connect(scheduler.address)
        run_after(monkeypatch, 30_000_000, comm.abort)
        await comm.write({"op": "gather", "keys": [x.key for x in xs], "reply": True})
        await until(comm.closed)
        await until(lambda: scheduler.server.pool.counts[1] == 0)
        assert len(await client.gather(xs, direct=False)) == 4
        assert not list(tmp_path.iterdir())
    assert not [r for r in caplog.records if r.name == "distributed.scheduler"]


async def test_a_client_that_reads_slowly_does_not_block_workers(tmp_path: Path) -> None:
    async with cluster(2) as (scheduler, client, workers):
        scheduler.server.request_state.spool_directory = str(tmp_path)
        xs = client.map(np.full, [9_000_000] * 6, range(6))
        await wait(xs)
        comm = await connect(scheduler.address)
        await comm.write({"op": "gather", "keys": [x.key for x in xs], "reply": True})
        await until(lambda: sum(w.transfer_outgoing_count_total for w in workers) >= 2)
        await until(lambda: not any(w.transfer_outgoing_count for w in workers))
        reply = await comm.read()
        for i, x in enumerate(xs):
            np.testing.assert_array_equal(reply["data"][x.key], np.full(9_000_000, i))
        comm.abort()
        assert not list(tmp_path.iterdir()) and scheduler.server.pool.counts[1] == 0


async def test_a_busy_worker() -> None:
    async with cluster(1) as (_, client, workers):
        x = client.submit(np.arange, 20_000_000)
        await wait(x)
        workers[0].transfer_outgoing_count_limit = 0
        pending = asyncio.ensure_future(client.gather(x, direct=False))
        await asyncio.sleep(0.3)
        workers[0].transfer_outgoing_count_limit = 50
        assert np.array_equal(await pending, np.arange(20_000_000))


@pytest.mark.parametrize(
    ("place", "error", "text"),
    [
        ((ReplyAllocator, "allocate"), MemoryError(), "no memory for a frame"),
        ((FileFrame, "write"), OSError(errno.ENOSPC, "full"), "a large frame cannot be kept"),
    ],
)
async def test_result_for_which_there_is_no_memory(
    monkeypatch: pytest.MonkeyPatch, place: tuple[type, str], error: Exception, text: str
) -> None:
    """The client receives an error. It would repeat a gather whose keys are lost."""
    async with cluster(1) as (scheduler, client, _):
        scheduler.server.request_state.gather_memory_nbytes = 0  # uses a file
        x = client.submit(bytes, 5_000_000)
        await wait(x)
        with monkeypatch.context() as patch:
            patch.setattr(*place, Mock(side_effect=error))
            with pytest.raises(MemoryError, match=f"cannot receive results: .*{text}"):
                await client.gather(x, direct=False)
        assert len(await client.gather(x, direct=False)) == 5_000_000
