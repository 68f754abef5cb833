"""Released packages that build on Dask give the same results on paceline as on the stock scheduler.

Slow, and skipped if a package is not installed. `PACELINE_PACKAGES_PYTHON` may name an interpreter that has the packages
(docs/packages.md). All processes of the clusters then use it, so that the tracker of xgboost finds its package
in the scheduler.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real_cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(560)]

PROGRAMS = Path(__file__).with_name("use_packages.py")
PYTHON = os.environ.get("PACELINE_PACKAGES_PYTHON", sys.executable)
COMMANDS = {
    "stock": (PYTHON, "-m", "dask", "scheduler"),
    "paceline": (PYTHON, "-m", "paceline.scheduler"),
}


def packages() -> list[str]:
    """Return the names of the packages that have programs."""
    spec = importlib.util.spec_from_file_location("use_packages", PROGRAMS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.PROGRAMS)


def is_there(package: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    return subprocess.run([PYTHON, "-c", code], timeout=60).returncode == 0


def on(kind: str, package: str, folder: Path) -> object:
    """Return the output of the package's program on a separate cluster."""
    cluster = Cluster(COMMANDS[kind], folder, (False, False), nthreads=2, python=PYTHON)
    with cluster:
        command = [PYTHON, str(PROGRAMS), cluster.address, package]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr[-4000:] + cluster.logs()
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        return json.loads(line.removeprefix("RESULT "))


@pytest.mark.parametrize("package", packages())
def test_package(package: str, tmp_path: Path) -> None:
    needed = {"joblib": "sklearn"}.get(package, package)
    if not is_there(needed):
        pytest.skip(f"{needed} is not installed")
    assert on("paceline", package, tmp_path / "p") == on("stock", package, tmp_path / "s")
