"""Coordination primitives when processes die, when many clients wait, and when stock hangs or leaks.

Other results are compared with the stock scheduler by `programs/coordination.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from distributed import Client, Lock, MultiLock, Queue, Semaphore, Variable, wait

from tests.integration.programs.coordination import LONG_SECONDS, outcome, unique, until
from tests.support.real_cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ANOTHER_PROCESS = """
    import os, sys, threading, time
    from distributed import Client, Event, Lock, MultiLock, Queue, Variable
    client = Client(sys.argv[1], set_as_default=True)
    {body}
    print("ready", flush=True)
    time.sleep(120)
"""


@contextlib.contextmanager
def peer(cluster: Cluster, body: str) -> Iterator[subprocess.Popen[str]]:
    """Start a client in a separate process that runs `body`; kill it when the block ends."""
    code = textwrap.dedent(ANOTHER_PROCESS).format(body=textwrap.dedent(body))
    command = [sys.executable, "-c", code, cluster.address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


def background(call: str) -> str:
    """Start a blocking call in a thread; its request arrives soon after."""
    return f"threading.Thread(target=lambda: {call}, daemon=True).start(); time.sleep(0.5)"


@pytest.mark.parametrize("kind", ["stock", "paceline"])
def test_lock_of_a_dead_client(kind: str, start_cluster: Callable[..., Cluster]) -> None:
    """The lease of the lock is no longer refreshed, and expires."""
    config = {
        "DASK_DISTRIBUTED__SCHEDULER__LOCKS__LEASE_TIMEOUT": "1s",
        "DASK_DISTRIBUTED__SCHEDULER__LOCKS__LEASE_VALIDATION_INTERVAL": "200ms",
    }
    cluster = start_cluster(kind, nannies=(False,), config=config)
    with cluster.client():
        body = """
