"""The public API: what programs import from ``paceline``, and what that loads."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from paceline.transfer import backend

import paceline
from paceline import transfer


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


def test_backends_need_only_public_names() -> None:
    """All classes that the description of ``Backend`` names are exported."""
    source = inspect.getsource(transfer.Backend)
    classes = {
        name
        for name, value in vars(backend).items()
        if inspect.isclass(value) and value.__module__ == backend.__name__
    }
    named = {name for name in classes if re.search(rf"\b{name}\b", source)}
    assert "ValueGone" in named
    # its numbers are kept by the base class
    assert named - {"Traffic"} <= set(transfer.__all__)
