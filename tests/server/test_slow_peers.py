"""Slow readers: workers get no new tasks, clients get only the latest report of each key."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from typing import Any

import cloudpickle
import dask.config
import pytest
from dask._expr import LLGExpr
from paceline.protocol import messages as m
from paceline.protocol.payload import serialized_payload
from paceline.scheduler.server.peers import client_stream, slow_peers
from paceline.scheduler.server.peers.slow_peers import SlowClientBuffer, UnreadTimer
from paceline.scheduler.server.scheduler import Scheduler

from tests.support.fake_peers import Peer, client, until, worker


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as made:
        yield made


def test_backlog_keeps_the_latest_report_per_key(monkeypatch: Any, caplog: Any) -> None:
    log = SlowClientBuffer("c")
    log.add([m.KeyInMemory(key="a"), m.KeyInMemory(key="b"), m.LostData(key="a")])
    log.add([m.CancelledKeys(keys=["b"]), m.KeyInMemory(key="a"), m.KeyInMemory(key="b")])
    assert log.take(1000) == [
        m.CancelledKeys(keys=["b"]),
        m.KeyInMemory(key="a"),
        m.KeyInMemory(key="b"),
    ]
    assert log.take(1000) == []
    monkeypatch.setattr(slow_peers, "EVENTS_MAX", 3)
    with caplog.at_level(logging.WARNING, "distributed.scheduler"):
        log.add([m.Event(topic="t", event=i) for i in range(10)])
        assert [x.event for x in log.take(1000)] == [7, 8, 9]
    assert "dropped 7 events for it" in caplog.text


def test_dropping_an_event_costs_the_same_with_many_key_reports(monkeypatch: Any) -> None:
    monkeypatch.setattr(slow_peers, "EVENTS_MAX", 10)

    def cost(n_keys: int) -> int:
        log = SlowClientBuffer("c")
        log.add([m.KeyInMemory(key=i) for i in range(n_keys)])
        events = [m.Event(topic="t", event=i) for i in range(200)]
        n_lines = 0

        def step(frame: Any, event: str, argument: Any) -> Any:
            # Garbage collections run finalizers of other modules at any line.
            nonlocal n_lines
            if frame.f_globals is not vars(slow_peers):
                return None
            n_lines += event == "line"
            return step

        before = sys.gettrace()
        sys.settrace(step)
        try:
            log.add(events)
        finally:
            sys.settrace(before)
        assert len(log) == n_keys + 10
        return n_lines

    assert cost(2000) == cost(20) > 200


def test_the_size_of_events_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(slow_peers, "EVENTS_MAX_NBYTES", 10_000)
    log = SlowClientBuffer("c")
    log.add([m.Event(topic="t", event=(float(i), {"x": ["y" * 3000]})) for i in range(100)])
    assert [x.event[0] for x in log.take(1000)] == [98, 99]


def test_the_size_of_a_backlog_counts_shared_payloads_once() -> None:
    log = SlowClientBuffer("c")
    error = serialized_payload({"serializer": "pickle"}, [b"x" * 1_000_000])
    log.add([m.TaskErredReport(key=i, exception=error, traceback=error) for i in range(100)])
    assert 1_000_000 < log.nbytes < 1_100_000
    log.add([m.TaskRetried(key=i) for i in range(100)])
    assert 0 < log.nbytes < 100_000
    log.add([m.TaskErredReport(key=0, exception=error)])
    assert log.nbytes > 1_000_000
    assert len(log.take(1000)) == 100
    assert (log.nbytes, log._payload_uses) == (0, {})


def peers(scheduler: Scheduler) -> list[Any]:
    return [comm.events for comm in scheduler.server.transport.comms]


def stop_reading(peer: Peer) -> None:
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]


def read_on(peer: Peer) -> None:
    peer.writer.transport.resume_reading()  # type: ignore[attr-defined]


async def test_backpressured_worker_gets_no_new_tasks_and_is_not_lost(scheduler: Scheduler) -> None:
    slow = await worker(scheduler)
    submitter = await client(scheduler)
    stop_reading(slow)
    blob = b"x" * 3_000_000
    for i in range(6):
        expr = LLGExpr({f"big-{i}": (len, blob + str(i).encode())})
        payload = serialized_payload(
            {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(expr)]
        )
        submitter.send([m.UpdateGraph(expr_ser=payload, keys=[f"big-{i}"])])
    (ws,) = scheduler.workers.values()
    await until(lambda: ws.backpressured)
    other = await worker(scheduler, address="tcp://127.0.0.1:2", name="bob")
    expr = LLGExpr({"small": (len, "x")})
    payload = serialized_payload(
        {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(expr)]
    )
    submitter.send([m.UpdateGraph(expr_ser=payload, keys=["small"])])
    seen: list[Any] = []
    while not any(x.key == "small" for x in seen):
        seen += [x for x in await other.messages() if type(x) is m.ComputeTask]
    read_on(slow)
    slow_seen: list[Any] = []
    while ws.backpressured:
        slow_seen += await slow.messages()
    assert "tcp://127.0.0.1:1" in scheduler.workers


async def test_slow_client_gets_the_latest_report(scheduler: Scheduler) -> None:
    slow = await client(scheduler, "slow")
    slow.send([m.SubscribeTopic(topic="t")])
    await until(lambda: "t" in scheduler.server.state.events.subscribers)
    stop_reading(slow)
    requester = await Peer.connect(scheduler)
    stream: Any = scheduler.server.driver.client_streams["slow"]
    filler = "x" * 1_000_000
    while not stream.peer.write_paused:
        await requester.request({"op": "log_event", "topic": "t", "msg": filler})
    stream.send([m.KeyInMemory(key="k", type=i) for i in range(1000)])
    assert len(stream._buffer) <= 3
    read_on(slow)
    last: list[Any] = []
    while not any(type(x) is m.KeyInMemory for x in last):
        last = await slow.messages()
    assert [x.type for x in last if type(x) is m.KeyInMemory] == [999]


async def test_a_client_whose_backlog_is_too_large_is_closed(
    scheduler: Scheduler, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(slow_peers, "KEPT_MAX_NBYTES", 100_000)
    slow = await client(scheduler, "slow")
    stream: Any = scheduler.server.driver.client_streams["slow"]
    stream.peer.write_paused = True
    with caplog.at_level(logging.WARNING, "distributed.scheduler"):
        stream.send([m.CancelledKeys(keys=["k" * 1000 for _ in range(100)])])
        assert await slow.ended()
    await until(lambda: "slow" not in scheduler.server.driver.client_streams)
    assert "100000 bytes" in caplog.text


async def test_messages_of_a_worker_that_does_not_read_are_encoded_later(
    scheduler: Scheduler,
) -> None:
    slow = await worker(scheduler)
    stop_reading(slow)
    (stream,) = scheduler.server.driver.worker_streams.values()
    comm = stream.peer.comm  # type: ignore[attr-defined]
    keys = [f"{i:05}" + "x" * 50_000 for i in range(2000)]
    stream.send([m.FreeKeys(keys=[key], stimulus_id="s") for key in keys])
    assert comm.unwritten_nbytes < 20_000_000
    assert not comm._transport.is_reading()
    stream.send([m.FreeKeys(keys=["last"], stimulus_id="s")])
    (ws,) = scheduler.workers.values()
    await until(lambda: ws.backpressured)
    read_on(slow)
    got: list[Any] = []
    while got[-1:] != ["last"]:
        batch = await slow.event()
        for part in (batch.messages, *(batch.more or ())):
            got += [key for x in part for key in x.keys]
    assert got == [*keys, "last"]
    await until(lambda: not ws.backpressured and comm._transport.is_reading())


async def test_requests_wait_while_their_replies_are_not_read(scheduler: Scheduler) -> None:
    requester = await Peer.connect(scheduler)
    await requester.request({"op": "set_metadata", "keys": ["blob"], "value": "x" * 1_000_000})
    stop_reading(requester)
    asked = scheduler.server.rpc_counts
    for _ in range(200):
        requester.send_raw({"op": "get_metadata", "keys": ["blob"]})
    requester.send_raw({"op": "ncores"})
    await until(lambda: any(peer.write_paused for peer in peers(scheduler)))
    (peer,) = [peer for peer in peers(scheduler) if peer.write_paused]
    assert peer.comm.unwritten_nbytes < 8_000_000
    assert sum(asked.values()) < 100
    read_on(requester)
    for _ in range(200):
        assert len((await requester.event()).value) == 1_000_000
    assert (await requester.event()).value == {}


async def test_a_feed_waits_while_it_is_not_read(scheduler: Scheduler) -> None:
    requester = await Peer.connect(scheduler)
    stop_reading(requester)
    function = cloudpickle.dumps(lambda scheduler: "x" * 1_000_000)
    requester.send_raw({"op": "feed", "function": function, "interval": 0.01})
    await until(lambda: any(peer.write_paused for peer in peers(scheduler)))
    (peer,) = [peer for peer in peers(scheduler) if peer.write_paused]
    waiting = asyncio.create_task(peer.drained())
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert not waiting.done()
    assert peer.comm.unwritten_nbytes < 8_000_000
    read_on(requester)
    while not waiting.done():
        await requester.event()
    requester.writer.close()


async def test_a_worker_that_reads_nothing_is_closed(caplog: Any) -> None:
    config = {"paceline.scheduler.unread-timeout": "50 ms"}
    with dask.config.set(config), caplog.at_level(logging.WARNING, "distributed.scheduler"):
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
            slow = await worker(scheduler)
            stop_reading(slow)
            (stream,) = scheduler.server.driver.worker_streams.values()
            stream.send([m.FreeKeys(keys=["x" * 30_000_000], stimulus_id="s")])
            await until(lambda: not scheduler.workers)
    assert "has read nothing for 0.05 s" in caplog.text


async def test_timer_of_unread_data_restarts_when_the_peer_reads() -> None:
    left = [30, 20, 20]
    expired: list[float] = []
    with dask.config.set({"paceline.scheduler.unread-timeout": "1 ms"}):
        timer = UnreadTimer(lambda: left.pop(0) if len(left) > 1 else left[0], expired.append)
    timer.start()
    await until(lambda: expired)
    assert (left, expired) == ([20], [0.001])
    timer.start()
    timer.stop()
    with dask.config.set({"paceline.scheduler.unread-timeout": 0}):
        UnreadTimer(lambda: 20, expired.append).start()
    await asyncio.sleep(0.01)
    assert expired == [0.001]


async def test_messages_to_a_client_wait_until_it_has_read_a_reply(scheduler: Scheduler) -> None:
    peer = await client(scheduler, "c")
    stream: Any = scheduler.server.driver.client_streams["c"]
    replies = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for reply in replies:
        stream.pause_until_read(reply)
        stream.send([m.KeyInMemory(key="k", type="str")])
    replies[0].set_result(None)
    await asyncio.sleep(3 * client_stream.READ_SECONDS)
    assert len(stream._buffer) == 1
    replies[1].set_result(None)
    (message,) = await peer.messages()
    assert message.key == "k"
    stream.send([m.KeyInMemory(key="k", type="int")])
    assert not stream._buffer


async def test_results_wait_until_the_client_has_read_which_tasks_are_retried(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_stream, "READ_SECONDS", 1.0)
    peer = await client(scheduler, "c")
    requester = await Peer.connect(scheduler)
    stream: Any = scheduler.server.driver.client_streams["c"]
    peer.send(m.ClientDesiresKeys(keys=["k"], client="c"))
    await until(lambda: "k" in scheduler.server.state.tasks)
    assert await requester.request({"op": "retry", "keys": ["k"], "client": "c"}) == ()
    stream.send([m.KeyInMemory(key="k", type="str")])
    assert len(stream._buffer) == 1
    assert [message.key for message in await peer.messages()] == ["k"]


@pytest.mark.parametrize("failing", ["add", "take"])
async def test_no_memory_for_messages_closes_only_that_connection(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: Any, failing: str
) -> None:
    def fail(*args: Any) -> None:
        raise MemoryError

    slow, other = [await client(scheduler, name) for name in ("slow", "other")]
    for peer in (slow, other):
        peer.send([m.SubscribeTopic(topic="t")])
    subscribers = scheduler.server.state.events.subscribers
    await until(lambda: len(subscribers.get("t", ())) == 2)
    monkeypatch.setattr(SlowClientBuffer, failing, fail)
    stream: Any = scheduler.server.driver.client_streams["slow"]
    stream.peer.pause_writing()
    scheduler.log_event("t", 1)
    assert [message.event[1] for message in await other.messages()] == [1]
    stream.peer.resume_writing()
    assert await slow.ended()
    await until(lambda: "slow" not in scheduler.server.driver.client_streams)
    assert "Internal error while writing to" in caplog.text and "MemoryError" in caplog.text
