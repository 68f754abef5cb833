"""Log lines are bounded in length and number for keys of any length and any number of messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.server.runtime import log_limits
from paceline.scheduler.server.runtime.log_limits import LogLimits, cut
from paceline.scheduler.server.scheduler import Scheduler

from tests.support.fake_peers import Peer, client

logger = logging.getLogger("distributed.scheduler")


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock, caplog: pytest.LogCaptureFixture) -> Iterator[LogLimits]:
    caplog.set_level("INFO")
    limits = LogLimits(clock)
    yield limits
    limits.close()


def test_cut() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("0123456789", 4) == "01 [... 6 characters omitted ...] 89"


def test_long_lines_are_shortened(limits: LogLimits, caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("y" * 10**6)
    except ValueError:
        logger.exception("A key: %s", "x" * 10**6)
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith("A key: xxx") and message.endswith("xxx")
    assert "characters omitted" in message and len(message) < 2 * log_limits.MESSAGE_MAX
    text = logging.Formatter().format(record)
    assert "Traceback" in text and len(text) < 2 * log_limits.TRACEBACK_MAX


def test_repeated_lines_are_counted(
    limits: LogLimits, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(10_000):
        logger.warning("Dropping connection %d to %s", n, "x" * 100)
    n_logged = len(caplog.records)
    assert sum(len(r.getMessage()) for r in caplog.records) < log_limits.SIMILAR_MAX + 1_000
    logger.warning("Something else")
    assert len(caplog.records) == n_logged + 1
    caplog.clear()
    clock.seconds += log_limits.PERIOD_SECONDS
    logger.info("Later")
    summary, later = caplog.messages
    assert summary.startswith(
        f"{10_000 - n_logged} similar lines suppressed. The last one: Dropping connection 9999"
    )
    assert later == "Later"


def test_kinds_of_the_core(limits: LogLimits, caplog: pytest.LogCaptureFixture) -> None:
    """All lines of the core are logged by one statement; a flood of one kind must not hide others."""
    for text in ["Scheduler cancels key " + "x" * 3_000] * 100 + ["Worker failed to heartbeat"]:
        logger.log(30, "%s", text)
    assert caplog.messages[-1] == "Worker failed to heartbeat"
    assert len(caplog.messages) < 101


def test_the_number_of_kinds_is_limited(limits: LogLimits) -> None:
    for n in range(2 * log_limits.KINDS_MAX):
        logger.log(30, "%s", chr(0x4E00 + n) + " x")
    assert len(limits._similar) <= log_limits.KINDS_MAX + 1


def test_wrong_arguments_reach_the_handler(limits: LogLimits) -> None:
    record = logger.makeRecord("distributed.scheduler", 30, "x.py", 1, "%d", ("x",), None)
    assert limits.filter(record) is True


async def test_peers_with_large_keys_and_ops(caplog: pytest.LogCaptureFixture) -> None:
    """In an embedded scheduler, a client cancels a key of a megabyte, and a peer sends ops of that length."""
    caplog.set_level("INFO")
    key = "k" * 2**20
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        alice = await client(scheduler)
        alice.send([m.ClientDesiresKeys(keys=[key], client="client-1")])
        alice.send([m.CancelKeys(keys=[key], client="client-1", force=True)])
        requester = await Peer.connect(scheduler)
        for _ in range(3):
            await requester.request({"op": "o" * 2**20, "reply": True})
        alice.writer.close()
        while scheduler.server.driver.client_streams:
            await asyncio.sleep(0.01)
        requester.writer.close()
    assert len(caplog.records) > 5
    assert max(len(record.getMessage()) for record in caplog.records) < 2 * log_limits.MESSAGE_MAX
    assert logger.filters == []
