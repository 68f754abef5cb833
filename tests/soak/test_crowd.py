"""A short round of ``crowd.py``: everybody is served in turn, and nothing of them is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import crowd
from tests.support.real_cluster import scheduler_command

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(280)]

#: Waiters of one client overtake each other on their ways to the scheduler and back, by so many turns.
SPREAD_MAX = 3
N_NAMES = 4
#: What a process may have more at the end: what it learnt by heart meanwhile.
OBJECTS_MAX, RSS_MIB_MAX = 3_000, 20


def test_a_crowd_is_served_fairly_and_leaves_nothing(tmp_path: Path) -> None:
    report = crowd.run(scheduler_command("paceline"), tmp_path, 20, 40, 200, N_NAMES)
    told = "\n".join(report.lines())
    assert not report.errors, told
    for name, counts in report.served.items():
        assert min(counts) > 0, told
        # queues' waiters come back by connections of their own
        assert report.spread(name) <= max(SPREAD_MAX, max(counts) // 4), told
    before, after = report.before, report.after
    assert after["objects"] - before["objects"] < OBJECTS_MAX, told
    assert after["rss_mib"] - before["rss_mib"] < RSS_MIB_MAX, told
    for what in ("tasks", "semaphores"):
        assert after[what] <= before[what], told
    assert after["queues"] == N_NAMES, told  # the names of queues stay, as in stock
