"""``Health``: how long a backend is not used after failures."""

from __future__ import annotations

import time

import pytest
from paceline.transfer.backend import BackendContext, BackendError
from paceline.transfer.health import PAUSE_SECONDS, Health
from paceline.transfer.settings import settings


class Clock:
    """Replaces ``time.monotonic``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        monkeypatch.setattr("paceline.transfer.health.time.monotonic", lambda: self.now)


def test_failures_of_parallel_transfers_pause_the_backend_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    health = Health(settings("direct"), BackendContext("w"))
    clock = Clock(monkeypatch)
    try:
        for _ in range(10):
            health.failed("direct", "get a value", BackendError("out of order"))
        assert health.usable("direct") is None
        clock.now += PAUSE_SECONDS
        assert health.usable("direct") is not None
        health.failed("direct", "get a value", BackendError("out of order"))
        clock.now += PAUSE_SECONDS
        assert health.usable("direct") is None, "the second failure in a row pauses twice as long"
        clock.now += PAUSE_SECONDS
        assert health.usable("direct") is not None
    finally:
        health.close()
