"""A stock worker that measures what running tasks take in memory, with a plugin."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from distributed import Client, Worker, wait
from paceline.scheduler.server.scheduler import Scheduler
from paceline.workers_compat import task_peaks

from tests.support.real_cluster import IMPORTABLE, Cluster, scheduler_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the plugin needs Linux")

MB = 1_000_000
ON = IMPORTABLE | {"DASK_PACELINE__SCHEDULER__TASK_PEAKS": "true"}


def take(nbytes: int, seconds: float = 0.0) -> int:
    """Take memory for a moment."""
    data = b"x" * nbytes
    time.sleep(seconds)
    return len(data)


def produce(nbytes: int) -> bytes:
    return b"x" * nbytes


def idle(x: bytes) -> int:
    return len(x)


def peak_of(client: Any, prefix: str) -> int:
    """Return what the scheduler has learned about tasks of `prefix`, once a heartbeat reports it."""

    def learned(dask_scheduler: Any) -> float:
        return float(dask_scheduler.task_prefixes[prefix].memory.peak_nbytes)

    while not (found := client.run_on_scheduler(learned)):
        time.sleep(0.05)
    return int(found)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    with (
        Cluster(scheduler_command("paceline"), tmp_path, nannies=[False], config=ON) as cluster,
        cluster.client() as client,
    ):
        yield client


def test_tasks_that_run_alone(client: Any) -> None:
    """The peak of a short task, and a result; results that the worker holds do not count."""
    assert client.submit(take, 200 * MB).result() == 200 * MB
    assert 190 * MB < peak_of(client, "take") < 220 * MB
    held = wait(client.submit(produce, 100 * MB)).done.pop()
    assert 95 * MB < peak_of(client, "produce") < 120 * MB
    assert client.submit(idle, held).result() == 100 * MB
    later = client.submit(take, 50 * MB, key="later")
    assert later.result() == 50 * MB
    assert 45 * MB < peak_of(client, "later") < 70 * MB


def test_task_of_a_collection(client: Any) -> None:
    """The plugin reports the group ``take-1``, whose prefix is ``take``."""
    assert client.get({("take-1", 0): (take, 200 * MB)}, ("take-1", 0)) == 200 * MB
    assert 190 * MB < peak_of(client, "take") < 220 * MB


def test_tasks_that_run_at_a_time_share_what_they_take(client: Any) -> None:
    both = client.map(take, [100 * MB, 100 * MB + 1], seconds=0.5)
    assert sum(client.gather(both)) == 200 * MB + 1
    assert 95 * MB < peak_of(client, "take") < 120 * MB


async def test_nothing_is_measured_without_the_files_of_linux(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_peaks, "open", Mock(side_effect=FileNotFoundError), raising=False)
    async with (
        Scheduler(host="127.0.0.1", dashboard=False, compile_in_threads=True) as scheduler,
        Worker(scheduler.address, nthreads=1, dashboard_address=None) as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        await worker.plugin_add(task_peaks.TaskPeaks())
        assert await client.submit(idle, b"x") == 1
        assert "task_peaks" not in worker.metrics
    assert "failed with exception" not in caplog.text
