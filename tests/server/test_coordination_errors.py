"""Errors of queues, variables, published data, semaphores and locks have the types and texts of the stock scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from distributed import Client, Event, Future, MultiLock, Queue, Semaphore, Variable, Worker
from distributed.scheduler import Scheduler as Stock
from paceline.scheduler.server.scheduler import Scheduler

SOON = "50ms"
Program = Callable[[Client, Future], Awaitable[Any]]


async def put_into_full(client: Client, gone: Future) -> Any:
    queue = await Queue("full", maxsize=1)
    await queue.put(1)
    return await queue.put(2, timeout=SOON)


async def get_batch_with_timeout(client: Client, gone: Future) -> Any:
    return await (await Queue("batch")).get(batch=2, timeout=1)


async def put_cancelled(client: Client, gone: Future) -> Any:
    return await (await Queue("known")).put(gone, timeout=SOON)


async def put_cancelled_into_unknown(client: Client, gone: Future) -> Any:
    return await Queue("unknown", client=client).put(gone, timeout=SOON)


async def get_from_empty(client: Client, gone: Future) -> Any:
    return await (await Queue("empty")).get(timeout=SOON)


async def get_unset_variable(client: Client, gone: Future) -> Any:
    return await Variable("unset").get(timeout=SOON)


async def set_variable_to_cancelled(client: Client, gone: Future) -> Any:
    return await Variable("cancelled").set(gone, timeout=SOON)


async def publish_twice(client: Client, gone: Future) -> Any:
    await client.publish_dataset(1, name="twice")
    return await client.publish_dataset(2, name="twice")


async def get_unpublished(client: Client, gone: Future) -> Any:
    return await client.get_dataset("unpublished")


async def other_max_leases(client: Client, gone: Future) -> Any:
    await Semaphore(1, "leases")
    return await Semaphore(2, "leases")


async def acquire_closed(client: Client, gone: Future) -> Any:
    semaphore = await Semaphore(1, "closed")
    await semaphore.close()
    return await semaphore.acquire(timeout=SOON)


async def wait_for_event(client: Client, gone: Future) -> Any:
    return await Event("event").wait(timeout=SOON)


async def acquire_taken_locks(client: Client, gone: Future) -> Any:
    await MultiLock(["a", "b"]).acquire()
    return await MultiLock(["a"]).acquire(timeout=SOON)


PROGRAMS: list[Program] = [
    put_into_full,
    get_batch_with_timeout,
    put_cancelled,
    put_cancelled_into_unknown,
    get_from_empty,
    get_unset_variable,
    set_variable_to_cancelled,
    publish_twice,
    get_unpublished,
    other_max_leases,
    acquire_closed,
    wait_for_event,
    acquire_taken_locks,
]


async def outcomes(kind: Any) -> dict[str, Any]:
    """Program -> its result, or the type and text of its error."""
    found: dict[str, Any] = {}
    async with (
        kind(port=0, host="127.0.0.1", dashboard_address=":0") as scheduler,
        Worker(scheduler.address) as _,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        gone = client.submit(int, key="gone")
        await gone
        await gone.cancel()
        while "gone" in scheduler.tasks:
            await asyncio.sleep(0.01)
        for program in PROGRAMS:
            try:
                found[program.__name__] = await program(client, gone)
            except Exception as error:
                found[program.__name__] = (type(error), str(error))
    return found


async def test_errors_are_those_of_stock() -> None:
    stock = await outcomes(Stock)
    assert sum(isinstance(outcome, tuple) for outcome in stock.values()) >= 10
    assert await outcomes(Scheduler) == stock
