"""Measured rates of connections, and whether compression pays at them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from paceline.transfer.link_rates import LinkRates

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
def rates(clock: Clock) -> LinkRates:
    return LinkRates(clock)


def move(
    rates: LinkRates, clock: Clock, megabytes: int, seconds: float, compress: bool = False
) -> None:
    with rates.moving(PEER, compress, megabytes * MB):
        clock.now += seconds


def test_compression_is_tried_on_slow_connections_and_kept_if_faster(
    rates: LinkRates, clock: Clock
) -> None:
    assert not rates.should_compress(PEER)  # not measured yet
    move(rates, clock, 100, 0.1)
    assert not rates.should_compress(PEER)  # a fast connection
    move(rates, clock, 100, 3.0)
    assert rates.should_compress(PEER)  # a slow connection
    assert not rates.should_compress("another")
    move(rates, clock, 100, 1.0, compress=True)
    assert rates.should_compress(PEER)
    move(rates, clock, 100, 9.0, compress=True)
    assert not rates.should_compress(PEER)  # compression was not faster
    rates.forget()
    assert rates.rate(PEER, False) is None and not rates.should_compress(PEER)


def test_parallel_transfers_count_as_one_connection(rates: LinkRates, clock: Clock) -> None:
    with ExitStack() as n_receiving:
        for _ in range(4):
            n_receiving.enter_context(rates.moving(PEER, False, 100 * MB))
        clock.now += 1.0
    assert rates.rate(PEER, False) == 400 * MB
    clock.now += 100.0  # no bytes received: gives no measurement
    assert rates.rate(PEER, False) == 400 * MB


def test_small_and_failed_values_are_not_measured(rates: LinkRates, clock: Clock) -> None:
    move(rates, clock, 1, 1.0)
    with pytest.raises(OSError), rates.moving(PEER, False, 100 * MB):
        raise OSError
    assert rates.rate(PEER, False) is None


def test_running_transfers_are_not_forgotten(rates: LinkRates, clock: Clock) -> None:
    with rates.moving(PEER, True, 100 * MB):
        rates.forget()
        clock.now += 1.0
    assert rates.rate(PEER, True) == 100 * MB
