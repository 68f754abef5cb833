"""The garbage collector runs at idle times, and does not traverse live objects."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from distributed import Client, Worker
from distributed.core import rpc
from paceline.scheduler.server.comm.transport import Comm
from paceline.scheduler.server.peers.peer import EventHandler, Peer
from paceline.scheduler.server.peers.spool import Spool
from paceline.scheduler.server.runtime import gc_policy
from paceline.scheduler.server.runtime.gc_policy import GcPolicy
from paceline.scheduler.server.scheduler import Scheduler
from paceline.workers_compat.malloc_trim import malloc_trim, trim_in_thread

from tests.support.fake_peers import until

GIVEN_BACK = Mock()


class Node:
    """An object that can be part of a cycle."""

    def __init__(self) -> None:
        self.me: Any = self


@pytest.fixture
def policy() -> Iterator[GcPolicy]:
    made = GcPolicy(trim_in_thread=GIVEN_BACK)
    GIVEN_BACK.reset_mock()
    made.start()
    yield made
    made.stop()
    gc.collect()
    assert gc.isenabled()


def churn(n: int) -> list[Any]:
    return [[] for _ in range(n)]


def test_young_garbage_is_collected_between_turns(policy: GcPolicy) -> None:
    assert not gc.isenabled()
    gone = weakref.ref(Node())
    assert gone() is not None
    policy.after_flush(n_tasks=0)
    assert gone() is not None  # too few allocations
    alive = churn(gc_policy.YOUNG_COLLECT_ALLOCATIONS + 1)
    policy.after_flush(n_tasks=0)
    assert gone() is None
    assert policy.seconds > 0
    del alive


def test_with_many_tasks_survivors_are_frozen(policy: GcPolicy) -> None:
    before = gc.get_freeze_count()
    alive = churn(gc_policy.YOUNG_COLLECT_ALLOCATIONS + 1)
    policy.after_flush(n_tasks=gc_policy.MANY_TASKS + 1)
    assert gc.get_freeze_count() >= before + len(alive)


def test_few_generations_are_collected_without_garbage(policy: GcPolicy) -> None:
    alive = []

    def generation() -> bool:
        """Allocate a generation. Return whether it was collected."""
        before = policy.seconds
        alive.append(churn(gc_policy.YOUNG_COLLECT_ALLOCATIONS + 1))
        policy.after_flush(n_tasks=gc_policy.MANY_TASKS + 1)
        return policy.seconds > before

    # objects from before the policy may include garbage
    generation()
    walked = [generation() for _ in range(30)]
    assert sum(walked) < 10
    assert sum(walked[-gc_policy.COLLECTED_OF_YOUNG_MIN :]) == 1
    # after a collection that finds garbage, each generation is collected until one finds none
    gone = []
    while not generation():
        gone.append(weakref.ref(Node()))
    gone.append(weakref.ref(Node()))
    while not generation():
        pass
    assert gone[-1]() is None
    assert [generation(), generation()] == [True, False]


def test_large_generations_are_not_collected(policy: GcPolicy) -> None:
    alive = churn(gc_policy.FREEZE_ALLOCATIONS + 1)
    policy.after_flush(n_tasks=0)
    assert policy.seconds == 0
    assert gc.get_count()[0] < 1000
    del alive


def test_full_collection_when_idle(policy: GcPolicy, monkeypatch: Any) -> None:
    monkeypatch.setattr(gc_policy, "FULL_COLLECT_INTERVAL_SECONDS", 0.0)
    # the test process holds more objects than an idle scheduler
    monkeypatch.setattr(gc_policy, "FULL_COLLECT_MAX_OBJECTS", 10**9)
    monkeypatch.setattr(gc_policy, "FULL_COLLECT_MIN_FROZEN", 1)
    gone = weakref.ref(Node())
    alive = churn(gc_policy.FREEZE_ALLOCATIONS + 1)
    policy.after_flush(n_tasks=0)
    assert gone() is not None  # frozen garbage
    del alive
    policy.on_tick(n_tasks=0, n_stimuli=10_000)  # busy
    assert gone() is not None
    assert not GIVEN_BACK.called
    policy.on_tick(n_tasks=0, n_stimuli=10_001)
    assert gone() is None
    assert GIVEN_BACK.call_count == 1
    seconds = policy.seconds
    policy.on_tick(n_tasks=0, n_stimuli=10_002)  # no allocations since
    assert policy.seconds == seconds


def test_full_collection_is_skipped_if_few_objects_were_frozen(
    policy: GcPolicy, monkeypatch: Any
) -> None:
    monkeypatch.setattr(gc_policy, "FULL_COLLECT_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(gc_policy, "FULL_COLLECT_MAX_OBJECTS", 10**9)
    collections = []
    for _ in range(2):  # the first one is made in any case
        alive = churn(gc_policy.FREEZE_ALLOCATIONS + 1)
        policy.after_flush(n_tasks=0)
        del alive
        policy.on_tick(n_tasks=0, n_stimuli=0)
        collections.append(GIVEN_BACK.call_count)
    assert collections == [1, 1]


@pytest.mark.parametrize(
    ("interval", "n_stimuli"),
    [("OLD_COLLECT_INTERVAL_SECONDS", 1), ("OLD_COLLECT_BUSY_INTERVAL_SECONDS", 10_000)],
)
def test_old_garbage_is_collected(
    policy: GcPolicy, monkeypatch: Any, interval: str, n_stimuli: int
) -> None:
    """Collect objects that outlived young collections and are not frozen, also if the process is never idle for ten minutes."""
    monkeypatch.setattr(gc_policy, interval, 0.0)
    node = Node()
    gone = weakref.ref(node)
    alive = churn(gc_policy.YOUNG_COLLECT_ALLOCATIONS + 1)
    policy.after_flush(n_tasks=0)
    gc.collect(1)
    del node
    gc.collect(1)
    assert gone() is not None  # not in a young generation
    policy.on_tick(n_tasks=gc_policy.MANY_TASKS + 1, n_stimuli=0)
    assert gone() is not None
    policy.on_tick(n_tasks=0, n_stimuli=n_stimuli)
    assert gone() is None
    assert GIVEN_BACK.call_count == 1
    del alive


def test_memory_is_trimmed_soon_after_work(policy: GcPolicy, monkeypatch: Any) -> None:
    monkeypatch.setattr(gc_policy, "REST_SECONDS", 0.0)
    policy.on_tick(n_tasks=0, n_stimuli=0)
    assert not GIVEN_BACK.called  # no work before
    alive = churn(gc_policy.YOUNG_COLLECT_ALLOCATIONS + 1)
    policy.after_flush(n_tasks=1)
    policy.on_tick(n_tasks=0, n_stimuli=10_000)  # busy
    monkeypatch.setattr(gc_policy, "REST_SECONDS", 3600.0)
    policy.on_tick(n_tasks=0, n_stimuli=10_001)  # briefly
    assert not GIVEN_BACK.called
    monkeypatch.setattr(gc_policy, "REST_SECONDS", 0.0)
    policy.on_tick(n_tasks=0, n_stimuli=10_002)
    assert GIVEN_BACK.call_count == 1
    policy.on_tick(n_tasks=0, n_stimuli=10_003)  # once per idle period
    assert GIVEN_BACK.call_count == 1
    del alive


def test_freed_memory_is_returned_to_the_system() -> None:
    if malloc_trim() is None:
        pytest.skip("this C library keeps what it has")
    process = psutil.Process()
    pieces = [bytearray(100_000) for _ in range(1500)]
    del pieces[::2]
    full = process.memory_info().rss
    thread = trim_in_thread()
    assert thread is not None
    thread.join()
    assert process.memory_info().rss < full - 40_000_000
    assert len(pieces) == 750


async def test_reference_counts_free_connections_and_gathers() -> None:
    """The old generation is rarely collected while the scheduler is busy."""

    def alive() -> Counter[str]:
        kinds = (Comm, Peer, EventHandler, Spool)
        return Counter(type(o).__name__ for o in gc.get_objects() if isinstance(o, kinds))

    async def visit() -> None:
        async with Client(scheduler.address, asynchronous=True) as client:
            assert await client.submit(int, "2") == 2
        async with rpc(scheduler.address) as remote:
            await remote.identity()

    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Worker(scheduler.address),
    ):
        await visit()
        before = alive()
        gc.disable()
        try:
            for _ in range(5):
                await visit()
            await until(lambda: not alive() - before)
        finally:
            gc.enable()
