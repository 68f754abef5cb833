"""The shared memory cache: published values are found, missing ones are not, and partial or stale entries are never read."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Event, wait
from distributed.worker_state_machine import PauseEvent, UnpauseEvent
from paceline.transfer import BackendError, Transfer, prefetch, shm_cache
from paceline.transfer.encoding import encode
from paceline.transfer.shm_cache import (
    PUTS_MAX,
    PUTS_PER_READ,
    ROOM_NBYTES,
    SLOT,
    SLOTS_PER_ROW,
    TABLE_NBYTES,
    VALUE_NBYTES_MAX,
    PeerCaches,
    ShmCache,
    room_for,
)

from tests.support.transfer_cluster import transfer_cluster

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
NOT_THERE = (False, None)


@pytest.fixture
def cache() -> Any:
    made = ShmCache(1 << 20)
    yield made
    made.close()


@pytest.fixture
def peers(cache: ShmCache) -> Any:
    made = PeerCaches()
    made.open("a", cache.ref)
    yield made
    made.close()


VALUES = [
    7,
    "text",
    b"x" * 50_000,
    {"a": [1, None], "b": np.arange(3000)},
    np.arange(10_000).reshape(100, 100),
    np.zeros(0),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_published_values_are_found(cache: ShmCache, peers: PeerCaches, value: Any) -> None:
    for key in ("k", ("k", 0), ("k", 0, 1)):
        assert cache.put(key, encode(value))
        found, same = peers.get(key, "a")
        assert found and repr(same) == repr(value) and type(same) is type(value)
    assert peers.get("other", "a") == NOT_THERE
    assert peers.get("k", "b") == NOT_THERE


def test_read_values_are_private_to_the_reader(cache: ShmCache, peers: PeerCaches) -> None:
    cache.put("k", encode(np.zeros(2000)))
    _, array = peers.get("k", "a")
    array[:] = 1
    cache.drop("k")
    cache.put("j", encode(np.full(2000, 5.0)))
    assert (array == 1).all()


def test_removed_values_are_gone_and_their_room_is_reused(
    cache: ShmCache, peers: PeerCaches
) -> None:
    def put(i: int) -> bool:
        return cache.put(i, encode(bytes([i % 256]) * 100_000))

    held = [i for i in range(100) if put(i)]
    assert 5 <= len(held) < 11 and len(cache) == len(held)
    assert peers.get(99, "a") == NOT_THERE, "there was no room"
    for round_number in range(50):
        gone = held.pop(0)
        cache.drop(gone)
        assert peers.get(gone, "a") == NOT_THERE
        assert put(100 + round_number)
        held.append(100 + round_number)
    assert [peers.get(i, "a")[1][0] for i in held] == [i % 256 for i in held]
    for i in held:
        cache.drop(i)
    assert cache.put("large", encode(b"x" * 120_000)), "an empty cache is like a new one"
    cache.drop("never there")


def test_full_row_rejects_entries(cache: ShmCache, peers: PeerCaches, monkeypatch: Any) -> None:
    monkeypatch.setattr(shm_cache, "ROWS", 1)
    taken = [i for i in range(SLOTS_PER_ROW + 3) if cache.put(i, encode(i))]
    assert taken == list(range(SLOTS_PER_ROW))
    cache.drop(5)
    assert cache.put("late", encode("late")) and peers.get("late", "a") == (True, "late")
    assert peers.get(6, "a") == (True, 6)


def test_partial_slots_are_not_values(cache: ShmCache, peers: PeerCaches) -> None:
    cache.put("k", encode("value"))
    (place,) = cache._places.values()
    slot = bytes(cache._map[place.slot_at : place.slot_at + SLOT.size])
    for written in range(SLOT.size):
        half = slot[:written] + bytes(SLOT.size - written)
        cache._map[place.slot_at : place.slot_at + SLOT.size] = half
        assert peers.get("k", "a") in (NOT_THERE, (True, "value"))
    for old in (1, 2**40):  # the serial of a previous value in this slot
        digest, serial, *rest = SLOT.unpack(slot)
        cache._map[place.slot_at : place.slot_at + SLOT.size] = SLOT.pack(
            digest, serial + old, *rest
        )
        assert peers.get("k", "a") == NOT_THERE


def test_checksums_without_write_order() -> None:
    cache, peers = ShmCache(1 << 20, checked=True), PeerCaches()
    peers.open("a", cache.ref)
    cache.put("k", encode(b"x" * 1000))
    assert peers.get("k", "a") == (True, b"x" * 1000)
    (place,) = cache._places.values()
    cache._map[place.begin + 500] ^= 1
    assert peers.get("k", "a") == NOT_THERE
    peers.close()
    cache.close()


def test_concurrent_reader_gets_no_torn_values(cache: ShmCache, peers: PeerCaches) -> None:
    over = threading.Event()

    def write() -> None:
        chance = random.Random(1)
        while not over.is_set():
            key = chance.randrange(4)
            cache.drop(key)
            cache.put(
                key, encode(bytes([key, chance.randrange(256)]) * chance.randrange(1, 20_000))
            )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = 0
        while found < 3000:
            key = found % 4
            there, value = peers.get(key, "a")
            found += 1
            if there:
                assert value[0] == key and value == value[:2] * (len(value) // 2)
    finally:
        over.set()
        writer.join()


OWNER = """
import sys
from paceline.transfer.encoding import encode
from paceline.transfer.shm_cache import ShmCache
cache = ShmCache(1 << 20)
cache.put("k", encode("value"))
print(repr(cache.ref), flush=True)
sys.stdin.read()
"""


def test_cache_of_dead_worker_is_empty() -> None:
    peers = PeerCaches()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        ref = eval(owner.stdout.readline())
        peers.open("a", ref)
        peers.open("b", ref)
        assert peers.get("k", "a") == (True, "value")
        owner.kill()
    assert peers.get("k", "a") == NOT_THERE and "a" not in peers
    peers.sweep()
    assert "b" not in peers
    with pytest.raises((BackendError, OSError)):
        peers.open("a", ref)
    assert "a" in peers, "its cache is not requested repeatedly"
    assert peers.get("k", "a") == NOT_THERE
    peers.close()


def test_closed_cache_is_empty(cache: ShmCache, peers: PeerCaches) -> None:
    other = ShmCache(1 << 20)
    other.put("k", encode(1))
    peers.open("o", other.ref)
    assert peers.get("k", "o") == (True, 1)
    other.close()
    assert peers.get("k", "o") == NOT_THERE
    assert "o" not in peers, "the worker is asked for a new cache"


def test_room_is_limited() -> None:
    assert room_for(0) == ROOM_NBYTES and room_for(1 << 40) == ROOM_NBYTES
    assert room_for(1 << 30) == 16 << 20
    assert room_for(1 << 30, 0) == 0 and room_for(0, 5) == 5
    assert shm_cache.TABLE_AT + shm_cache.ROWS * SLOTS_PER_ROW * SLOT.size <= TABLE_NBYTES


def test_reads_increase_the_number_of_puts(cache: ShmCache, peers: PeerCaches) -> None:
    assert not cache.may_put(), "there are no readers"
    cache.allow_puts()
    assert [cache.may_put() for _ in range(PUTS_PER_READ + 1)] == [True] * PUTS_PER_READ + [False]
    cache.put("k", encode(1))
    for _ in range(2):
        peers.get("k", "a")
        peers.get("not there", "a")
    assert [cache.may_put() for _ in range(2 * PUTS_PER_READ)] == [True] * 2 * PUTS_PER_READ
    assert not cache.may_put()
    cache.allow_puts(10**9)
    assert sum(cache.may_put() for _ in range(5000)) == PUTS_MAX


# on stock workers


def _got(cluster: Any) -> int:
    return sum(cluster.transfer(i).peer_caches.got_count for i in range(len(cluster.workers)))


async def test_small_results_are_fetched_without_a_request() -> None:
    async with transfer_cluster(Transfer(), n_workers=2) as cluster:
        client, (a, b) = cluster.client, cluster.workers
        first = client.map(str, range(3), workers=["0"], pure=False)
        await client.submit(len, first, workers=["1"])  # connect the workers
        made = client.map(lambda i: (i, "x" * 1000), range(20), workers=["0"], pure=False)
        await wait(made)
        asked = a.transfer_outgoing_count_total
        total = client.submit(lambda xs: sum(x[0] for x in xs), made, workers=["1"])
        assert await total == sum(range(20))
        assert a.transfer_outgoing_count_total == asked and _got(cluster) == 20
        assert b.state.transfer_incoming_count_total >= 2
        assert {ts.key for ts in b.state.tasks.values() if ts.state == "memory"} > {
            f.key for f in made
        }
        cache = cluster.transfer(0).shm_cache
        assert all(f.key in cache for f in made)
        assert not any(f.key in cluster.transfer(1).shm_cache for f in made), (
            "fetched, not computed"
        )
        keys = [f.key for f in made]
        del made, total, first
        gc.collect()
        while any(key in cache for key in keys):
            await client.submit(int, 1, pure=False)


async def test_scheduler_is_notified_of_prefetched_replicas() -> None:
    async with transfer_cluster(Transfer(), n_workers=2) as cluster:
        client, (_, b) = cluster.client, cluster.workers
        first = client.submit(str, 1, workers=["0"], pure=False)
        await client.submit(len, first, workers=["1"])  # connect the workers
        made = client.map(lambda i: "x" * (1000 + i), range(5), workers=["0"], pure=False)
        await wait(made)
        go = Event("go", client=client)  # add-keys is sent while the task that needs them runs
        slow = client.submit(lambda xs: Event("go").wait() and len(xs), made, workers=["1"])
        while not all(b.address in held for held in (await client.who_has(made)).values()):
            await asyncio.sleep(0.01)
        assert {b.state.tasks[f.key].nbytes for f in made} == {
            cluster.workers[0].state.tasks[f.key].nbytes for f in made
        }
        await go.set()
        assert await slow == 5


async def test_number_of_prefetched_values_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "PREFETCH_MAX", 4)
    async with transfer_cluster(Transfer(), n_workers=2) as cluster:
        client, (_, b) = cluster.client, cluster.workers
        first = client.map(str, range(3), workers=["0"], pure=False)
        await client.submit(len, first, workers=["1"])  # connect the workers
        made = client.map(str, range(20), workers=["0"], pure=False)
        await wait(made)
        assert await client.submit(len, made, workers=["1"]) == 20
        log = [entry for entry in b.state.log if entry[1] == "receive-from-scatter"]
        assert len(log) == 4 and all(entry[3].startswith("transfer-prefetch") for entry in log)


async def test_paused_worker_does_not_prefetch() -> None:
    async with transfer_cluster(Transfer(), n_workers=2) as cluster:
        client, (_, b) = cluster.client, cluster.workers
        first = client.submit(str, 1, workers=["0"], pure=False)
        await client.submit(len, first, workers=["1"])  # connect the workers
        made = client.submit(str, "abc", workers=["0"], pure=False)
        await wait(made)
        b.handle_stimulus(PauseEvent(stimulus_id="test"))
        length = client.submit(len, made, workers=["1"])
        while length.key not in b.state.tasks:
            await asyncio.sleep(0.01)
        assert made.key not in b.data
        b.handle_stimulus(UnpauseEvent(stimulus_id="test"))
        assert await length == 3


async def test_transfer_can_be_enabled_again() -> None:
    async with transfer_cluster(Transfer(), n_workers=2) as cluster:
        client, (a, _) = cluster.client, cluster.workers
        for _ in range(2):
            first = client.submit(str, 1, workers=["0"], pure=False)
            await client.submit(len, first, workers=["1"], pure=False)
            second = client.submit(str, 2, workers=["0"], pure=False)
            await wait(second)
            asked = a.transfer_outgoing_count_total
            await client.submit(len, second, workers=["1"], pure=False)
            assert a.transfer_outgoing_count_total == asked
            await client.unregister_worker_plugin("paceline-transfer")
            await client.register_plugin(Transfer())


async def test_replica_is_used_before_its_holder_is_known() -> None:
    async with transfer_cluster(Transfer(), n_workers=3) as cluster:
        client, (a, _, _) = cluster.client, cluster.workers
        made = client.submit(str, "abc", workers=["0"])
        assert await client.submit(len, made, workers=["1"], pure=False) == 3
        await client.retire_workers([a.address])
        assert await client.submit(len, made, workers=["2"], pure=False) == 3
        assert made.key in cluster.transfer(1).shm_cache, "a peer requested it there"


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer("direct"),
        Transfer("shm", shm={"cache_nbytes": 0}),
        Transfer("shm", rules=[{"use": "dask", "types": "builtins.*"}]),
        Transfer("shm", min_nbytes="1 MiB"),
    ],
    ids=["another", "none", "rule", "size"],
)
async def test_excluded_values_are_not_published(transfer: Transfer) -> None:
    async with transfer_cluster(transfer, n_workers=2) as cluster:
        made = cluster.client.submit(str, "abc", workers=["0"])
        for _ in range(2):
            assert await cluster.client.submit(len, made, workers=["1"], pure=False) == 3
        assert _got(cluster) == 0
        assert not cluster.transfer(0).shm_cache


async def test_annotation_selects_dask() -> None:
    async with transfer_cluster(Transfer(), n_workers=2) as cluster:
        with dask.annotate(transfer="dask"):
            made = cluster.client.submit(str, "abc", workers=["0"])
        assert await cluster.client.submit(len, made, workers=["1"]) == 3
        assert not cluster.transfer(0).shm_cache


async def test_large_results_are_not_in_the_cache() -> None:
    async with transfer_cluster(Transfer(), n_workers=2) as cluster:
        made = cluster.client.submit(np.arange, VALUE_NBYTES_MAX, workers=["0"])
        assert await cluster.client.submit(len, made, workers=["1"]) == VALUE_NBYTES_MAX
        assert made.key not in cluster.transfer(0).shm_cache
        assert cluster.traffic("shm")["put_count"] == 1


async def test_values_that_fail_to_unpickle_are_fetched_by_dask() -> None:
    async with transfer_cluster(Transfer(), n_workers=2) as cluster:
        await cluster.client.submit(
            len, cluster.client.submit(str, "a", workers=["0"]), workers=["1"]
        )
        address = cluster.workers[0].address
        cluster.transfer(0).shm_cache.put("shut", encode(Shut()))
        cluster.transfer(0).shm_cache.put("open", encode(1))
        assert address in cluster.transfer(1).peer_caches
        assert cluster.transfer(1).cached_values(["shut", "open"], address) == {"open": 1}


class Shut:
    """A value that can be pickled but not unpickled."""

    def __reduce__(self) -> Any:
        return _open, ()


def _open() -> None:
    raise RuntimeError("it stays shut")
