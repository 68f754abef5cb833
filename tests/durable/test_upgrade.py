"""A durable scheduler is replaced by another release, with stock workers and clients."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from click.testing import CliRunner
from distributed import Client
from paceline.scheduler.server.cli.main import main
from paceline.scheduler.server.durable.channel import kept, messages
from paceline.scheduler.server.durable.channel.deaths import Death
from paceline.scheduler.server.durable.keeper import control
from paceline.scheduler.server.durable.keeper.upgrade import UpgradeError, needs_renewal
from paceline.scheduler.server.durable.log import segments as log
from paceline.scheduler.server.durable.standby import new_release, snapshot

from benchmarks.chaos.workloads import WORKLOADS
from tests.support.real_cluster import IMPORTABLE, PACELINE, Cluster

from .test_kills import inc, kill, pid

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="a durable scheduler needs Linux"),
]

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "scheduler", "testing", "transfer", "workers_compat")


class Releases:
    """Copies of paceline with other version strings. Processes import the one that is installed.

    They are not compiled, so that edits of their files take effect.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "installed"

    def add(self, version: str, edits: dict[str, tuple[str, str]] | None = None) -> None:
        """Copy paceline, and replace texts in some of its files."""
        package = self._folder / version / "paceline"
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / "paceline", package, ignore=ignored)
        for name in PACKAGES:
            shutil.copytree(ROOT / name, package / name, ignore=ignored)
        metadata = self._folder / version / f"paceline-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: paceline\nVersion: {version}\n")
        for name, (old, new) in (edits or {}).items():
            file = package / name
            text = file.read_text()
            assert old in text, name
            file.write_text(text.replace(old, new))

    def install(self, version: str) -> None:
        link = self._folder / "link"
        link.symlink_to(self._folder / version)
        link.replace(self.path)


@pytest.fixture
def releases(tmp_path: Path, request: pytest.FixtureRequest) -> Releases:
    found = Releases(tmp_path / "releases")
    found.add("8.1", getattr(request, "param", None))
    found.install("8.1")
    return found


@pytest.fixture
def cluster(
    start_cluster: Callable[..., Cluster], releases: Releases, tmp_path: Path
) -> Iterator[Cluster]:
    """A durable cluster of the release that is installed."""
    path = os.pathsep.join([str(releases.path), IMPORTABLE["PYTHONPATH"]])
    yield start_cluster(
        nannies=(False, False),
        nthreads=2,
        options=["--durable", str(tmp_path / "log")],
        config={"PYTHONPATH": path, "PACELINE_CHECK_MESSAGES": ""},
    )


