"""Request handlers and messages of streams, as plugins and functions see them."""

from __future__ import annotations

import asyncio

import pytest
from dask._task_spec import Task
from distributed import Client, Worker
from distributed.comm import connect
from paceline.workers_compat.facade.stock_calls import build_request
from paceline.workers_compat.facade.stream_views import build_message


async def test_requests_as_methods(world):
    assert world.facade.get_task_status(keys=["nothing"]) == {"nothing": None}
    assert world.facade.adaptive_target() == world.scheduler.server.state.scaling.asked
    assert world.scheduler.server.state.scaling.asked_at, "dask-gateway's plugin acts on it"
    got = await world.facade.broadcast(msg={"op": "identity"})
    assert set(got) == {world.worker.address}
    assert "retire_workers" in world.facade.handlers
    with pytest.raises(TypeError):
        world.facade.get_task_status(nonsense=1)
    retired = await world.facade.retire_workers(names=["alice"])
    assert set(retired) == {world.worker.address}


async def test_custom_handlers(world):
    def double(comm=None, x=0):
        return 2 * x

    def install(dask_scheduler):
        dask_scheduler.handlers["double_it"] = double

    await world.client.run_on_scheduler(install)
    assert await world.client.scheduler.double_it(x=21) == 42
    world.facade.handlers["ncores"] = lambda **kwargs: {"mine": 1}
    assert await world.client.ncores() == {"mine": 1}


async def test_replaced_request_handlers(world):
    """A function can call the built-in handler that it replaces; removing it restores that one."""
    handlers, called = world.facade.handlers, []

    def replace(op):
        original = handlers[op]

        def wrapped(**arguments):
            called.append(op)
            return original(**arguments)

        handlers[op] = wrapped

    ops = ["who_has", "broadcast", "identity", "heartbeat_worker", "retire_workers"]
    for op in ops:
        replace(op)
    future = await world.client.scatter(1, hash=False)
    assert await world.client.who_has([future]) == {future.key: (world.worker.address,)}
    assert await world.client.run(lambda: 7) == {world.worker.address: 7}
    assert (await world.client.scheduler.identity())["id"] == world.scheduler.id
    await world.worker.heartbeat()
    assert await world.client.retire_workers(["tcp://127.0.0.1:1"]) == {}
    assert set(ops) <= set(called)
    called.clear()
    assert await world.facade.retire_workers(workers=[]) == {}, "stock's method is not replaced"
    for op in ops:
        del handlers[op]
    assert (await world.client.scheduler.identity())["id"] == world.scheduler.id
    assert await world.client.who_has([future]) == {future.key: (world.worker.address,)}
    assert called == []


async def test_replaced_registrations(world):
    """A function gets the connection of a request, and can pass it to the built-in handler."""
    handlers, called = world.facade.handlers, []

    def replace(op):
        original = handlers[op]

        async def wrapped(comm, **arguments):
            called.append((op, comm.closed()))
            return await original(comm, **arguments)

        handlers[op] = wrapped

    ops = ["register-client", "register-worker"]
    for op in ops:
        replace(op)
    async with (
        Worker(world.scheduler.address, name="second") as worker,
        Client(world.scheduler.address, asynchronous=True) as client,
    ):
        future = client.submit(lambda: 5, workers=["second"])
        assert await asyncio.wait_for(future, 20) == 5
        assert worker.address in world.facade.workers
    assert sorted(set(called)) == [(op, False) for op in ops]
    for op in ops:
        del handlers[op]


async def test_handlers_write_to_the_connection(world):
    async def subscribe(comm, x):
        await comm.write([x, comm.peer_address])
        await asyncio.Event().wait()  # until the connection is lost

    world.facade.handlers["subscribe"] = subscribe
    comm = await connect(world.scheduler.address)
    await comm.write({"op": "subscribe", "x": 5})
    assert await asyncio.wait_for(comm.read(), 20) == (5, comm.local_address)
    await comm.close()


@pytest.mark.parametrize("op", ["update-graph", "update-data"])
async def test_stream_handlers_without_an_effect_are_errors(world, op):
    with pytest.raises(ValueError, match=op):
        world.facade.stream_handlers[op] = print
    assert op not in world.facade.stream_handlers


async def test_rpc_is_a_context_manager(world):
    async with world.facade.rpc(world.worker.address) as rpc:
        assert (await rpc.identity())["type"] == "Worker"
    await rpc.close_rpc()


async def test_messages_to_workers_and_clients(world):
    event = {"op": "event", "topic": "t", "event": (1.0, "hello")}
    got = []
    world.client.subscribe_topic("t", got.append)
    world.facade.client_send(world.client.id, event)
    world.facade.client_comms[world.client.id].send(event, event)
    while len(got) < 3:
        await asyncio.sleep(0.01)
    message = build_message(
        "scheduler_to_worker",
        {"op": "worker-status-change", "status": "paused", "stimulus_id": "s"},
    )
    assert message.status == "paused"
    assert build_message("scheduler_to_worker", {"op": "unheard-of"}) == {"op": "unheard-of"}


def test_arguments_become_requests():
    from paceline.protocol import messages as m

    request = build_request(m.WhoHas, (["x"],), {})
    assert request.keys == ["x"]
    with pytest.raises(TypeError):
        build_request(m.WhoHas, (1, 2, 3, 4), {})
    assert Task is not None
