"""The last lines of the log are kept."""

from __future__ import annotations

import logging
import weakref

import dask
import pytest
from paceline.scheduler.server.runtime.recent_log import RecentLog


def test_the_log_is_kept_newest_first() -> None:
    with dask.config.set(
        {"distributed.admin.log-length": 3, "distributed.admin.log-format": "%(message)s"}
    ):
        log = RecentLog()
    logger = logging.getLogger("distributed.scheduler")
    try:
        for i in range(5):
            logger.error("line %d", i)
        assert log.lines() == [("ERROR", f"line {i}") for i in (4, 3, 2)]
        assert log.lines(n=1) == [("ERROR", "line 4")]
        (stamped,) = log.lines(n=1, timestamps=True)
        assert isinstance(stamped[0], float) and stamped[1:] == ("ERROR", "line 4")
    finally:
        log.close()
    logger.error("unheard")
    assert log.lines(n=1) == [("ERROR", "line 4")]


def test_stored_log_record_holds_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("distributed.scheduler")
    monkeypatch.setattr(logger, "propagate", False)  # pytest's own handler keeps records
    monkeypatch.setattr(
        logger, "handlers", []
    )  # and so do handlers of stock schedulers in this process

    class Held:
        pass

    def fails() -> weakref.ref[Held]:
        held = Held()
        ref = weakref.ref(held)
        try:
            raise ValueError("of a frame")
        except ValueError:
            logger.exception("it %s", "failed")
        return ref

    with dask.config.set({"distributed.admin.log-format": "%(levelname)s - %(message)s"}):
        log = RecentLog()
    try:
        assert fails()() is None
        (kept,) = log.deque
        assert kept.getMessage() == "it failed" and kept.line.startswith("ERROR - it failed\nTrace")
        assert kept.line.endswith("ValueError: of a frame")
    finally:
        log.close()
