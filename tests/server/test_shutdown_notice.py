"""The notice that a closing scheduler sends to clients, and streams of connections that have not registered."""

from __future__ import annotations

import asyncio
import warnings

import pytest
from distributed import Client, Worker
from distributed.client import FutureCancelledError
from distributed.core import connect
from paceline.scheduler.server.runtime.shutdown_notice import reason_text
from paceline.scheduler.server.scheduler import Scheduler


def slow(seconds: float) -> None:
    import time

    time.sleep(seconds)


def test_reason_text() -> None:
    assert reason_text("idle-timeout-exceeded", 90.0) == (
        "it had nothing to do for 90.00 s (idle timeout)"
    )
    assert reason_text("signal-15") == "it was sent SIGTERM"
    assert reason_text("terminate") == "it was asked to shut down"
    assert reason_text("moon-in-the-wrong-phase") == "moon in the wrong phase"


@pytest.mark.parametrize("reason", ["signal-15", "unknown"])
async def test_clients_receive_the_reason(reason: str) -> None:
    """A waiting future is cancelled with the reason, shown as a warning; a program that closes its own scheduler gets none."""
    scheduler = Scheduler(port=0, host="127.0.0.1", dashboard=False)
    await scheduler
    async with Client(scheduler.address, asynchronous=True, timeout=0.5) as client:
        future = client.submit(slow, 1, pure=False)
        while future.key not in scheduler.server.state.tasks:
            await asyncio.sleep(0.01)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            waiting = asyncio.ensure_future(future.result())
            await asyncio.sleep(0)
            await scheduler.close(reason=reason)
            error = (await asyncio.gather(waiting, return_exceptions=True))[0]
        text = f"The scheduler at {scheduler.address} closes: it was sent SIGTERM."
        assert isinstance(error, FutureCancelledError)
        told = [str(each.message) for each in warned]
        assert (text in told) == (reason != "unknown")
        assert (error.reason, error.msg) == ("scheduler-closed", text) or reason == "unknown"


@pytest.mark.parametrize("close", [False, True])
async def test_removed_worker_reports_that_it_closes(close: bool) -> None:
    """The event arrives after the worker was removed. It is logged all the same; other messages of the worker are dropped."""
    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Client(scheduler.address, asynchronous=True) as client,
        Worker(scheduler.address, nthreads=1) as worker,
    ):
        address = worker.address
        if close:
            scheduler.remove_worker(address, stimulus_id="test")
        else:
            assert await client.scheduler.unregister(address=address, close=False) == "OK"
            worker.batched_stream.send(
                {"op": "worker-status-change", "status": "paused", "stimulus_id": "t"}
            )
            worker.batched_stream.send(
                {"op": "log-event", "topic": address, "msg": {"action": "closing-worker"}}
            )
        assert address not in scheduler.workers

        async def actions() -> list[object]:
            return [event["action"] for _, event in await client.get_events(address)]

        while "closing-worker" not in await actions():
            await asyncio.sleep(0.01)
        assert (await actions())[-1] == "closing-worker"
        assert address not in scheduler.workers


async def test_stream_without_registration() -> None:
    """Messages reach handlers of plugins, and the core if they name their sender; invalid ones affect no one else."""
    heard: list[object] = []
    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        facade = scheduler.server.plugins.facade
        facade.stream_handlers["from-outside"] = lambda **words: heard.append(words)
        comm = await connect(scheduler.address)
        await comm.write({"op": "connection_stream", "extra": {"more": 1}, "reply": False})
        await comm.write([{"op": "from-outside", "a": (1, 2)}, {"op": "nobody knows"}, 5, {"a": 1}])
        await comm.write({"op": "from-outside", "b": None})
        await comm.write({"op": "identity"})
        await comm.write(
            {"op": "client-desires-keys", "keys": ["x"], "client": client.id, "more": 2}
        )
        await comm.write([{"op": "from-outside", "more": 5}, {"op": "close-stream"}])
        with pytest.raises(OSError):
            await comm.read()
        assert heard == [{"more": 1, "a": (1, 2)}, {"more": 1, "b": None}, {"more": 5}]
        assert await client.run_on_scheduler(lambda: "well") == "well"


async def test_replaced_stream_handlers() -> None:
    """A plugin's handler replaces the core's, and may forward messages to it; removing it restores the core's."""
    heard: list[str] = []
    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Worker(scheduler.address, nthreads=1),
        Client(scheduler.address, asynchronous=True) as client,
    ):
        handlers = scheduler.server.plugins.facade.stream_handlers
        assert {"task-finished", "client-releases-keys", "log-event"} <= set(handlers)
        handlers["cancel-keys"] = lambda client, **more: heard.append(client)
        await client.cancel([client.submit(slow, 0)])
        while not heard:
            await asyncio.sleep(0.01)
        assert heard.pop() == client.id
        original = handlers["task-finished"]

        def wrapped(worker: str, **more: object) -> None:
            heard.append(str(more["key"]))
            original(worker=worker, **more)

        handlers["task-finished"] = wrapped
        future = client.submit(slow, 0, pure=False)
        await future
        assert heard == [future.key]
        del handlers["task-finished"]
        await client.submit(slow, 0, pure=False)
        assert heard == [future.key]
