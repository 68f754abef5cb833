"""Attributes of stock's ``Scheduler`` that programs use, on a real one with stock workers and a stock client."""

from __future__ import annotations

import asyncio
import math
import socket

import dask
import pytest
from distributed import Client, SchedulerPlugin, Worker
from distributed.cluster_dump import DumpArtefact
from distributed.comm import CommClosedError
from paceline.protocol.messages import Identity
from paceline.scheduler.server.scheduler import Scheduler


@pytest.fixture
async def scheduler():
    async with Scheduler(port=0, host="127.0.0.1", dashboard_address=":0") as made:
        yield made


@pytest.fixture
async def worker(scheduler):
    async with Worker(scheduler.address, name="alice", nthreads=1) as made:
        yield made


@pytest.fixture
async def client(scheduler):
    async with Client(scheduler.address, asynchronous=True) as made:
        yield made


async def test_settings_can_be_changed_on_the_object(scheduler, client, worker):
    scheduler.WORKER_SATURATION = math.inf
    assert scheduler.server.state.config.worker_saturation == math.inf
    assert scheduler.server.state.workers[worker.address].task_slots == math.inf

    def turn(dask_scheduler):
        dask_scheduler.allowed_failures = 7
        dask_scheduler.idle_timeout = "2 minutes"
        dask_scheduler.MEMORY_REBALANCE_HALF_GAP = 0.1
        return dask_scheduler.allowed_failures, dask_scheduler.MEMORY_REBALANCE_HALF_GAP

    assert await client.run_on_scheduler(turn) == (7, 0.1)
    assert scheduler.idle_timeout == 120 and scheduler.allowed_failures == 7
    assert scheduler.server.state.config.rebalance_gap == pytest.approx(0.2)
    with pytest.raises(ValueError, match="worker-saturation"):
        scheduler.WORKER_SATURATION = 0


async def test_periodic_callbacks_can_be_stopped_and_started(scheduler):
    for name in ("worker-ttl", "idle-timeout", "no-workers-timeout"):
        callback = scheduler.periodic_callbacks[name]
        assert callback.is_running()
        callback.stop()
        assert not callback.is_running()
        callback.start()
        assert callback.is_running()


async def test_addresses(scheduler, worker):
    assert scheduler.coerce_address("alice") == worker.address
    assert scheduler.coerce_address(("127.0.0.1", 8000)) == "tcp://127.0.0.1:8000"
    assert scheduler.coerce_address("zzzt:8000", resolve=False) == "tcp://zzzt:8000"
    assert scheduler.coerce_hostname("alice") == "127.0.0.1"
    assert scheduler.coerce_hostname("jimmy") == "jimmy"
    assert scheduler.ip == "127.0.0.1" and scheduler.address_safe == scheduler.address
    assert scheduler.workers_list(None) == [worker.address]
    assert scheduler.host_info["127.0.0.1"]["addresses"] == {worker.address}
    assert scheduler.get_worker_service_addr(worker.address, "nothing") is None
    port = worker.http_server.port
    assert scheduler.get_worker_service_addr(worker.address, "dashboard") == ("127.0.0.1", port)


async def test_ip_is_the_host_that_the_scheduler_listens_on():
    async with Scheduler(port=0, dashboard=False) as scheduler:
        assert scheduler.ip == "0.0.0.0" and "0.0.0.0" not in scheduler.address


async def test_lookups(scheduler, client, worker):
    [x] = await client.scatter([1])
    assert scheduler.get_who_has([x.key]) == {x.key: [worker.address]}
    assert scheduler.get_has_what() == {worker.address: [x.key]}
    assert scheduler.get_ncores() == scheduler.get_ncores_running() == {worker.address: 1}
    assert scheduler.get_processing() == {worker.address: []}
    assert scheduler.get_nbytes(summary=False) == {x.key: scheduler.tasks[x.key].nbytes}
    assert await scheduler.get_call_stack() == {}
    assert scheduler.idle_task_count == {scheduler.workers[worker.address]}
    ts = scheduler.tasks[x.key]
    assert not scheduler.is_rootish(ts)
    assert scheduler.valid_workers(ts) is None
    assert scheduler.get_comm_cost(ts, scheduler.workers[worker.address]) == 0
    assert scheduler.worker_objective(ts, scheduler.workers[worker.address])
    assert scheduler._to_dict()["tasks"][x.key]["state"] == "memory"
    assert "dashboard" in scheduler.service_ports
    assert worker.address in scheduler.workers[worker.address]._repr_html_()
    assert x.key in ts._repr_html_()
    assert scheduler.address in scheduler._repr_html_()
    assert scheduler._deque_handler.deque


