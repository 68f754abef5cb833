"""Gathers that are passed on while they come in: with stock workers and clients, and when somebody goes in the middle."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import wait
from distributed.comm import CommClosedError, connect
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.scheduler.server.flows import shelf as shelf_module
from paceline.scheduler.server.flows import streamed_gather as flow
from paceline.scheduler.server.flows import streamed_parts
from paceline.scheduler.server.flows.shelf import Shelf
from paceline.scheduler.server.flows.streamed_parts import Passage, Promise
from paceline.scheduler.server.outlet import Outlet
from paceline.scheduler.server.peers import Peer

from .test_stock_peers import cluster, until

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames each reply had that went out in parts."""
    counts: list[int] = []
    before = Peer.reply_in_parts

    def watched(self: Peer, value: Any, lengths: Any) -> Any:
        outlet = before(self, value, lengths)
        if outlet is not None:
            counts.append(len(lengths))
        return outlet

    monkeypatch.setattr(Peer, "reply_in_parts", watched)
    return counts


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, Callable[[], Any]], None]]:
    """``after(n, action)``: call it, once, when so many bytes have gone out in parts."""
    plans: list[tuple[int, Callable[[], Any]]] = []
    passed = [0]
    before = Outlet.write

    def watched(self: Outlet, data: Any) -> None:
        before(self, data)
        passed[0] += len(data)
        if plans and passed[0] >= plans[0][0]:
            asyncio.get_running_loop().call_soon(plans.pop()[1])

    monkeypatch.setattr(Outlet, "write", watched)
    yield lambda nbytes, action: plans.append((nbytes, action))
    assert not plans, "so much never went out"


def only_part(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The parts of later gathers."""
    parts: list[Any] = []
    before = flow.Part.__init__

    def watched(self: Any, *args: Any) -> None:
        before(self, *args)
        parts.append(self)

    monkeypatch.setattr(flow.Part, "__init__", watched)
    return parts


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


async def test_values_of_all_kinds(begun: list[int]) -> None:
    async with cluster(2) as (scheduler, client, _workers):
        futures = await client.scatter(VALUES, hash=False)
        for _ in range(2):
            assert_same(await client.gather(futures, direct=False), VALUES)
        assert len(begun) == 2
        assert await client.submit(lambda: 1) == 1
        live, in_use = scheduler.server.pool.counts
        assert live and not in_use
        assert not scheduler.server.flows.streaming


async def test_buffers_that_dask_cuts_come_whole(begun: list[int]) -> None:
    async with cluster(1) as (_, client, _workers):
        x = client.submit(np.arange, 20_000_000)
        result = await client.gather(x, direct=False)
        assert np.array_equal(result, np.arange(20_000_000)) and result.flags.writeable
        assert begun == [2], "its header, and one buffer"


async def test_two_at_once_one_of_them_collects(begun: list[int]) -> None:
    async with cluster(2) as (_, client, _workers):
        xs = client.map(np.full, [10_000_000] * 4, range(4))
        await asyncio.wait_for(client.gather(xs, direct=False), 60)
        del begun[:]
        both = await asyncio.gather(*(client.gather(xs, direct=False) for _ in range(2)))
        for result in both:
            assert [int(x[-1]) for x in result] == [0, 1, 2, 3]
        assert len(begun) == 1


async def test_another_holder_takes_over(
    begun: list[int],
    after: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = only_part(monkeypatch)
    async with cluster(2) as (scheduler, client, _workers):
        x, y = await client.scatter(
            [np.arange(20_000_000), np.arange(9_000_000)], broadcast=True, hash=False
        )
        after(60_000_000, lambda: scheduler.server.transport.abort(parts[0]._number, "a test"))
        a, b = await client.gather([x, y], direct=False)
        assert np.array_equal(a, np.arange(20_000_000)) and np.array_equal(b, np.arange(9_000_000))
        assert len(begun) == 1 and len(parts) == 3
        assert "while its results were passed on" in caplog.text


async def test_the_same_holder_goes_on_where_only_its_connection_was_lost(
    begun: list[int], after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = only_part(monkeypatch)
    async with cluster(1) as (scheduler, client, _workers):
        x = await client.scatter(np.arange(20_000_000), hash=False)
        after(60_000_000, lambda: scheduler.server.transport.abort(parts[0]._number, "a test"))
        assert np.array_equal(await client.gather(x, direct=False), np.arange(20_000_000))
        assert len(begun) == 1 and len(parts) == 2


async def test_computed_anew_it_goes_on_if_it_is_the_same(
    begun: list[int], after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = only_part(monkeypatch)
    async with cluster(2) as (_, client, workers):
        x = client.submit(np.arange, 20_000_000, workers=["w0"], allow_other_workers=True)
        await wait(x)

        def lose() -> None:
            task.append(asyncio.ensure_future(workers[0].close(executor_wait=False)))

        task: list[Any] = []
        after(40_000_000, lose)
        result = await client.gather(x, direct=False)
        assert np.array_equal(result, np.arange(20_000_000))
        await task[0]
        assert len(begun) == 1 and len(parts) == 2


async def test_what_is_not_the_same_is_never_pieced_together(
    after: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(2) as (_, client, workers):

        def made(n: int) -> np.ndarray:
            from distributed import get_worker

            return np.full(n, hash(get_worker().address), dtype="i8")

        x = client.submit(made, 20_000_000, workers=["w0"], allow_other_workers=True)
        await wait(x)
        tasks: list[Any] = []
        after(
            40_000_000,
            lambda: tasks.append(asyncio.ensure_future(workers[0].close(executor_wait=False))),
        )
        with pytest.raises((CommClosedError, OSError)):
            await client.gather(x, direct=False)
        await tasks[0]
        assert "cannot go on" in caplog.text and "is not the same" in caplog.text
        assert len(set(await client.gather(x, direct=False))) == 1, "asked again, it comes"


async def test_a_client_that_goes_in_the_middle(
    after: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with cluster(2) as (scheduler, client, _workers):
        xs = client.map(np.full, [10_000_000] * 4, range(4))
        await client.gather(xs, direct=False)
        comm = await connect(scheduler.address)
        after(30_000_000, comm.abort)
        await comm.write({"op": "gather", "keys": [x.key for x in xs], "reply": True})
        with pytest.raises((CommClosedError, OSError)):
            await comm.read()
        async with asyncio.timeout(20):
            while scheduler.server.flows.streaming:
                await asyncio.sleep(0.01)
        assert scheduler.server.pool.counts[1] == 0
        assert len(await client.gather(xs, direct=False)) == 4
    assert not [r for r in caplog.records if r.name == "distributed.scheduler"]


async def test_a_client_that_stops_taking_costs_no_worker_its_connection(
    begun: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Stock's sockets give up a peer that takes nothing for 30 s: workers are read to the end, into a file."""
    monkeypatch.setattr(streamed_parts, "HOLD_SECONDS", 0.2)
    async with cluster(2) as (scheduler, client, workers):
        scheduler.server.flows.spool_directory = str(tmp_path)
        xs = client.map(np.full, [9_000_000] * 6, range(6))
        await wait(xs)
        comm = await connect(scheduler.address)
        await comm.write({"op": "gather", "keys": [x.key for x in xs], "reply": True})
        await until(lambda: begun)
        await until(lambda: not any(w.transfer_outgoing_count for w in workers), 30)
        reply = await comm.read()
        for i, x in enumerate(xs):
            np.testing.assert_array_equal(reply["data"][x.key], np.full(9_000_000, i))
        comm.abort()
        await until(lambda: not scheduler.server.flows.streaming)
        assert not list(tmp_path.iterdir()) and scheduler.server.pool.counts[1] == 0


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=30)), max_size=40))
def test_shelf_gives_back_what_was_put_in_order(steps: list[bytes | None]) -> None:
    shelf = Shelf()
    put, taken = bytearray(), bytearray()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf_module, "MEMORY_NBYTES", 40)
        patch.setattr(shelf_module, "PIECE_NBYTES", 17)
        for step in steps:
            if step is None:
                taken += shelf.take()
            elif step:
                shelf.put(step)
                put += step
            assert len(shelf) == len(put) - len(taken)
        while shelf:
            taken += shelf.take()
    assert taken == put and shelf.take() == b""
    shelf.close()


