"""Invalid values in every field that peers send cause an error for their sender and do not affect others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import distributed
import msgspec
import pytest
from distributed.protocol import dumps
from distributed.protocol.serialize import ToPickle
from paceline.protocol.catalogue import TABLES
from paceline.protocol.keys import KEY_NBYTES_MAX
from paceline.scheduler import Scheduler
from tornado.httpclient import AsyncHTTPClient

from tests.support.fake_peers import Peer, registration

#: Values that are invalid for most fields. Those that msgpack cannot encode are pickled, as stock does.
ODD: list[Any] = [
    math.nan, math.inf, -math.inf, 1e308, 5e-324, -1, 2**63, 2**64 - 1, 1.5, True, None, "", "\x00", "é",
    "x" * (KEY_NBYTES_MAX + 1), b"\xff", [], {}, [math.nan], {"a": math.nan}, {"addresses": 5}, {1: 2}, ["a", ["b", {}]],
    ToPickle(2**100), ToPickle("\ud800"), ToPickle([1]), ToPickle(("\ud800", 1)), {"a": ToPickle("\ud800")},
    {"a": ToPickle(2**100)}, {"__Set__": True, "as-list": [{}]}, {"__Serialized__": 7},
]  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FAKE = "tcp://127.0.0.1:1"


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(**options, dashboard=False) as scheduler:
        yield scheduler


class Cluster:
    """Start a scheduler with a stock worker and client, which must not be affected."""

    def __init__(self, scheduler: Scheduler, worker: Any, client: Any) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self.client = client
        self.n = 0

    async def page(self, path: str) -> bytes:
        url = f"http://127.0.0.1:{self.scheduler.http_server.port}{path}"
        return (await AsyncHTTPClient().fetch(url, request_timeout=30)).body

    async def check(self, what: Any) -> None:
        """Check that everything that other peers use still works."""
        try:
            async with asyncio.timeout(30):
                await self._check()
        except BaseException as error:
            error.add_note(f"after {what!r}"[:500])
            raise

    async def _check(self) -> None:
        self.n += 1
        client = self.client
        # a message of a fake peer has been handled when the scheduler answers a later one
        future = client.submit(sum, [1, self.n], workers=[self.worker.address], key=f"sum-{self.n}")
        assert await future == 1 + self.n
        info = await client.scheduler.identity()
        assert self.worker.address in info["workers"]
        assert await client.scheduler.who_has(keys=None)
        assert self.worker.address in await client.scheduler.has_what(workers=None)
        assert await client.scheduler.ncores(workers=None)
        assert await client.scheduler.nbytes(keys=None, summary=True)
        assert await self.page("/health") == b"ok"
        json.loads(await self.page("/json/counts.json"))
        assert await self.page("/metrics")

    async def check_pages(self, what: Any) -> None:
        """Check pages and dumps, which takes longer."""
        try:
            address = quote(self.worker.address, safe="")
            fake = quote(FAKE, safe="")
            for page in ("main/workers", "main/exceptions", "main/logs", f"worker/{address}"):
                assert await self.page(f"/info/{page}.html")
            if FAKE in self.scheduler.server.state.workers:
                assert await self.page(f"/info/worker/{fake}.html")
            json.loads(await self.page("/json/identity.json"))
            assert await self.client.scheduler.dump_state(exclude=[])
            assert await self.client.scheduler.events(topic=None) is not None
            assert await self.client.scheduler.adaptive_target() is not None
            async with distributed.Client(self.scheduler.address, asynchronous=True) as other:
                assert await other.submit(int, 7, workers=[self.worker.address], pure=False) == 7
        except BaseException as error:
            error.add_note(f"after {what!r}"[:500])
            raise


@pytest.fixture
async def cluster(scheduler: Scheduler) -> AsyncIterator[Cluster]:
    async with (
        distributed.Worker(scheduler.address, name="real", dashboard_address=None) as worker,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        yield Cluster(scheduler, worker, client)


def write(peer: Peer, message: Any) -> None:
    """Send a message that no encoder of ours would write."""
    peer.write([bytes(frame) for frame in dumps(message)])


async def connect_worker(scheduler: Scheduler) -> Peer:
    peer = await Peer.connect(scheduler)
    write(peer, registration(FAKE, "fake"))
    assert (await peer.event()).value["status"] == "OK"
    peer.connection.become_stream("worker")
    return peer


async def connect_client(scheduler: Scheduler) -> Peer:
    peer = await Peer.connect(scheduler)
    peer.send_raw({"op": "register-client", "client": "fake", "reply": False, "versions": {}})
    peer.connection.become_stream("client")
    await peer.messages()
    return peer


def fields(direction: Any, op: str) -> list[str]:
    return [f.encode_name for f in msgspec.structs.fields(TABLES[direction][op].cls)]


VALID: dict[str, Any] = {
    "key": "k", "keys": ["k"], "worker": FAKE, "client": "fake", "topic": "t", "name": "n", "msg": {"a": 1},
    "status": "running", "status_task": "OK", "run_id": 1, "nbytes": 1, "who_has": {"k": [FAKE]}, "uid": "u", "address": FAKE,
    "stimulus_id": "s", "reply": True, "close": False, "startstops": [], "expr_ser": b"",
}  # fmt: skip


def message_of(direction: Any, op: str, name: str, value: Any) -> dict[str, Any]:
    """Return a message that is valid except for one field."""
    present = {n: VALID[n] for n in fields(direction, op) if n in VALID}
    if op == "update-data":
        present["nbytes"] = {"k": 1}
    return {**present, "op": op, name: value}


WORKER_OPS = sorted(set(TABLES["worker_to_scheduler"]) - {"close-stream"})


@pytest.mark.parametrize("op", WORKER_OPS)
async def test_streams_of_workers(op: str, cluster: Cluster) -> None:
    """Test each field of each message, for a task that the worker computes."""
    peer = await connect_worker(cluster.scheduler)
    state = cluster.scheduler.server.state
    for name in fields("worker_to_scheduler", op):
        future = cluster.client.submit(int, 5, workers=[FAKE], key="k")
        for _ in range(500):
            if "k" in state.tasks and state.tasks["k"].state == "processing":
                break
            await asyncio.sleep(0.01)
        for value in ODD:
            message = message_of("worker_to_scheduler", op, name, value)
            if "run_id" in message and name != "run_id" and "k" in state.tasks:
                message["run_id"] = state.tasks["k"].run_id
            write(peer, [message])
        await cluster.check((op, name))
        del future
        write(peer, [{"op": "worker-status-change", "status": "running", "stimulus_id": "s"}])
    await cluster.check_pages(op)
    peer.writer.close()


CLIENT_OPS = sorted(set(TABLES["client_to_scheduler"]) - {"close-stream", "close-client"})


@pytest.mark.parametrize("op", CLIENT_OPS)
async def test_streams_of_clients(op: str, cluster: Cluster) -> None:
    peer = await connect_client(cluster.scheduler)
    for name in fields("client_to_scheduler", op):
        for value in ODD:
            write(peer, [message_of("client_to_scheduler", op, name, value)])
        await cluster.check((op, name))
    await cluster.check_pages(op)
    peer.writer.close()


@pytest.mark.parametrize("op", ["heartbeat_worker", "register-worker"])
async def test_attributes_of_workers(op: str, cluster: Cluster) -> None:
    """Test each attribute of a registering worker, and each known member of those that are maps."""
    stream = await connect_worker(cluster.scheduler) if op == "heartbeat_worker" else None
    base = registration(FAKE, "fake")
    if op == "heartbeat_worker":
        base = {"op": op, "address": FAKE, "now": 1.0, "metrics": base["metrics"], "reply": True}
    changes: list[tuple[str, Any]] = [(n, v) for n in fields("scheduler_rpc", op) for v in ODD]
    members = {
        "metrics": ["bandwidth", "memory", "cpu", "spilled_bytes", "digests_total_since_heartbeat", "transfer",
                    "task_counts", "memory_domain", "event_loop_interval", "time", "host_net_io"],
        "host_info": ["addresses", "nthreads", "last-seen", "cpu"],
        "extra": ["type", "nthreads", "id", "metrics", "mine"],
        "services": ["dashboard"], "versions": ["packages", "host"], "extensions": ["spans", "shuffle"],
        "executing": ["k"], "resources": ["GPU"],
    }  # fmt: skip
    for name in fields("scheduler_rpc", op):
        for member in members.get(name, ()):
            changes += [(name, {member: value}) for value in ODD]
    for part in ("total", "workers", "types"):
        changes += [("metrics", {"bandwidth": {part: value}}) for value in ODD]
    changes += [("metrics", {"bandwidth": {"types": {"int": [v, 1]}}}) for v in ODD]
    changes += [("metrics", {"bandwidth": {"types": {"int": [1, v]}}}) for v in ODD]
    for number, (name, value) in enumerate(changes):
        if name in ("reply", "close", "address"):
            continue
        peer = await Peer.connect(cluster.scheduler)
        write(peer, {**base, name: value})
        with contextlib.suppress(EOFError):
            await peer.event()
        if op == "register-worker" and FAKE in cluster.scheduler.server.state.workers:
            if number % 20 == 0:
                await cluster.check_pages((name, value))
            await cluster.check((name, value))
        elif number % 20 == 0:
            await cluster.check((name, value))
        peer.writer.close()
        while op == "register-worker" and FAKE in cluster.scheduler.server.state.workers:
            await asyncio.sleep(0.001)
        assert op != "register-worker" or len(cluster.scheduler.server.state.host_info) == 1
    await cluster.check(op)
    await cluster.check_pages(op)
    if stream is not None:
        stream.writer.close()


RPC_OPS = sorted(
    set(TABLES["scheduler_rpc"])
    - {"register-worker", "register-client", "heartbeat_worker", "terminate", "close", "restart", "unregister",
       "connection_stream", "feed", "subscribe_worker_status", "dump_cluster_state_to_url", "retire_workers",
       "restart_workers", "benchmark_hardware", "broadcast", "proxy"}
)  # fmt: skip


@pytest.mark.parametrize("op", RPC_OPS)
async def test_requests(op: str, cluster: Cluster) -> None:
    """Test each field of each request that changes or queries something."""
    peers = []
    for name in fields("scheduler_rpc", op):
        if name in ("reply", "close", "serializers"):
            continue
        for value in ODD:
            peer = await Peer.connect(cluster.scheduler)
            peers.append(peer)
            write(peer, message_of("scheduler_rpc", op, name, value))
        await cluster.check((op, name))
        for peer in peers:
            peer.writer.close()
        peers.clear()
    await cluster.check_pages(op)
