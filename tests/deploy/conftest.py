"""Fixtures of the tests that start clusters with the tools that people start theirs with.

They must not know what is computed.
"""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes that are started in this test are taken over, as after `paceline takeover --install`.

    What the command writes into site-packages stands in a `sitecustomize` here, so that no other test sees it.
    """
    from paceline.scheduler.server.cli import replace_scheduler

    folder = tmp_path / "taken-over"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(replace_scheduler.PTH_TEXT)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv(replace_scheduler.VARIABLE, "1")
    return folder
