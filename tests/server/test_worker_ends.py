"""Stock workers that end: the plugin that reports when, and where their tasks go."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client, Worker
from paceline.scheduler.server.scheduler import Scheduler
from paceline.workers_compat.config.config import worker_plugins
from paceline.workers_compat.worker_end import WorkerEnd

from tests.support.real_cluster import IMPORTABLE, Cluster, scheduler_command

HOUR = 3600.0


def long(x: int) -> int:
    return x


async def end_of(scheduler: Any, worker: Any) -> float:
    """Return the end of `worker` once it is known."""
    ws = scheduler.server.state.workers[worker.address]
    while not ws.ends_at:
        await asyncio.sleep(0.01)
    return float(ws.ends_at)


@pytest.mark.parametrize("source", ["lifetime", "slurm", "setting"])
async def test_the_worker_reports_its_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time() + 3 * HOUR)))
    settings: dict[str, Any] = {"distributed.scheduler.default-task-durations": {"long": "4 hours"}}
    options: dict[str, Any] = {"nthreads": 1, "dashboard_address": None}
    expected = 3 * HOUR
    if source == "setting":
        settings["paceline.worker-end"] = time.time() + 2 * HOUR
        expected = 2 * HOUR
    elif source == "lifetime":
        options["lifetime"] = "1 hour"
        expected = HOUR
    with dask.config.set(settings):
        async with (
            Scheduler(host="127.0.0.1", dashboard=False, compile_in_threads=True) as scheduler,
            Worker(scheduler.address, **options) as worker,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            end = await end_of(scheduler, worker)
            assert end - time.time() == pytest.approx(expected, abs=60)
            future = client.submit(long, 1)
            reply = await client.scheduler.explain(key=future.key)
            while reply["state"] != "queued":
                reply = await client.scheduler.explain(key=future.key)
            assert "1 of 1 worker ends before that" in reply["summary"]


async def test_no_end_and_a_spot_notice() -> None:
    """Without an end nothing is reported; ``client.run`` can set one on a worker."""
    async with (
        Scheduler(host="127.0.0.1", dashboard=False, compile_in_threads=True) as scheduler,
        Worker(scheduler.address, nthreads=1, dashboard_address=None) as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        ws = scheduler.server.state.workers[worker.address]
        while "ends_in" not in ws.metrics:
            await asyncio.sleep(0.01)
        assert ws.metrics["ends_in"] is None and not ws.ends_at
        with dask.config.set({"paceline.worker-end": time.time() + 120}):
            assert await end_of(scheduler, worker) - time.time() == pytest.approx(120, abs=60)
            assert await client.submit(long, 1) == 1


def test_unusable_ends_are_ignored_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "garbage")
    worker = SimpleNamespace(
        metrics={}, lifetime=None, loop=SimpleNamespace(add_callback=lambda _: None)
    )
    plugin = WorkerEnd()
    plugin.setup(worker)
    with dask.config.set({"paceline.worker-end": "inf"}):
        assert [worker.metrics["ends_in"](worker) for _ in range(2)] == [None, None]
    assert [record.getMessage() for record in caplog.records] == [
        f"Ignoring {source}: {value!r} is not a time in seconds since the epoch"
        for source, value in (("SLURM_JOB_END_TIME", "garbage"), ("paceline.worker-end", "inf"))
    ]
    with dask.config.set({"paceline.worker-end": time.time() + HOUR}):
        assert worker.metrics["ends_in"](worker) == pytest.approx(HOUR, abs=60)


def slow(x: int) -> int:
    time.sleep(0.6)
    return x


async def test_a_result_on_a_worker_that_ends_soon_moves_to_one_that_lasts() -> None:
    settings = {"distributed.scheduler.active-memory-manager.interval": "100ms"}
    with dask.config.set(settings):
        async with (
            Scheduler(host="127.0.0.1", dashboard=False, compile_in_threads=True) as scheduler,
            Worker(scheduler.address, dashboard_address=None, lifetime="60s") as ending,
            Worker(scheduler.address, dashboard_address=None) as other,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            await end_of(scheduler, ending)
            future = client.submit(slow, 1, workers=[ending.address])
            assert await future == 1
            while future.key not in other.data:
                await asyncio.sleep(0.01)
            while future.key in ending.data:  # one copy on a worker that lasts is enough
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)  # the memory manager runs
            assert future.key in other.data
            future.release()
            while ending.data or other.data:
                await asyncio.sleep(0.01)


async def test_it_can_be_switched_off() -> None:
    with dask.config.set({"paceline.scheduler.worker-ends": False}):
        assert "paceline-worker-end" not in worker_plugins()


def test_the_plugin_needs_no_paceline() -> None:
    pickled = worker_plugins()["paceline-worker-end"]
    program = (
        "import pickle, sys\n"
        "sys.modules['paceline'] = None\n"
        f"plugin = pickle.loads({pickled!r})\n"
        "assert plugin.name == 'paceline-worker-end', plugin\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("nanny", [False, True])
def test_a_real_worker_with_a_lifetime(nanny: bool, tmp_path: Path) -> None:
    """A task that takes longer waits for a worker that lasts."""
    cluster = Cluster(
        scheduler_command("paceline"),
        tmp_path,
        nannies=(nanny,),
        worker_options=("--lifetime", "10 minutes", "--lifetime-stagger", "5 s"),
        config={
            "DASK_DISTRIBUTED__SCHEDULER__DEFAULT_TASK_DURATIONS": '{"long": "1 hour"}',
            **IMPORTABLE,
        },
    )
    with cluster, cluster.client() as client:

        def ends() -> list[Any]:
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            return [each["metrics"].get("ends_in") for each in workers]

        while not all(ends()):
            time.sleep(0.05)
        assert all(550 < left < 610 for left in ends())
        future = client.submit(long, 1, pure=False)
        short = client.submit(sum, [1, 2])
        assert short.result(timeout=30) == 3
        assert future.status == "pending"
        cluster.worker_options = ()
        cluster.add_worker(name="lasting")
        assert future.result(timeout=60) == 1
        (address,) = client.who_has([future])[future.key]
        info = client.scheduler_info(n_workers=-1)["workers"]
        assert info[address]["id"] == "lasting"