def upgrade(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [*PACELINE, "upgrade", str(folder / "log")]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def build(client: Client) -> str:
    return str(client.scheduler_info()["build"]).split()[1]


def wait_for_file(path: Path, seconds: float) -> None:
    """Wait until a file exists, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)


def wait_for_build(client: Client, version: str) -> None:
    deadline = time.monotonic() + 60
    while build(client) != version:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_work_goes_on(cluster: Cluster, releases: Releases, tmp_path: Path) -> None:
    releases.add("8.2")
    keeper = pid(tmp_path, "keeper")
    ended = threading.Event()
    problems: list[str] = []
    with Client(cluster.address, set_as_default=False) as client:
        before = sorted(client.scheduler_info()["workers"])
        kept = client.submit(inc, 1)
        assert kept.result(timeout=90) == 2
        assert build(client) == "8.1"

        def work(name: str) -> None:
            while not ended.is_set():
                problems.extend(WORKLOADS[name](client, tmp_path, random.Random(1)))

        names = ("shuffle", "futures", "coordination")
        threads = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        time.sleep(1)
        releases.install("8.2")
        done = upgrade(tmp_path)
        assert done.returncode == 0, done.stderr + cluster.processes[0].output()
        assert "Upgraded from 8.1 (pure Python) to 8.2 (pure Python)." in done.stdout
        time.sleep(1)
        assert build(client) == "8.2"
        kill(tmp_path)  # the next process is of the new release, too
        time.sleep(1)
        ended.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert problems == []
        assert build(client) == "8.2"
        assert sorted(client.scheduler_info()["workers"]) == before
        assert client.submit(inc, kept).result(timeout=90) == 3
        assert client.status == "running"
        assert client.scheduler_info()["restarts"] == 1
        assert pid(tmp_path, "keeper") == keeper == cluster.processes[0].pid
        assert "upgraded 1 time" in shown(cluster)
        page = f"http://127.0.0.1:{client.scheduler_info()['services']['dashboard']}/metrics"
    with urllib.request.urlopen(page, timeout=90) as reply:
        lines = dict(line.split(" ", 1) for line in reply.read().decode().splitlines())
    assert lines["dask_paceline_upgrades_total"] == lines["dask_paceline_restarts_total"] == "1.0"


def shown(cluster: Cluster) -> str:
    command = [*PACELINE, "status", cluster.address, "--once"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


#: Faults of the other release, in which file, and what ``paceline upgrade`` prints.
FAULTS: dict[str, tuple[str, str, str, str]] = {
    "syntax": (
        "scheduler/server/driver.py",
        "class Driver:",
        "class Driver!:",
        "class Driver!:\n",
    ),
    "after": (
        "scheduler/server/durable/durability.py",
        '"""Continue all connections, once the server has been set up."""',
        "os._exit(3)",
        "the process of the other release ended with 3 before it was ready",
    ),
}


def test_old_release_goes_on_if_the_other_fails(
    cluster: Cluster, releases: Releases, tmp_path: Path
) -> None:
    with Client(cluster.address, set_as_default=False) as client:
        kept = client.submit(inc, 1)
        assert kept.result(timeout=90) == 2
        n_restarts = 0
        for number, (name, (file, old, new, text)) in enumerate(FAULTS.items()):
            releases.add(f"9.{number}", {file: (old, new)})
            releases.install(f"9.{number}")
            before = pid(tmp_path)
            done = upgrade(tmp_path)
            assert done.returncode == 1, name
            assert text in done.stderr, done.stderr + cluster.processes[0].output()
            if name == "after":  # the log has the process that was replaced, and the one that died
                n_restarts += 1
            else:
                assert pid(tmp_path) == before
            assert client.submit(inc, kept).result(timeout=90) == 3
            assert build(client) == "8.1"
            assert client.scheduler_info()["restarts"] == n_restarts
        assert not list((tmp_path / "log").glob("snapshot*"))
        releases.add("9.9")
        releases.install("9.9")
        os.kill(pid(tmp_path, "keeper"), signal.SIGUSR2)
        wait_for_build(client, "9.9")
        assert client.submit(inc, kept).result(timeout=90) == 3


def test_end_during_an_upgrade_leaves_no_snapshot(cluster: Cluster, tmp_path: Path) -> None:
    scheduler = cluster.processes[0]
    with subprocess.Popen([*PACELINE, "upgrade", str(tmp_path / "log")]) as upgrading:
        wait_for_file(tmp_path / "log" / "snapshot", 60)
        scheduler.terminate()
        assert scheduler.popen.wait(60) == 0
        assert upgrading.wait(60) == 1
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["lock"]


def test_signal_while_the_other_release_is_executed(
    cluster: Cluster, releases: Releases, tmp_path: Path
) -> None:
    slow = '_write_pid("begun", 1); time.sleep(1)'
    keeper = "scheduler/server/durable/keeper/keeper.py"
    releases.add("9.9", {keeper: ('setproctitle("paceline keeper")', f"self.{slow}")})
    releases.install("9.9")
    scheduler = cluster.processes[0]
    os.kill(pid(tmp_path, "keeper"), signal.SIGUSR2)
    wait_for_file(tmp_path / "log" / "begun", 90)
    scheduler.terminate()
    assert scheduler.popen.wait(60) == 0
    assert "signal-15" in scheduler.output()


def test_snapshot_cannot_be_written(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "log" / "snapshot.tmp").mkdir()
    done = upgrade(tmp_path)
    assert done.returncode == 1
    assert "Is a directory" in done.stderr, done.stderr
    (tmp_path / "log" / "snapshot.tmp").rmdir()
    with Client(cluster.address, set_as_default=False) as client:
        assert client.submit(inc, 1).result(timeout=90) == 2


#: Edits of the function that writes snapshots, and what ``paceline upgrade`` prints.
WRITER = "scheduler/server/durable/standby/snapshot.py"
DIES = ("    file.write(_HEADER", "    __import__('os')._exit(9)\n    file.write(_HEADER")
TRUNCATES = ("    file.flush()\n", "    file.truncate(1000)\n")


@pytest.mark.parametrize(
    ("releases", "text"),
    [
        ({WRITER: DIES}, "the snapshot cannot be written: the process that wrote it died"),
        ({WRITER: TRUNCATES}, "the snapshot has 1000 bytes, which its header contradicts"),
    ],
    indirect=["releases"],
    ids=["died", "truncated"],
)
def test_half_written_snapshot_ends_only_the_upgrade(
    cluster: Cluster, tmp_path: Path, text: str
) -> None:
    with Client(cluster.address, set_as_default=False) as client:
        kept = client.submit(inc, 1)
        assert kept.result(timeout=90) == 2
        before = pid(tmp_path)
        done = upgrade(tmp_path)
        assert done.returncode == 1
        assert text in done.stderr, done.stderr
        assert pid(tmp_path) == before
        assert not list((tmp_path / "log").glob("snapshot*"))
        kill(tmp_path)
        assert client.submit(inc, kept).result(timeout=90) == 3


@pytest.mark.parametrize(
    ("arguments", "configured", "folder"),
    [
        (["."], None, Path.cwd()),
        (["~/log"], None, Path("/alice/log")),
        ([], "~/log", Path("/alice/log")),
        ([], Path("~/log"), Path("/alice/log")),
        ([], None, None),
        ([""], "/log", None),
        ([], True, None),
    ],
)
def test_folder_of_the_command(
    arguments: list[str], configured: object, folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Path] = []

    def call(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
        called.append(folder)
        return {"from": "8.1", "to": "8.2", "seconds": 0.1}

    monkeypatch.setattr(control, "call", call)
    monkeypatch.setenv("HOME", "/alice")
    with dask.config.set({"paceline.scheduler.durable": configured}):
        result = CliRunner().invoke(main, ["upgrade", *arguments])
    assert called == ([folder] if folder else [])
    assert ("Missing DIR" in result.output) is (folder is None)
    assert result.exit_code == (2 if folder is None else 0)


def test_no_keeper(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    done = upgrade(tmp_path)
    assert done.returncode == 1
    assert f"no scheduler with --durable {tmp_path}/log runs" in done.stderr


@pytest.mark.parametrize(
    ("keeper_format", "log_format", "text"),
    [
        (messages.FORMAT + 1, log.FORMAT, "the keeper's messages have format 5, and this release"),
        (messages.FORMAT, log.FORMAT + 1, "the log has format 6, and this release knows format 5"),
    ],
)
def test_other_formats_are_refused(
    keeper_format: int, log_format: int, text: str, tmp_path: Path
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = kept.Kept()
    with ours, open(tmp_path / "snapshot", "wb+") as file:
        snapshot.write(file, None, {"log": log_format})
        fds = [os.dup(fd) for fd in (memory.scratch.fd, memory.progress.shared.fd)]
        fds += [file.fileno(), 1, 2]
        message = json.dumps({"format": keeper_format, "folder": str(tmp_path)}).encode()
        socket.send_fds(ours, [message], fds)
        with pytest.raises(UpgradeError, match=text):
            new_release.join(theirs.detach())


@pytest.mark.parametrize(
    ("n_deaths", "seconds", "is_needed"),
    [(4, 60, False), (5, 60, True), (5, 0, False), (19, 0, False), (20, 0, True)],
)
def test_renewal_waits_for_a_pause_unless_many_died(
    n_deaths: int, seconds: float, is_needed: bool
) -> None:
    memory = kept.Kept()
    for _ in range(n_deaths):
        memory.deaths.add(Death(-9, time.time() - seconds))
    assert needs_renewal(memory) is is_needed


def test_control_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    ours = control.ControlSocket(folder)
    assert (folder / control.NAME).stat().st_mode & 0o777 == 0o600
    replies: list[Any] = []

    def call() -> None:
        replies.append(control.call(folder, {"number": len(replies)}))

    def requests() -> list[dict[str, Any]]:
        found = []
        deadline = time.monotonic() + 30
        while not found and time.monotonic() < deadline:
            for request, caller in ours.requests(ours.socks):
                found.append(request)
                control.reply(caller, {"done": True})
            time.sleep(0.01)
        return found

    thread = threading.Thread(target=call)
    thread.start()
    assert requests() == [{"number": 0}]
    thread.join(30)
    assert replies == [{"done": True}]
    ours.sock.close()
    with pytest.raises(control.ControlError, match="no scheduler"):
        call()
