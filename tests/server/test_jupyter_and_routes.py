"""`--jupyter`, and routes of users (`distributed.scheduler.http.routes`), which need the scheduler: both run in its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from paceline.scheduler import Scheduler

ROUTES = """
from tornado import web

class Workers(web.RequestHandler):
    def initialize(self, dask_server):
        self.scheduler = dask_server

    def get(self):
        self.write({"workers": len(self.scheduler.workers), "id": self.scheduler.id})

routes = [("mine/workers.json", Workers, {})]
"""

MODULES = str(
    [
        "distributed.http.health",
        "distributed.http.scheduler.json",
        "distributed.http.scheduler.api",
        "my_routes",
    ]
)


@pytest.fixture
def scheduler(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Return the content of its scheduler file once it exists."""
    (tmp_path / "my_routes.py").write_text(ROUTES)
    file = tmp_path / "scheduler.json"
    options = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "paceline.scheduler",
            *options,
            "--scheduler-file",
            str(file),
            *request.param,
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "JUPYTER_RUNTIME_DIR": str(tmp_path),
            "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": MODULES,
        },
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    try:
        while not file.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield json.loads(file.read_text())
    finally:
        process.terminate()
        _, log = process.communicate(timeout=30)
    assert process.returncode == 0 and "Stopped scheduler at" in log, log


def get(scheduler: dict[str, Any], path: str) -> Any:
    url = f"http://127.0.0.1:{scheduler['services']['dashboard']}{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    return (
        json.loads(text)
        if path.endswith(("json", "/api", "/status", "/contents", "_idle"))
        else text
    )


@pytest.mark.parametrize("scheduler", [[]], indirect=True)
def test_routes_of_users_receive_the_scheduler(scheduler: dict[str, Any]) -> None:
    found = get(scheduler, "/mine/workers.json")
    assert found["workers"] == 0
    assert found["id"] == scheduler["id"]
    assert get(scheduler, "/health") == "ok"
    assert get(scheduler, "/json/counts.json")["workers"] == 0


@pytest.mark.skipif(find_spec("jupyter_server") is None, reason="Jupyter is not installed")
@pytest.mark.parametrize("scheduler", [["--jupyter"]], indirect=True)
def test_jupyter_is_served_too(scheduler: dict[str, Any]) -> None:
    assert "version" in get(scheduler, "/jupyter/api")
    assert get(scheduler, "/jupyter/api/status")["kernels"] == 0
    since = [get(scheduler, "/api/v1/check_idle")["idle_since"] for _ in range(3)]
    assert since[-1] is not None
    get(scheduler, "/jupyter/api/contents")  # Jupyter is used
    assert get(scheduler, "/api/v1/check_idle")["idle_since"] is None
    assert get(scheduler, "/health") == "ok"
    assert get(scheduler, "/mine/workers.json")["workers"] == 0


async def test_kernels_receive_the_address_and_are_shut_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = SimpleNamespace(_cleanup=AsyncMock())
    monkeypatch.setattr(
        "paceline.scheduler.server.scheduler.serve_jupyter", lambda http, close: app
    )
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "")
    async with Scheduler(
        host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False, jupyter=True
    ) as scheduler:
        assert os.environ["DASK_SCHEDULER_ADDRESS"] == scheduler.address
        app._cleanup.assert_not_awaited()
    app._cleanup.assert_awaited_once()
