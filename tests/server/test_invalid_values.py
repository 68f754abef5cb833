"""Invalid values cause an error for their sender and do not affect others. ``tests/attacks/test_values.py`` tries every field."""

from __future__ import annotations

import json
import math
from typing import Any

import distributed
import pytest
from distributed.protocol import dumps
from distributed.protocol.serialize import ToPickle
from paceline.protocol.keys import KEY_NBYTES_MAX
from paceline.scheduler import Scheduler

from tests.support.fake_peers import Peer, registration
from tests.support.pages import get

FAKE = "tcp://127.0.0.1:1"
METRICS = registration()["metrics"]


def write(peer: Peer, message: Any) -> None:
    """Send `message` as stock does, which pickles what msgpack cannot encode."""
    peer.write([bytes(frame) for frame in dumps(message)])


async def assert_others_go_on(scheduler: Scheduler) -> None:
    async with (
        distributed.Worker(scheduler.address, name="real", dashboard_address=None) as worker,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        assert await client.submit(sum, [1, 2], workers=[worker.address]) == 3
        assert worker.address in (await client.scheduler.identity())["workers"]
        assert await client.scheduler.who_has(keys=None) is not None
        port = scheduler.http_server.port
        json.loads(await get(port, "/json/counts.json"))
        assert "dask_scheduler_workers" in await get(port, "/metrics")
        assert "real" in await get(port, "/info/main/workers.html")


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {**METRICS, "bandwidth": {"total": math.nan, "workers": {}, "types": {}}}},
        {"metrics": {**METRICS, "bandwidth": {"total": 5e-324}}},
        {"metrics": {"memory": "much"}},
        {"host_info": {"addresses": 5, "nthreads": "x"}},
        {"extra": {"type": 5, "nthreads": math.nan, "name": ToPickle(2**100)}},
        {"resources": {"GPU": math.inf}},
    ],
)
async def test_worker_with_unusual_values_registers_and_leaves(change: dict[str, Any]) -> None:
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "dashboard": False}
    async with Scheduler(**options) as scheduler:
        state = scheduler.server.state
        peer = await Peer.connect(scheduler)
        write(peer, {**registration(FAKE), **change})
        assert (await peer.event()).value["status"] == "OK"
        await assert_others_go_on(scheduler)
        peer.writer.close()
        await scheduler.server.wait_for(lambda: not state.workers, 10)
        assert not state.workers and not state.host_info


@pytest.mark.parametrize(
    "change",
    [
        {"status": "dancing"},
        {"nthreads": 2**40},
        {"memory_limit": -1},
        {"name": ToPickle(2**100)},
        {"name": ToPickle("\ud800")},
        {"name": "x" * (KEY_NBYTES_MAX + 1)},
        {"resources": {"GPU": math.nan}},
    ],
)
async def test_refused_worker_gets_the_reason(change: dict[str, Any]) -> None:
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "dashboard": False}
    async with Scheduler(**options) as scheduler:
        peer = await Peer.connect(scheduler)
        write(peer, {**registration(FAKE), **change})
        reply = (await peer.event()).value
        assert reply["status"] == "error" and next(iter(change)) in reply["message"]
        assert not scheduler.server.state.workers
        await assert_others_go_on(scheduler)


async def test_invalid_graph_fails_for_its_client() -> None:
    """Names that are too long or cannot be encoded, and priorities and resources without an order."""
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "dashboard": False}
    async with (
        Scheduler(**options) as scheduler,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        too_long = {"x" * (KEY_NBYTES_MAX + 1): (int, 1)}
        with pytest.raises(ValueError, match="65536 bytes"):
            await client.get({**too_long, "y-1": (sum, [*too_long])}, "y-1", sync=False)
        with pytest.raises(ValueError, match="UTF-8"):
            await client.get({"\ud800": (int, 1), "y-2": (sum, ["\ud800"])}, "y-2", sync=False)
        with pytest.raises(ValueError, match="NaN"):
            await client.submit(int, 1, priority=math.nan)
        with pytest.raises(ValueError, match="NaN"):
            await client.submit(int, 2, resources={"GPU": math.nan})
        assert not scheduler.server.state.tasks
        await assert_others_go_on(scheduler)
