"""The profile of the scheduler's event loop, taken while a client requests it."""

from __future__ import annotations

import time

import dask
import pytest
from paceline.workers_compat import loop_profile
from paceline.workers_compat.loop_profile import LoopProfile, Periods


@pytest.fixture
def mine(monkeypatch):
    monkeypatch.setattr(loop_profile, "SAFE", True)
    monkeypatch.setattr(
        loop_profile, "OMITTED", ()
    )  # the name of this file ends like those that are left out
    with dask.config.set({"distributed.worker.profile.cycle": "20ms"}):
        found = LoopProfile()
        yield found
        found.close()


def spin_until(done) -> None:
    """Run in the sampled thread without sleeping."""
    deadline = time.monotonic() + 20
    while not done() and time.monotonic() < deadline:
        sum(range(10_000))


def frames(tree) -> set:
    return {tree["description"]["name"]}.union(*map(frames, tree["children"].values()))


def test_profile_shows_the_functions_of_a_thread(mine):
    assert mine.get()["count"] == 0
    spin_until(lambda: mine.get()["count"] > 5)
    assert "spin_until" in frames(mine.get())
    assert mine.get(start=time.time() + 100)["count"] == 0


def test_consecutive_periods(mine):
    log = Periods(mine)
    spin_until(lambda: len(log) > 1 and any("spin_until" in frames(tree) for _, tree in log))
    first, second, *_ = mine.periods()
    assert mine.periods(after=first[0], most=1) == [second] == [log[1]]
    assert [when for when, _ in log] == sorted(when for when, _ in log)
    assert any("spin_until" in frames(tree) for _, tree in log)


def test_no_samples_if_sampling_is_unsafe(mine, monkeypatch):
    monkeypatch.setattr(loop_profile, "SAFE", False)
    assert mine.get()["count"] == 0 and mine.periods() == []
    assert not mine.running


def test_profiling_stops_without_requests(mine, monkeypatch):
    mine.start()
    assert mine.running
    monkeypatch.setattr(loop_profile, "UNUSED_SECONDS", 0.0)
    spin_until(lambda: not mine.running)
    assert not mine.running
    monkeypatch.setattr(loop_profile, "UNUSED_SECONDS", 600.0)
    mine.start()
    assert mine.running
    mine.close()
    spin_until(lambda: not mine.running)
    mine.start()
    assert not mine.running


def test_profiling_can_be_disabled():
    with dask.config.set({"distributed.worker.profile.enabled": False}):
        quiet = LoopProfile()
        assert quiet.get()["count"] == 0
        assert not quiet.running
