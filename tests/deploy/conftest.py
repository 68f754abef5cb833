"""Fixtures of tests that start clusters with deployment tools.

They do not depend on the program that runs on the cluster.
"""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the scheduler in processes that this test starts, as after `paceline takeover --install`.

    The line that the command writes into site-packages is in a `sitecustomize` here, so that other tests are not affected.
    """
    from paceline.scheduler.server.cli import replace_scheduler

    folder = tmp_path / "taken-over"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(replace_scheduler.PTH_TEXT)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv(replace_scheduler.VARIABLE, "1")
    return folder
