"""``LocalCluster(durable=DIR)``: a durable scheduler for a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dask
import pytest
from distributed import Client
from paceline.scheduler.server.durable.scheduler_process import (
    LOG_TAIL,
    SchedulerProcess,
    _arguments,
    _tail,
)

from paceline import LocalCluster, Scheduler

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="a durable scheduler needs Linux"),
]

PROGRAM = """
import os, sys, time
from paceline import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(n_workers=0, dashboard_address=":0", durable=sys.argv[1])
    print("started", flush=True)
    time.sleep(100)
"""


@pytest.fixture(autouse=True)
def no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not check messages: a connection that is continued has no record of earlier ones."""
    monkeypatch.setenv("PACELINE_CHECK_MESSAGES", "")


def pid(folder: Path, name: str) -> int:
    return int((folder / f"{name}.pid").read_text())


def wait_until_ended(process: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_scheduler_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 17}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=":0",
            durable=folder,
        ) as cluster,
        Client(cluster) as client,
    ):
        kept = client.submit(abs, -1)
        assert kept.result(timeout=60) == 1
        os.kill(pid(folder, "scheduler"), signal.SIGKILL)
        assert client.submit(abs, kept).result(timeout=60) == 1
        assert client.scheduler_info()["restarts"] == 1
        cluster.scale(2)
        client.wait_for_workers(2, timeout=60)
        failures = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.allowed_failures)
        assert failures == 17  # the configuration of this process
        keeper = pid(folder, "keeper")
    wait_until_ended(keeper)
    assert {path.name for path in folder.iterdir()} == {"lock", "scheduler.log"}


@pytest.mark.parametrize("where", [{"host": "127.0.0.1"}, {"interface": "lo"}])
def test_pages_are_served_where_the_scheduler_listens(where: dict[str, str]) -> None:
    arguments = _arguments({**where, "dashboard": False, "dashboard_address": None})
    assert arguments[arguments.index("--dashboard-address") + 1] == "127.0.0.1:8787"


async def test_address_file_of_killed_processes_is_removed(tmp_path: Path) -> None:
    scheduler = SchedulerProcess(tmp_path)
    with subprocess.Popen(["true"]) as scheduler._process:
        scheduler._address_file.touch()
        await scheduler.close()
    assert not list(tmp_path.iterdir())


def test_error_shows_the_end_of_the_output(tmp_path: Path) -> None:
    log = tmp_path / "scheduler.log"
    log.write_text("before" + "x" * LOG_TAIL + "end")
    assert _tail(log, 6) == ("x" * LOG_TAIL + "end")[-LOG_TAIL:]
    assert _tail(log, log.stat().st_size - 3) == "end"


def test_second_cluster_leaves_the_files_of_the_first(tmp_path: Path) -> None:
    options = {"n_workers": 0, "dashboard_address": ":0", "durable": tmp_path}
    with LocalCluster(**options):
        address_files = list(tmp_path.glob("*.json"))
        with pytest.raises(RuntimeError, match="has ended:\nError: --durable: another scheduler"):
            LocalCluster(**options)
        assert list(tmp_path.glob("*.json")) == address_files != []
        assert "Scheduler at:" in (tmp_path / "scheduler.log").read_text()
    assert not list(tmp_path.glob("*.json"))


def test_scheduler_ends_with_the_program(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, program, folder], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stdout.readline() == b"started\n"
        keeper = pid(folder, "keeper")
        running.kill()
    wait_until_ended(keeper)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"host": "192.0.2.1"}, "the scheduler has ended"),
        ({"scheduler_kwargs": {"plugins": ["plugin"]}}, "does not have the options plugins"),
        ({"protocol": "tls://"}, "durable= is possible with tcp://, not 'tls://'"),
    ],
)
def test_invalid_options(options: dict[str, object], reason: str, tmp_path: Path) -> None:
    with pytest.raises((RuntimeError, ValueError), match=reason):
        LocalCluster(n_workers=0, dashboard_address=":0", durable=tmp_path / "log", **options)


async def test_scheduler_in_a_program_is_not_durable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=r"LocalCluster\(durable=DIR\)"):
        Scheduler(durable=str(tmp_path))
    with dask.config.set({"paceline.scheduler.durable": str(tmp_path)}):
        async with Scheduler(dashboard_address=":0"):
            assert "paceline.scheduler.durable has no effect here" in caplog.text
    assert list(tmp_path.iterdir()) == []
