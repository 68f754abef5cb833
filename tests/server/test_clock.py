"""The scheduler's clock, and the effect of a jump of the wall clock on a cluster."""

from __future__ import annotations

import asyncio
import time

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core import stimuli
from paceline.scheduler.server.runtime.clock import FOLLOW_RATE, SteadyClock
from paceline.scheduler.server.scheduler import Scheduler

from tests.support.fake_peers import client, worker

HOUR = 3600.0


class FakeClocks:
    """A wall clock and a monotonic clock that tests advance."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1e9, 50.0
        self.steady = SteadyClock(lambda: self.wall, lambda: self.monotonic)

    def advance(self, seconds: float) -> float:
        self.wall += seconds
        self.monotonic += seconds
        return self.steady()


def test_clock_shows_wall_time() -> None:
    clocks = FakeClocks()
    for _ in range(100):
        assert clocks.advance(0.25) == pytest.approx(clocks.wall, abs=1e-6)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_jump_is_followed_slowly(jump: float) -> None:
    clocks = FakeClocks()
    before = clocks.steady()
    clocks.wall += jump
    assert clocks.steady() == before
    assert abs(clocks.advance(100) - before - 100) == pytest.approx(100 * FOLLOW_RATE)
    for _ in range(1_000):
        now = clocks.steady()
        assert clocks.advance(20) > now
    assert clocks.steady() == pytest.approx(clocks.wall, abs=1e-3)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_jump_removes_no_worker_and_no_client(jump: float) -> None:
    shift = 0.0

    async with Scheduler(
        host="127.0.0.1", port=0, dashboard=False, idle_timeout="10 minutes"
    ) as scheduler:
        driver = scheduler.server.driver
        assert type(driver.clock) is SteadyClock
        driver.clock = SteadyClock(lambda: time.time() + shift)
        bob = await worker(scheduler)
        alice = await client(scheduler)
        alice.send([m.HeartbeatClient()])
        alice.send([m.ClientDesiresKeys(keys=["x"], client="client-1")])
        while "x" not in scheduler.server.state.tasks:
            await asyncio.sleep(0.01)
        shift = jump
        for _ in range(3):
            scheduler.server.send_stimulus(stimuli.Tick())
        await asyncio.sleep(0)
        assert list(scheduler.server.state.workers) == ["tcp://127.0.0.1:1"]
        assert not scheduler.server.state.clients["client-1"].heartbeat_overdue
        assert scheduler.status.name == "running"
        bob.writer.close()