async def test_a_busy_worker_leaves_it_to_the_other_way(begun: list[int]) -> None:
    async with cluster(1) as (_, client, workers):
        x = client.submit(np.arange, 20_000_000)
        await wait(x)
        workers[0].transfer_outgoing_count_limit = 0
        pending = asyncio.ensure_future(client.gather(x, direct=False))
        await asyncio.sleep(0.3)
        workers[0].transfer_outgoing_count_limit = 50
        assert np.array_equal(await pending, np.arange(20_000_000))
        assert not begun


class Drain:
    """Stands for an outlet."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.full = False
        self.on_drained: Any = None

    def write(self, data: Any) -> None:
        self.out += data


@settings(deadline=None, max_examples=200)
@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5), st.randoms())
def test_whatever_breaks_off_the_bytes_are_those_promised(values: list[bytes], rng: Random) -> None:
    promises = [Promise(f"x{i}", "serialized", (len(value),)) for i, value in enumerate(values)]
    drain = Drain()
    passage = Passage(drain, promises)  # type: ignore[arg-type]
    for attempt in itertools.count():
        if not passage.left:
            break
        i = len(values) - len(passage.left)
        passage.begin_again()
        rest = values[i] if rng.random() < 0.5 else b"".join(values[i:])
        rest = rest if attempt > 50 else rest[: rng.randint(0, len(rest))]
        while rest:
            step = rng.randint(1, 20)
            passage.write(rest[:step])
            rest = rest[step:]
        assert not passage.changed
    assert bytes(drain.out) == b"".join(values)


def test_another_beginning_is_noticed() -> None:
    drain = Drain()
    passage = Passage(drain, [Promise("x", "serialized", (10,))])  # type: ignore[arg-type]
    passage.write(b"01234")
    passage.begin_again()
    passage.write(b"0123x56789")
    assert passage.changed and bytes(drain.out) == b"01234"
