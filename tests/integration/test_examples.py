"""Every example runs, prints output, and passes its own checks."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.source_tree import ROOT

EXAMPLES = ROOT / "examples"
# run by `make demo`, and in continuous integration by name; by test_protocol_examples.py
ELSEWHERE = {"demo.py", "worker_on_protocol.py", "monitor.py"}
# modules that other examples import
SHARED = {"toy_cluster.py", "asyncio_comm.py", "worker_parts.py"}
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in ELSEWHERE)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in SHARED])
def test_example(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert done.stdout.strip(), "an example prints output"


def test_tour_names_every_example() -> None:
    named = set(re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text()))
    assert named | SHARED == {path.name for path in EXAMPLES.glob("*.py")}
