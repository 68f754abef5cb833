"""The memory sampler runs while a client uses it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from paceline.protocol.messages import HeartbeatWorker
from paceline.scheduler.core.stimuli import ClientJoined, ClientRemoved, WorkerHeartbeat
from paceline.scheduler.server.requests import memory_sampler


def beat(server: Any, address: str, nbytes: int) -> None:
    message = HeartbeatWorker(address=address, metrics={"memory": nbytes})
    server.send_stimulus(WorkerHeartbeat(address, message), address)


async def test_it_samples_until_it_is_stopped(server: Any) -> None:
    server.send_stimulus(ClientJoined("c"), "c")
    a, b = server.add_worker(1), server.add_worker(2)
    beat(server, a, 100)
    key = memory_sampler.start(server, "c", "process", 0.01)
    beat(server, b, 50)
    samples = server.request_state.memory_samplers[key].samples
    while len(samples) < 3:
        await asyncio.sleep(0.005)
    found = memory_sampler.stop(server, key)
    assert [nbytes for _, nbytes in found[:3]] == [100, 150, 150]
    assert [when for when, _ in found] == sorted(when for when, _ in found)
    count = len(found)
    await asyncio.sleep(0.05)
    assert len(found) == count
    with pytest.raises(KeyError):
        memory_sampler.stop(server, key)


async def test_it_ends_with_its_client(server: Any) -> None:
    server.send_stimulus(ClientJoined("c"), "c")
    memory_sampler.start(server, "c", "optimistic", 0)
    server.send_stimulus(ClientRemoved("c"), "c")
    while server.request_state.memory_samplers:
        await asyncio.sleep(0.005)


async def test_it_ends_at_its_limit(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_sampler, "SAMPLES_MAX", 2)
    server.send_stimulus(ClientJoined("c"), "c")
    key = memory_sampler.start(server, "c", "managed", 0)
    await server.request_state.memory_samplers[key].task
    assert len(memory_sampler.stop(server, key)) == 2


async def test_an_unknown_measure(server: Any) -> None:
    with pytest.raises(ValueError, match="measure must be one of"):
        memory_sampler.start(server, "c", "_private", 1)
