"""Faults around a durable scheduler: a full disk, a damaged log, a container without an init process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

from tests.support.durable_processes import kill, stopped_keeper
from tests.support.real_cluster import IMPORTABLE, PACELINE, Cluster

from .conftest import StartDurable
from .test_kills import wait_for_standby, wait_for_text

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform != "linux", reason="a durable scheduler needs Linux"),
]

#: Size of a disk on which the first segment fits, but not a second one.
DISK_MEBIBYTES = 100


def needs(*unshare: str) -> Any:
    """Skip a test if namespaces cannot be created."""
    command = ["unshare", *unshare, "true"]
    works = shutil.which("unshare") and subprocess.run(command, capture_output=True).returncode == 0
    return pytest.mark.skipif(not works, reason=f"{' '.join(command)} does not work")


@pytest.fixture
def start(start_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start a cluster with a command of the shell before that of the scheduler."""

    def start(unshare: list[str], script: str, log: Path) -> Cluster:
        command = ["unshare", *unshare, "sh", "-c", f'{script} exec "$0" "$@"', *PACELINE]
        monkeypatch.setattr("tests.conftest.scheduler_command", lambda kind: command)
        return start_cluster(
            nannies=(False,),
            options=["--durable", str(log)],
            config={**IMPORTABLE, "PACELINE_CHECK_MESSAGES": ""},
        )

    return start


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@needs("-rm")
def test_full_disk_ends_only_the_durability(start: Any, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size={DISK_MEBIBYTES}m tmpfs {disk};"
    cluster = start(["-rm"], mount, disk / "log")
    with Client(cluster.address, set_as_default=False) as client:
        kept = client.submit(abs, -1)
        data = [client.scatter(bytes(40_000_000), hash=False) for _ in range(2)]
        wait_for_text(cluster, "The scheduler is NO LONGER DURABLE")
        assert client.submit(abs, kept).result(timeout=60) == 1
        assert client.gather(data) == [bytes(40_000_000)] * 2
        keeper = cluster.processes[0]
        assert "No space left on device" in keeper.output()
        log = Path(f"/proc/{keeper.pid}/root{disk}/log")
        eventually(lambda: psutil.disk_usage(str(log)).used < 10**6)
        os.kill(int((log / "scheduler.pid").read_text()), signal.SIGKILL)
        assert keeper.popen.wait(60) == 128 + signal.SIGKILL
    assert "which was not durable, was killed by SIGKILL" in keeper.output()


@needs("-rm")
def test_full_disk_ends_only_the_upgrade(start: Any, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size={DISK_MEBIBYTES}m tmpfs {disk};"
    cluster = start(["-rm"], mount, disk / "log")
    keeper = cluster.processes[0]
    inside = Path(f"/proc/{keeper.pid}/root{disk}")
    with Client(cluster.address, set_as_default=False) as client:
        kept = client.submit(abs, -1)
        assert kept.result(timeout=60) == 1
        with contextlib.suppress(OSError), (inside / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        os.kill(keeper.pid, signal.SIGUSR2)
        wait_for_text(cluster, "The upgrade has failed; the scheduler goes on")
        assert "the snapshot cannot be written: OSError: [Errno 28] No space" in keeper.output()
        scheduler = int((inside / "log" / "scheduler.pid").read_text())
        os.kill(scheduler, signal.SIGKILL)
        assert client.submit(abs, kept).result(timeout=60) == 1
        assert client.scheduler_info()["restarts"] == 1


def test_damaged_log_is_not_continued(start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable()
    path = tmp_path / "log" / "segment-00000001.log"
    with stopped_keeper(tmp_path):
        kill(tmp_path)
        with path.open("r+b") as file:
            file.seek(200)
            file.write(b"\xff" * 100)
    scheduler = cluster.processes[0]
    assert scheduler.popen.wait(60) == 1
    log = scheduler.output()
    assert f"The scheduler cannot continue from its log: {path} is damaged at byte 64" in log
    assert "again before it was ready" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("has_standby", [False, True])
def test_missing_log_is_not_continued(
    has_standby: bool, start_durable: StartDurable, tmp_path: Path
) -> None:
    """The peers notice: a successor without the log knows none of them."""
    cluster = start_durable(DASK_PACELINE__SCHEDULER__STANDBY_TURNS="1" if has_standby else "20000")
    if has_standby:
        wait_for_standby(tmp_path)
    with stopped_keeper(tmp_path):
        kill(tmp_path)
        for path in (tmp_path / "log").glob("segment-*"):
            path.unlink()
    for process in cluster.processes:
        process.popen.wait(60)
    log = cluster.processes[0].output()
    assert f"cannot continue from its log: the log in {tmp_path}/log is missing" in log
    assert "again before it was ready" in log
    assert "Traceback" not in log


#: A preload with which the scheduler process fails once at each of four moments.
FAILS_EARLY = """
import os, pathlib, signal
from paceline.scheduler.server.durable.recovery.adoption import Adoption
from paceline.scheduler.server.durable.channel.keeper_channel import KeeperChannel
from paceline.scheduler.server.server import Server
def fail(moment):
    order = pathlib.Path(__file__).with_name(moment)
    if order.exists():
        order.unlink()
        if moment == "continued":
            raise OSError(moment)
        os.kill(os.getpid(), signal.SIGKILL)
def let_fail(cls, name, moment):
    method = getattr(cls, name)
    def failing(self, *args):
        result = method(self, *args) if moment == "accepted" else None
        fail(moment)
        return result or method(self, *args)
    setattr(cls, name, failing)
let_fail(KeeperChannel, "keep", "accepted")
let_fail(Server, "_opened", "opened")
let_fail(Adoption, "begin", "continued")
def dask_setup(scheduler):
    fail("started")
"""


def test_process_that_fails_early_is_replaced(
    start_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    preload = tmp_path / "fails_early.py"
    preload.write_text(FAILS_EARLY)
    (tmp_path / "started").touch()
    cluster = start_cluster(
        nannies=(False,),
        options=["--durable", str(tmp_path / "log"), "--preload", str(preload)],
        config={**IMPORTABLE, "PACELINE_CHECK_MESSAGES": ""},
    )
    for moment in ("accepted", "opened", "continued"):
        (tmp_path / moment).touch()
    with Client(cluster.address, set_as_default=False) as client:
        assert client.submit(abs, -1).result(timeout=60) == 1
        assert client.scheduler_info()["restarts"] == 4
    assert "ended with 1; starting another one" in cluster.processes[0].output()


def leave_orphan() -> None:
    """Start a process that outlives its parent for a moment."""
    subprocess.run(["sh", "-c", "sleep 1 &"], check=True)


@needs("-rpf", "--mount-proc")
def test_keeper_is_the_first_process_of_a_container(start: Any, tmp_path: Path) -> None:
    cluster = start(["-rpf", "--mount-proc"], "", tmp_path / "log")
    assert (tmp_path / "log" / "keeper.pid").read_text() == "1\n"
    scheduler = cluster.processes[0]
    (keeper,) = psutil.Process(scheduler.pid).children()
    with Client(cluster.address, set_as_default=False) as client:
        kept = client.submit(abs, -1)
        client.run_on_scheduler(leave_orphan)
        time.sleep(2)
        eventually(lambda: not any(p.status() == "zombie" for p in keeper.children(recursive=True)))
        os.kill(_scheduler_process(keeper), signal.SIGKILL)
        assert client.submit(abs, kept).result(timeout=60) == 1
        assert client.scheduler_info()["restarts"] == 1
    keeper.terminate()
    assert scheduler.popen.wait(30) == 0
    assert "Stopped scheduler" in scheduler.output()


def _scheduler_process(keeper: psutil.Process) -> int:
    """Return the process id of the scheduler, outside of its namespace."""
    for process in keeper.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(
                each.laddr.port for each in process.net_connections() if each.status == "LISTEN"
            ):
                return process.pid
    raise AssertionError("there is no scheduler process")
