"""A short soak for CI; ``soak.py`` runs longer ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.soak import soak
from tests.support.real_cluster import scheduler_command

pytestmark = pytest.mark.integration

#: Length of a run in CI, enough for a handful of faults.
SECONDS = 30


def test_short_soak(tmp_path: Path) -> None:
    report, logs = soak(scheduler_command("paceline"), seed=7, seconds=SECONDS, folder=tmp_path)
    assert not report.failures, "\n".join(report.failures) + logs
    assert report.keys_left == 0
    assert sum(report.finished.values()) > N_PROGRAMS_MIN


#: With fewer, the machine is too slow or tasks are stuck.
N_PROGRAMS_MIN = 5
