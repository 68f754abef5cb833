"""Peers that read slowly: workers get no new tasks, clients get the latest word."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import cloudpickle
import pytest
from dask._expr import LLGExpr
from fake_peers import Peer, client, worker
from paceline.protocol import messages as m
from paceline.protocol.payload import serialized_payload
from paceline.scheduler.server import backlog
from paceline.scheduler.server.backlog import ClientBacklog
from paceline.scheduler.server.scheduler import Scheduler


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as made:
        yield made


def test_the_backlog_keeps_the_latest_word_per_key(monkeypatch: Any, caplog: Any) -> None:
    log = ClientBacklog("c")
    log.add([m.KeyInMemory(key="a"), m.KeyInMemory(key="b"), m.LostData(key="a")])
    log.add([m.CancelledKeys(keys=["b"]), m.KeyInMemory(key="a"), m.KeyInMemory(key="b")])
    assert log.take() == [
        m.CancelledKeys(keys=["b"]),
        m.KeyInMemory(key="a"),
        m.KeyInMemory(key="b"),
    ]
    assert log.take() == []
    monkeypatch.setattr(backlog, "EVENTS_MAX", 3)
    with caplog.at_level(logging.WARNING, "distributed.scheduler"):
        log.add([m.Event(topic="t", event=i) for i in range(10)])
        assert [x.event for x in log.take()] == [7, 8, 9]
    assert "7 events for it were dropped" in caplog.text


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def stop_reading(peer: Peer) -> None:
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]


def read_on(peer: Peer) -> None:
    peer.writer.transport.resume_reading()  # type: ignore[attr-defined]


async def test_a_clogged_worker_gets_no_new_tasks_and_is_not_lost(scheduler: Scheduler) -> None:
    slow = await worker(scheduler)
    submitter = await client(scheduler)
    stop_reading(slow)
    blob = b"x" * 3_000_000
    for i in range(6):
        expr = LLGExpr({f"big-{i}": (len, blob + str(i).encode())})
        payload = serialized_payload(
            {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(expr)]
        )
        submitter.say([m.UpdateGraph(expr_ser=payload, keys=[f"big-{i}"])])
    (ws,) = scheduler.workers.values()
    await until(lambda: ws.clogged)
    other = await worker(scheduler, address="tcp://127.0.0.1:2", name="bob")
    expr = LLGExpr({"small": (len, "x")})
    payload = serialized_payload(
        {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(expr)]
    )
    submitter.say([m.UpdateGraph(expr_ser=payload, keys=["small"])])
    seen: list[Any] = []
    while not any(x.key == "small" for x in seen):
        seen += [x for x in await other.messages() if type(x) is m.ComputeTask]
    read_on(slow)
    slow_seen: list[Any] = []
    while ws.clogged:
        slow_seen += await slow.messages()
    assert "tcp://127.0.0.1:1" in scheduler.workers


async def test_a_slow_client_gets_the_latest_word(scheduler: Scheduler) -> None:
    slow = await client(scheduler, "slow")
    slow.say([m.SubscribeTopic(topic="t")])
    await until(lambda: "t" in scheduler.server.state.events.subscribers)
    stop_reading(slow)
    asker = await Peer.dial(scheduler)
    stream: Any = scheduler.server.driver.client_streams["slow"]
    filler = "x" * 1_000_000
    while not stream._slow:
        await asker.ask({"op": "log_event", "topic": "t", "msg": filler})
    stream.send([m.KeyInMemory(key="k", type=i) for i in range(1000)])
    assert len(stream._backlog) <= 3
    read_on(slow)
    last: list[Any] = []
    while not any(type(x) is m.KeyInMemory for x in last):
        last = await slow.messages()
    assert [x.type for x in last if type(x) is m.KeyInMemory] == [999]
