"""Each program gives the same result on the stock scheduler and on paceline, with stock clients and worker processes.

The stock scheduler is the oracle: this module does not contain expected results.
"""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from paceline.scheduler.server.runtime.build import COMPILED

from tests.support.real_cluster import Cluster, overridden, scheduler_command
from tests.support.source_tree import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(100)]

PROGRAMS = Path(__file__).parent / "programs"
Program = Callable[[object], object]


def programs() -> Iterator[object]:
    """Yield every public function with one parameter called `client`, and the expected result its module lists, if any."""
    for path in sorted(PROGRAMS.glob("[!_]*.py")):
        module = importlib.import_module(f"tests.integration.programs.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__
            if own and list(inspect.signature(function).parameters) == ["client"]:
                suffix = "_nannies" if name in getattr(module, "NANNIES", ()) else ""
                expected = getattr(module, "EXPECTED", {}).get(name)
                slow = [pytest.mark.slow] if name in getattr(module, "SLOW", ()) else []
                yield pytest.param(function, suffix, expected, id=f"{path.stem}-{name}", marks=slow)


@pytest.mark.parametrize(("program", "suffix", "expected"), list(programs()))
def test_program(
    program: Program, suffix: str, expected: object, request: pytest.FixtureRequest
) -> None:
    if expected is None:
        expected = run(program, request.getfixturevalue("stock" + suffix))
    actual = run(program, request.getfixturevalue("paceline" + suffix))
    assert_same(actual, expected)


def run(program: Program, cluster: Cluster) -> object:
    with cluster.client() as client:
        return program(client)


def assert_same(actual: object, expected: object, where: str = "result") -> None:
    """Compare type, structure and value; floating-point sums may differ in their order."""
    assert type(actual) is type(expected), f"{where}: {actual!r} is no {type(expected).__name__}"
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(actual, expected)
    elif isinstance(expected, pd.Series):
        pd.testing.assert_series_equal(actual, expected)
    elif isinstance(expected, (np.ndarray, np.generic, float)):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, err_msg=where)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected), where
        for key, value in expected.items():
            assert_same(actual[key], value, f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), f"{where}: {actual!r} against {expected!r}"
        for i, (a, e) in enumerate(zip(actual, expected)):
            assert_same(a, e, f"{where}[{i}]")
    else:
        assert actual == expected, where


@pytest.mark.skipif(overridden(), reason="another command replaces paceline")
@pytest.mark.parametrize("cluster", ["paceline", "paceline_nannies"])
def test_journal_of_all_programs_replays(cluster: str, request: pytest.FixtureRequest) -> None:
    """A replay of the journal of all programs above, in a new core, gives the messages that were sent while they ran."""
    journal = request.getfixturevalue(cluster).folder / "run.journal"
    replay(scheduler_command("paceline"), journal, {"PYTHONHASHSEED": "3"})


@pytest.mark.skipif(not COMPILED, reason="the core is not compiled")
@pytest.mark.skipif(overridden(), reason="another command replaces paceline")
def test_pure_python_gives_the_outputs_of_the_compiled_core(
    paceline: Cluster, tmp_path: Path
) -> None:
    """The same journal, replayed by the Python sources without the extensions."""
    for name in ("paceline", "protocol", "scheduler", "workers_compat"):
        folder = tmp_path / "paceline" / ("" if name == "paceline" else name)
        shutil.copytree(ROOT / name, folder, ignore=shutil.ignore_patterns("*.so", "*.pyd"))
    command = (sys.executable, "-m", "paceline.scheduler")
    environment = {"PYTHONPATH": str(tmp_path)}
    version = subprocess.check_output(
        [*command, "--version"], env={**os.environ, **environment}, cwd=tmp_path, text=True
    )
    assert "(pure Python)" in version
    replay(command, paceline.folder / "run.journal", environment, tmp_path)


def replay(
    command: tuple[str, ...], journal: Path, environment: dict[str, str], cwd: Path | None = None
) -> None:
    """Replay a journal in a new process. Its outputs must be those of the recorded run."""
    done = subprocess.run(
        [*command, "replay", str(journal)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        cwd=cwd,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "The outputs are the same as in the run" in done.stdout, done.stdout[-2000:]


def test_comparison_sees_differences() -> None:
    """Test the comparison itself: it must fail for different results."""
    pairs = [(1, 1.0), ([1], (1,)), ([1], [1, 2]), ({"a": 1}, {"a": 2}), (np.ones(2), np.zeros(2))]
    for actual, expected in pairs:
        with pytest.raises(AssertionError):
            assert_same(actual, expected)
