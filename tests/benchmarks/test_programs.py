"""The benchmark of programs runs, and compares the results of both schedulers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.programs.__main__ import Costs, end, programs, same, table
from tests.support.source_tree import ROOT

COMMAND = [sys.executable, "-m", "benchmarks.programs"]


@pytest.mark.slow
@pytest.mark.integration
def test_one_program_on_both_schedulers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n<!-- measured: begin -->\n<!-- measured: end -->\nAfter.\n")
    options = ["--only", "coordination", "--repeat", "1", "--write", str(page)]
    done = subprocess.run([*COMMAND, *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in page.read_text().splitlines() if line.startswith("| coordination")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[-1] == "same"
    assert all(float(cell) > 0 for cell in cells[1:-1])


def test_programs_are_found_without_importing_them() -> None:
    found = programs()
    assert len(found) >= 20
    assert found["csv_groupby"] == "dataframes"
    assert "orders" not in found


def test_results_are_compared_with_a_tolerance() -> None:
    assert same({"a": [1.0, "x"]}, {"a": [1.0 + 1e-9, "x"]}, 1e-6)
    assert not same([1.0], [1.1], 1e-6)
    assert same([1.0], [1.1], 0.2)
    assert not same([1.0], [1.0, 2.0], 1e-6)
    assert not same({"a": 1}, {"b": 1}, 1e-6)


def test_cpu_time_includes_ended_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    script = f"""
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *args: sys.exit())
subprocess.run([sys.executable, "-c", {burn!r}])
print("ready", flush=True)
signal.pause()
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert end(process.pid) >= 0.25


def test_table_has_geometric_means_and_maxima() -> None:
    stock, half, double = Costs(4, 4, 4, 4, 4), Costs(2, 2, 2, 2, 2), Costs(8, 8, 8, 8, 8)
    text = table({"a": (stock, half, True), "b": (stock, double, False)}, 3)
    assert "| a | 0.50 |" in text and "| 4.0 | same |" in text and "**differ**" in text
    assert "| **geometric mean** | 1.00 |" in text
    assert "| **maximum** | 2.00 |" in text
