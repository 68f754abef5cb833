"""Measured rates of connections, and whether compression pays at them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from paceline.transfer.direct import LinkRates

MB = 1_000_000
PEER = ("10.0.0.2", 1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def paces(clock: Clock) -> LinkRates:
    return LinkRates(clock)


def move(
    paces: LinkRates, clock: Clock, megabytes: int, seconds: float, packs: bool = False
) -> None:
    with paces.moving(PEER, packs, megabytes * MB):
        clock.now += seconds


def test_compression_is_tried_on_slow_connections_and_kept_if_faster(
    paces: LinkRates, clock: Clock
) -> None:
    assert not paces.should_compress(PEER)  # not measured yet
    move(paces, clock, 100, 0.1)
    assert not paces.should_compress(PEER)  # a fast connection
    move(paces, clock, 100, 3.0)
    assert paces.should_compress(PEER)  # a slow connection
    assert not paces.should_compress("another")
    move(paces, clock, 100, 1.0, packs=True)
    assert paces.should_compress(PEER)
    move(paces, clock, 100, 9.0, packs=True)
    assert not paces.should_compress(PEER)  # compression was not faster
    paces.forget()
    assert paces.speed(PEER, False) is None and not paces.should_compress(PEER)


def test_parallel_transfers_count_as_one_connection(paces: LinkRates, clock: Clock) -> None:
    with ExitStack() as coming:
        for _ in range(4):
            coming.enter_context(paces.moving(PEER, False, 100 * MB))
        clock.now += 1.0
    assert paces.speed(PEER, False) == 400 * MB
    clock.now += 100.0  # no bytes received: gives no measurement
    assert paces.speed(PEER, False) == 400 * MB


def test_small_and_failed_values_are_not_measured(paces: LinkRates, clock: Clock) -> None:
    move(paces, clock, 1, 1.0)
    with pytest.raises(OSError), paces.moving(PEER, False, 100 * MB):
        raise OSError
    assert paces.speed(PEER, False) is None


def test_running_transfers_are_not_forgotten(paces: LinkRates, clock: Clock) -> None:
    with paces.moving(PEER, True, 100 * MB):
        paces.forget()
        clock.now += 1.0
    assert paces.speed(PEER, True) == 100 * MB
