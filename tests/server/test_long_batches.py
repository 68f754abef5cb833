"""Very long batches of clients and workers are processed completely and in order, with other messages in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import cloudpickle
import dask
import pytest
from dask._expr import LLGExpr
from paceline.protocol import messages as m
from paceline.protocol.payload import serialized_payload
from paceline.scheduler.core.stimuli import GraphCommit
from paceline.scheduler.server.scheduler import Scheduler

from tests.support.fake_peers import client, until, worker

MANY = 15_000


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    options = {"host": "127.0.0.1", "port": 0, "dashboard": False}
    # the memory manager would drop second replicas after two seconds
    with dask.config.set({"distributed.scheduler.active-memory-manager.start": False}):
        async with Scheduler(**options, compile_in_threads=True) as made:
            yield made


def keys() -> list[str]:
    return [f"a-task-with-a-name-{i}" for i in range(MANY)]


def handled(scheduler: Scheduler, *kinds: type) -> list[Any]:
    """Return a list that collects messages of these kinds as the core handles them."""
    found: list[Any] = []
    handlers = scheduler.server.core.handlers
    for kind in kinds:

        def noting(turn: Any, message: Any, handle: Any = handlers[kind]) -> None:
            found.append(message)
            handle(turn, message)

        handlers[kind] = noting
    return found


async def test_client_that_releases_many_keys(scheduler: Scheduler) -> None:
    state = scheduler.server.state
    alice, bob = await client(scheduler, "alice"), await client(scheduler, "bob")
    alice.send([m.ClientDesiresKeys(keys=keys(), client="alice")])
    alice.send([m.ClientReleasesKeys(keys=[key], client="alice") for key in keys()])
    alice.send([m.ClientDesiresKeys(keys=["last"], client="alice")])
    seen: set[int] = set()

    def gone() -> bool:
        seen.add(len(state.tasks))
        return list(state.tasks) == ["last"]

    bob.send([m.ClientDesiresKeys(keys=["of-bob"], client="bob")])
    await until(lambda: "of-bob" in state.tasks)
    bob.send([m.ClientReleasesKeys(keys=["of-bob"], client="bob")])
    await until(gone)
    assert len(seen) > 5  # in many iterations of the loop


async def test_worker_that_fetched_many_keys(scheduler: Scheduler) -> None:
    state = scheduler.server.state
    await client(scheduler, "alice")
    peer = await worker(scheduler)
    (ws,) = state.workers.values()
    scheduler.server.driver.feed(_placed(ws.address))
    other = await worker(scheduler, address="tcp://127.0.0.1:2", name="other")
    other.send([m.AddKeys(keys=keys(), stimulus_id="s")])
    other.send([m.ReleaseWorkerData(key=keys()[-1], stimulus_id="s")])
    two = state.workers["tcp://127.0.0.1:2"]
    await until(lambda: len(two.has_what) == MANY - 1 and keys()[-1] in state.tasks)
    assert len(ws.has_what) == MANY
    peer.writer.close()


def _placed(address: str) -> Any:
    from paceline.scheduler.core.stimuli import DataPlaced

    return DataPlaced({k: [address] for k in keys()}, dict.fromkeys(keys(), 8), client="alice")


async def test_many_messages_behind_a_graph_keep_their_order(scheduler: Scheduler) -> None:
    state = scheduler.server.state
    found = handled(scheduler, GraphCommit, m.ClientDesiresKeys, m.ClientReleasesKeys)
    alice = await client(scheduler, "alice")
    dsk = {key: (sum, [i, 1]) for i, key in enumerate(keys())}
    expr = serialized_payload(
        {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(LLGExpr(dsk))]
    )
    alice.send([m.UpdateGraph(expr_ser=expr, keys=keys())])
    # without this message, the graph would be cancelled if it is not compiled before the release
    alice.send([m.ClientDesiresKeys(keys=keys()[:1])])
    alice.send([m.ClientReleasesKeys(keys=[key], client="alice") for key in keys()])
    small = serialized_payload(
        {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(LLGExpr({"x": (sum, [1])}))]
    )
    alice.send([m.UpdateGraph(expr_ser=small, keys=["x"])])
    await until(lambda: found)  # the tasks may be released before the next poll
    await until(lambda: list(state.tasks) == ["x"] and not state.deferred)
    commit, desired, *released, last = found
    assert (type(commit), commit.graph_id) == (GraphCommit, 1)
    assert type(desired) is m.ClientDesiresKeys
    assert [key for message in released for key in message.keys] == keys()
    assert (type(last), last.graph_id) == (GraphCommit, 2)


async def test_client_that_disconnects_in_the_middle(scheduler: Scheduler) -> None:
    state = scheduler.server.state
    desired = handled(scheduler, m.ClientDesiresKeys)
    alice = await client(scheduler, "alice")
    alice.send([m.ClientDesiresKeys(keys=keys(), client="alice")])
    alice.writer.close()
    await until(lambda: desired and "alice" not in state.clients and not state.tasks)