async def test_topics_of_the_event_log(scheduler, client):
    topics = scheduler._broker._topics
    assert "mine" not in topics and topics["mine"].events == () and topics["mine"].count == 0
    client.subscribe_topic("mine", print)
    await client.log_event("mine", {"a": 1})
    while not topics["mine"].subscribers:
        await asyncio.sleep(0.01)
    assert topics["mine"].subscribers == {client.id} and "mine" in topics and "mine" in list(topics)
    assert [event for _, event in topics["mine"].events] == [{"a": 1}]
    client.unsubscribe_topic("mine")
    while topics["mine"].subscribers:
        await asyncio.sleep(0.01)
    scheduler.log_event("mine", "more")
    assert topics["mine"].count == 2 and len(topics) == len(list(topics))


async def test_data_is_moved_and_deleted(scheduler, client, worker):
    async with Worker(scheduler.address, nthreads=1) as other:
        [x] = await client.scatter([1], workers=[worker.address])
        assert await scheduler.gather_on_worker(other.address, {x.key: [worker.address]}) == set()
        assert len(scheduler.tasks[x.key].who_has) == 2
        assert await scheduler.gather_on_worker(other.address, {"y": [worker.address]}) == {"y"}
        await scheduler.delete_worker_data(worker.address, [x.key], stimulus_id="test")
        assert scheduler.get_who_has([x.key]) == {x.key: [other.address]}


async def test_empty_collections(scheduler):
    assert list(scheduler.preloads) == []
    assert scheduler.bandwidth_workers["tcp://a", "tcp://b"] == 0.0
    assert scheduler.bandwidth_types["int"] == 0.0


async def test_workers_are_sorted_by_address(scheduler, client, worker):
    async with Worker(scheduler.address), Worker(scheduler.address):
        while len(scheduler.idle) < 3:
            await asyncio.sleep(0.01)
        addresses = sorted(scheduler.server.state.workers)
        for workers in (scheduler.workers, scheduler.idle):
            assert list(workers) == list(workers.keys()) == addresses
            assert workers.keys()[0] == workers.values()[0].address == addresses[0]
            assert workers.keys()[1:] == addresses[1:] and workers.items()[1][0] == addresses[1]
            assert [ws.address for ws in workers.values()] == addresses
            assert workers.peekitem()[0] == workers.peekitem(2)[1].address == addresses[2]
            assert workers.keys() & {addresses[1], "x"} == {addresses[1]}


async def test_idle_since(scheduler, client, worker):
    await client.submit(lambda: 1)
    assert scheduler.check_idle() is None
    since = scheduler.check_idle()
    assert since is not None and scheduler.check_idle() == since


async def test_stream_of_a_worker_is_closed(scheduler, worker):
    stream = scheduler.stream_comms[worker.address]
    assert not stream.closed() and not stream.comm.closed()
    assert stream.comm.local_address == scheduler.address
    assert stream.comm.peer_address != scheduler.address
    stream.abort()
    while worker.address in scheduler.workers:
        await asyncio.sleep(0.01)
    assert stream.closed() and stream.comm.closed()
    with pytest.raises(CommClosedError):
        stream.send({"op": "free-keys", "keys": [], "stimulus_id": "s"})


async def test_restart_waits_for_actions_of_plugins_on_lost_workers(scheduler, client, worker):
    class Slow(SchedulerPlugin):
        removed = asyncio.Event()
        proceed = asyncio.Event()

        async def remove_worker(self, *args, **kwargs):
            self.removed.set()
            await self.proceed.wait()

    scheduler.add_plugin(Slow())
    restarting = asyncio.create_task(client.restart(timeout=0))
    await Slow.removed.wait()
    assert not scheduler.workers
    async with Worker(scheduler.address, nthreads=1):
        Slow.proceed.set()
        await restarting


async def test_stories_in_a_dump_are_those_of_the_scheduler(scheduler, client, worker, tmp_path):
    await client.submit(lambda: 1, key="x")
    await client.dump_cluster_state(str(tmp_path / "dump"), format="msgpack")
    dump = DumpArtefact.from_url(str(tmp_path / "dump.msgpack.gz"))
    told = [tuple(entry) for entry in dump.scheduler_story("x")["x"]]
    assert told[:2] == [tuple(entry) for entry in scheduler.story("x")][:2]
    assert dump.dump["scheduler"]["memory"]["process"] > 0


async def test_connect_timeout():
    with dask.config.set({"distributed.comm.timeouts.connect": "7s"}):
        async with Scheduler(port=0, host="127.0.0.1", dashboard_address=":0") as scheduler:
            assert scheduler.server.pool.connect_seconds == 7
    with socket.socket() as silent:  # accepts connections and never replies
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        async with Scheduler(
            port=0, host="127.0.0.1", dashboard_address=":0", timeout="100ms"
        ) as scheduler:
            with pytest.raises(
                OSError, match=f"Timed out trying to connect to {address} after 0.1 s"
            ):
                await scheduler.server.rpc_call(address, Identity())
