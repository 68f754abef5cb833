"""Run the scenarios in this folder, see ``paceline.testing.Scenario``.

``pytest tests/scenarios --record`` (or ``RECORD=1``) writes the messages that were sent into the files: read the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from paceline.testing import Scenario

FOLDER = Path(__file__).parent
FILES = sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", FILES)
def test_scenario(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / f"{name}.txt"
    text = path.read_text()
    assert re.match(r"# \w", text), "a scenario begins with a comment that describes it"
    found = Scenario().play(text)
    if request.config.getoption("--record", default=False) or os.environ.get("RECORD"):
        path.write_text(found)
    else:
        assert found == text


def test_unknown_command() -> None:
    with pytest.raises(ValueError, match="Unknown command: fly w0"):
        Scenario().play("> fly w0")


def test_scenarios_exist() -> None:
    assert len(FILES) >= 15
