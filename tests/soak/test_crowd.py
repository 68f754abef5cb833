"""A short run of ``crowd.py``: waiters are served in turn, and nothing of them is left in the scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import crowd
from tests.support.real_cluster import scheduler_command

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(280)]

#: Maximum difference in turns: waiters of one client overtake each other on their way to the scheduler and back.
SPREAD_MAX = 3
N_NAMES = 4
#: Allowed growth of the process: caches that fill during the run.
OBJECTS_MAX, RSS_MIB_MAX = 3_000, 20


def test_crowd_is_served_fairly_and_leaves_nothing(tmp_path: Path) -> None:
    report = crowd.run(scheduler_command("paceline"), tmp_path, 20, 40, 200, N_NAMES)
    summary = "\n".join(report.lines())
    assert not report.errors, summary
    for name, counts in report.served.items():
        assert min(counts) > 0, summary
        # waiters of queues come back on separate connections
        assert report.spread(name) <= max(SPREAD_MAX, max(counts) // 4), summary
    before, after = report.before, report.after
    assert after["objects"] - before["objects"] < OBJECTS_MAX, summary
    assert after["rss_mib"] - before["rss_mib"] < RSS_MIB_MAX, summary
    for what in ("tasks", "semaphores"):
        assert after[what] <= before[what], summary
    assert after["queues"] == N_NAMES, summary  # names of queues remain, as in stock
