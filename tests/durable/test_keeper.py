"""The keeper: signals, child processes and files."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from distributed import Client

from tests.support.durable_processes import kill, pid
from tests.support.real_cluster import PACELINE

from .conftest import StartDurable

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="a durable scheduler needs Linux"),
]


@pytest.mark.integration
def test_nohup_is_respected(
    start_durable: StartDurable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.conftest.scheduler_command", lambda kind: ["nohup", *PACELINE])
    cluster = start_durable()
    os.kill(pid(tmp_path, "keeper"), signal.SIGHUP)
    kill(tmp_path)
    with Client(cluster.address, set_as_default=False) as client:
        assert client.submit(abs, -1).result(timeout=30) == 1
