"""The public API: what programs import from ``paceline``, and what that loads."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import paceline


def test_public_names() -> None:
    from paceline.scheduler.server.scheduler import Scheduler
    from paceline.transfer.plugin import Transfer

    assert paceline.__all__ == ["LocalCluster", "Scheduler", "Transfer", "__version__"]
    assert paceline.Scheduler is Scheduler
    assert paceline.Transfer is Transfer
    assert paceline.LocalCluster.__name__ == "LocalCluster"
    assert paceline.__version__ == version("paceline")
    assert set(paceline.__all__) <= set(dir(paceline))


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Unknown'"):
        _ = paceline.Unknown


@pytest.mark.parametrize("name", ["paceline.transfer", "paceline.protocol"])
def test_workers_and_peers_do_not_load_the_scheduler(name: str) -> None:
    code = f"import {name}, sys; print(sorted(m for m in sys.modules if 'paceline.scheduler' in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