import dask; dask.config.set({"distributed.scheduler.locks.lease-timeout": "1s"})
Lock("l").acquire()
"""
        with peer(cluster, body) as process:
            lock = Lock("l")
            time.sleep(2)
            assert lock.acquire(timeout=0) is False, "a live holder refreshes its lease"
            process.kill()
            assert lock.acquire(timeout=LONG_SECONDS) is True
        lock.release()


def test_dead_waiters_acquire_nothing(paceline: Cluster) -> None:
    """Stock grants the lease, the item and the lock to the process that died."""
    names = {word: unique(word) for word in ("lock", "queue", "multi", "full")}
    with paceline.client() as client:
        lock, multi = Lock(names["lock"]), MultiLock([names["multi"]])
        queue, full = Queue(names["queue"]), Queue(names["full"], maxsize=1)
        lock.acquire()
        multi.acquire()
        full.put(1)
        body = "\n".join(
            [
                background(f"Lock({names['lock']!r}).acquire()"),
                background(f"Queue({names['queue']!r}).get()"),
                background(f"MultiLock([{names['multi']!r}]).acquire()"),
                background(f"Queue({names['full']!r}).put(2)"),
            ]
        )
        with peer(paceline, body):
            pass
        time.sleep(1)
        lock.release()
        assert lock.acquire(timeout=5) is True
        multi.release()
        assert MultiLock([names["multi"]]).acquire(timeout=5) is True
        queue.put("for the living")
        assert queue.get(timeout=5) == "for the living"
        assert full.get(timeout=5) == 1
        assert full.qsize() == 0
        lock.release()
        assert client.status == "running"


def test_variable_of_client_that_died_before_it_confirmed(paceline: Cluster) -> None:
    """A future that was sent to a process that died is released; stock never releases it."""
    name = unique("variable")
    with paceline.client() as client:
        future = client.submit(operator.add, 40, 1, pure=False)
        wait(future)
        key = future.key
        variable = Variable(name, client=client)
        variable.set(future)
        body = f"client.sync(client.scheduler.variable_get, name={name!r}, client=client.id)"
        with peer(paceline, body):
            variable.delete()
            del future
            time.sleep(1)
            assert key in client.who_has()
        assert until(lambda: key not in client.who_has())


def test_close_of_semaphore_ends_waits(paceline: Cluster) -> None:
    """Waiters get an error; on stock they hang."""
    with paceline.client():
        semaphore = Semaphore(name=unique("semaphore"))
        semaphore.acquire()
        results: list[object] = []
        thread = threading.Thread(target=lambda: results.append(outcome(semaphore.acquire)))
        thread.start()
        time.sleep(0.5)
        semaphore.close()
        thread.join(LONG_SECONDS)
        assert results == [("RuntimeError", "Semaphore or Lock `semaphore` not known.")]


@pytest.mark.parametrize("kind", ["stock", "paceline"])
@pytest.mark.parametrize(
    "make",
    [partial(Lock, "l"), partial(Semaphore, max_leases=1, name="s")],
    ids=["lock", "semaphore"],
)
def test_worker_with_a_lease_dies(
    kind: str, make: Callable[[], Semaphore], start_cluster: Callable[..., Cluster]
) -> None:
    """The lease expires, and the task acquires a new one on the next worker."""
    config = {
        "DASK_DISTRIBUTED__SCHEDULER__LOCKS__LEASE_TIMEOUT": "1s",
        "DASK_DISTRIBUTED__SCHEDULER__LOCKS__LEASE_VALIDATION_INTERVAL": "200ms",
    }
    cluster = start_cluster(kind, nannies=(True,), nthreads=1, config=config)

    def die_once(lock: Semaphore, variable: Variable) -> str:
        import os
        import signal

        with lock:
            if not variable.get(timeout=LONG_SECONDS):
                variable.set(True)
                os.kill(os.getpid(), signal.SIGKILL)
            return "done"

    with cluster.client() as client:
        lock, variable = make(), Variable("died")
        variable.set(False)
        assert client.submit(die_once, lock, variable).result(timeout=60) == "done"
        until(lambda: lock.get_value() == 0)


@pytest.mark.parametrize("kind", ["stock", "paceline"])
def test_multi_lock_of_a_client_that_closes(kind: str, request: pytest.FixtureRequest) -> None:
    """Clients that wait for a released name acquire it; a waiter that gave up holds nothing."""
    cluster = request.getfixturevalue(kind)
    a, b, c = unique("a"), unique("b"), unique("c")
    with cluster.client() as one, cluster.client(set_as_default=False) as other:
        held = MultiLock([a, b], client=one)
        assert held.acquire(timeout=LONG_SECONDS)
        waiting = MultiLock([b, c], client=other)
        assert not waiting.acquire(timeout=0.2)
        free = MultiLock([c], client=other)
        assert free.acquire(timeout=LONG_SECONDS), "a waiter that gave up holds nothing"
        free.release()
        held.release()
        assert waiting.acquire(timeout=LONG_SECONDS)
        waiting.release()


# ------------------------------------------------------------------ many waiters


def test_waiters_are_served_in_order(paceline: Cluster) -> None:
    """Serve 200 waiters of a client for a lock, and 200 for a queue, first come, first served.

    Each waiter has its own connection, and on a busy machine adjacent requests overtake each other.
    """

    async def program() -> tuple[list[int], list[int]]:
        async with Client(paceline.address, asynchronous=True) as client:
            order: list[int] = []
            lock = await Lock(unique("fair"))
            await lock.acquire()

            async def enter(number: int) -> None:
                mine = await Lock(lock.name)
                await mine.acquire()
                order.append(number)
                await mine.release()

            waiting = []
            for number in range(200):
                waiting.append(asyncio.create_task(enter(number)))
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.5)
            await lock.release()
            await asyncio.gather(*waiting)
            queue = await Queue(unique("fair"), client=client)
            getters = []
            for _ in range(200):
                getters.append(asyncio.create_task(queue.get()))
                await asyncio.sleep(0.002)
            await asyncio.sleep(0.5)
            for number in range(200):
                await queue.put(number)
            return order, list(await asyncio.gather(*getters))

    order, items = asyncio.run(program())
    for served in (order, items):
        assert sorted(served) == list(range(200))
        assert max(abs(at - number) for at, number in enumerate(served)) < 20
