"""A scheduler process whose pages are tested, and requests for pages."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from tornado.httpclient import AsyncHTTPClient

START_SECONDS = 60.0


@contextlib.contextmanager
def serve_pages(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """Start a scheduler in a separate process, and yield the port of its pages."""
    file = folder / "scheduler.json"
    options = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.scheduler", *options, "--scheduler-file", str(file)],
        env={**os.environ, **(environment or {})},
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not file.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield json.loads(file.read_text())["services"]["dashboard"]
    finally:
        process.terminate()
        process.wait(30)


def dashboards() -> list[psutil.Process]:
    """Return the dashboards among our descendants."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] == ["paceline dashboard"]:
                found.append(process)
    return found


async def get(port: int, path: str) -> str:
    """Return the text of a page."""
    answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}{path}", request_timeout=60)
    return str(answer.body.decode())
