"""A short soak in CI; ``soak.py`` runs the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.soak import soak
from tests.support.real_cluster import scheduler_command

pytestmark = pytest.mark.integration

#: A round of CI: a handful of faults.
SECONDS = 40


def test_a_short_soak(tmp_path: Path) -> None:
    report, logs = soak(scheduler_command("paceline"), seed=7, seconds=SECONDS, folder=tmp_path)
    assert not report.failures, "\n".join(report.failures) + logs
    assert report.keys_left == 0
    assert sum(report.finished.values()) > N_PROGRAMS_MIN


#: Fewer than this is no soak: the machine is too slow, or something is stuck.
N_PROGRAMS_MIN = 5
