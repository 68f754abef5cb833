"""The keeper: signals, child processes and files."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from distributed import Client
from paceline.scheduler.server.cli.run_scheduler import start_keeper
from paceline.scheduler.server.durable.channel.deaths import Death, DeathKind
from paceline.scheduler.server.durable.channel.keeper_channel import KeeperChannel
from paceline.scheduler.server.durable.channel.kept import Kept
from paceline.scheduler.server.durable.channel.messages import (
    GIVE_UP,
    HEAD,
    READY,
    RELEASE,
    STANDBY,
    STANDBY_NOW,
    STANDBY_SOON,
    receive,
    request_standby,
)
from paceline.scheduler.server.durable.channel.progress import HANG_SECONDS, Progress
from paceline.scheduler.server.durable.keeper import keeper as keeper_module
from paceline.scheduler.server.durable.keeper.keeper import (
    CHECK_SECONDS,
    START_PAUSE_SECONDS,
    Keeper,
)
from paceline.scheduler.server.durable.keeper.preconditions import make_folder
from paceline.scheduler.server.durable.keeper.standbys import Standby
from paceline.scheduler.server.durable.keeper.upgrade import Upgrade, UpgradeError
from paceline.scheduler.server.durable.log.durable_comm import DurableBackend
from paceline.scheduler.server.durable.scheduler_process import SchedulerProcess
from paceline.scheduler.server.http.server import bind_or_replace

from tests.support.durable_processes import kill, pid
from tests.support.real_cluster import PACELINE

from .conftest import StartDurable

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="a durable scheduler needs Linux"),
]


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """A keeper without a scheduler process."""
    keeper = Keeper(tmp_path)
    yield keeper
    close(keeper)


def close(keeper: Keeper) -> None:
    keeper._control.sock.close()
    os.close(keeper._lock)


@pytest.mark.parametrize(
    ("mode", "is_warned"), [(0o700, False), (0o755, False), (0o775, True), (0o777, True)]
)
def test_folder_to_which_others_can_write(
    mode: int, is_warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(mode)
    make_folder(tmp_path)
    assert (f"may be able to write to {tmp_path}" in caplog.text) is is_warned


def test_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []

    def start(folder: Path, state: object) -> SimpleNamespace:
        started.append(folder)
        return SimpleNamespace()

    monkeypatch.setattr(keeper_module, "start", start)
    monkeypatch.setenv("HOME", "/alice")
    start_keeper("~/log", {}, lambda channel: None)
    assert [*started, SchedulerProcess("~/log")._folder] == [Path("/alice/log")] * 2


def test_start_removes_what_an_earlier_keeper_has_left(tmp_path: Path) -> None:
    for name in ("snapshot", "snapshot.tmp", "segment-00000001.log", "other"):
        (tmp_path / name).touch()
    keeper = Keeper(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"control", "lock", "other"}
    close(keeper)


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


def test_segments_that_cannot_be_removed_do_not_end_the_keeper(
    keeper: Keeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "segment-00000001.log").mkdir()
    (tmp_path / "segment-00000001.log.bak").touch()
    keeper._standbys.remove_segments(2, None)
    assert "The keeper continues after an error: [Errno 21] Is a directory" in caplog.text


def test_pid_file_that_cannot_be_written_does_not_end_the_keeper(
    keeper: Keeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "scheduler.pid").mkdir()
    keeper._write_pid("scheduler.pid", 1)
    assert f"Cannot write the process id 1 to {tmp_path}/scheduler.pid" in caplog.text
    assert not (tmp_path / "scheduler.pid.tmp").exists()


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_standby_and_upgrade_for_which_no_descriptor_is_left(
    keeper: Keeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        keeper._handle(HEAD.pack(STANDBY, 1), [], ours)
        assert theirs.recv(100) == STANDBY_SOON
    assert keeper._standbys.upcoming is None
    assert "A standby cannot be kept: too many open files" in caplog.text
    ours, theirs = socket.socketpair()
    state: Any = SimpleNamespace(save=lambda: os.memfd_create("state"), successor=Standby(ours, 1))
    upgrade = Upgrade(tmp_path, keeper._kept, None, sys.executable, None)
    with theirs, no_descriptors(), pytest.raises(UpgradeError, match="Too many open files"):
        upgrade.execute(state)
    assert ours.fileno() == -1


def test_upgrade_ends_if_the_log_cannot_be_written(keeper: Keeper) -> None:
    errors: list[str] = []
    upgrade: Any = SimpleNamespace(
        segment=1, is_switching=False, step=lambda *_: False, failed=errors.append
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        keeper._upgrade = upgrade
        keeper._standbys.add(ours, 1)
        keeper._handle(HEAD.pack(GIVE_UP, 0), [], theirs)
        keeper._handle_upgrade([], theirs)
    assert errors == ["the log cannot be written any more"]
    assert keeper._upgrade is keeper._standbys.upcoming is None


def test_upgrade_requests_a_standby_of_each_process_until_it_has_one(
    keeper: Keeper, tmp_path: Path
) -> None:
    keeper._upgrade = Upgrade(tmp_path, keeper._kept, None, sys.executable, None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with ours, theirs:
        keeper._handle(HEAD.pack(READY, 0), [], ours)
        assert theirs.recv(100) == STANDBY_NOW
        keeper._upgrade.segment = 1
        keeper._handle(HEAD.pack(READY, 0), [], ours)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)


@pytest.mark.pure
def test_free_port_of_pages_is_kept_under_the_name_of_the_port_in_use() -> None:
    channel = Mock()
    channel.listening.return_value = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        backend = DurableBackend(Mock(), channel)
        (sock,) = backend.sockets("127.0.0.1", port, bind_or_replace, "http ")
    channel.listen.assert_called_once_with(f"http 127.0.0.1:{port}", [sock])
    sock.close()


def test_full_channel_loses_no_message_of_the_scheduler(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)  # as uvloop does
    channel = KeeperChannel(theirs, Kept(), tmp_path)
    messages = [HEAD.pack(RELEASE, number) for number in range(2_000)]
    with ThreadPoolExecutor(1) as executor, ours, theirs:
        received = executor.submit(lambda: [receive(ours)[0] for _ in messages])
        for number in range(2_000):
            channel.release(number)
        assert received.result() == messages


def test_full_channel_does_not_block_the_keeper() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for _ in range(2_000):
            request_standby(ours)
        assert theirs.recv(100) == STANDBY_SOON


def test_orphans_are_reaped_without_a_descriptor(keeper: Keeper) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as scheduler:
        keeper._pid = scheduler.pid
        orphan = os.posix_spawnp("true", ["true"], {})
        os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
        with no_descriptors():
            keeper._reap_orphans()
        with pytest.raises(ChildProcessError):
            os.waitpid(orphan, 0)
        scheduler.kill()
        os.waitid(os.P_PID, scheduler.pid, os.WEXITED | os.WNOWAIT)
        keeper._reap_orphans()
        assert scheduler.wait() == -signal.SIGKILL  # it was not reaped


def test_orphans_are_reaped_after_each_death(keeper: Keeper) -> None:
    orphan = os.posix_spawnp("true", ["true"], {})
    os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
    keeper._pid = os.posix_spawnp("true", ["true"], {})
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    assert keeper._serve(ours) == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(orphan, 0)


@pytest.mark.parametrize("closes", [False, True])
def test_exit_code_0_is_a_death_unless_the_scheduler_closes(
    closes: bool, keeper: Keeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper._pid = os.posix_spawnp("true", ["true"], {})
    with theirs:
        channel = KeeperChannel(theirs, keeper._kept, tmp_path)
        channel.ready()
        if closes:
            channel.ending()
    assert keeper._handle_end(keeper._serve(ours)) is not closes
    assert ("ended with 0; starting another one" in caplog.text) is not closes
    assert (keeper.exit_code, keeper._kept.deaths.n_restarts) == (0, int(not closes))


@pytest.mark.parametrize(("has_died", "n_forks"), [(False, 1), (True, 3)])
def test_process_that_cannot_be_forked(
    has_died: bool,
    n_forks: int,
    keeper: Keeper,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fail at the first start. Try again if there may be connections."""
    fork = Mock(side_effect=[BlockingIOError(errno.EAGAIN, "no process"), OSError("no memory"), 7])
    monkeypatch.setattr(keeper_module.os, "fork", fork)
    monkeypatch.setattr(keeper_module, "FORK_SECONDS", 0)
    if has_died:
        keeper._kept.deaths.add(Death(-9, 1e9))
    assert keeper._fork() == (7 if has_died else None)
    assert fork.call_count == n_forks
    outcome = "trying again in 0 s" if has_died else "giving up"
    assert f"Cannot fork a scheduler process: [Errno 11] no process; {outcome}" in caplog.text


@pytest.mark.parametrize("has_fallback", [False, True])
def test_pause_of_all_processes_is_no_hang(
    has_fallback: bool,
    keeper: Keeper,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    paused_seconds = 2 * HANG_SECONDS
    monkeypatch.setattr(Progress, "idle_seconds", lambda progress: paused_seconds)
    limit = HANG_SECONDS
    if has_fallback:  # the process of another release hangs before it is ready
        limit = START_PAUSE_SECONDS
        keeper._standbys.fallback = Standby(socket.socket(), 1)
        keeper._kept.deaths.add(Death(1, 1e9, kind=DeathKind.UPGRADED))
    else:
        keeper._was_ready = True
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as scheduler:
        keeper._pid = scheduler.pid
        for _ in range(int(limit / CHECK_SECONDS)):
            keeper._check_progress()
        assert scheduler.poll() is None
        keeper._check_progress()
        assert scheduler.wait() == -signal.SIGKILL
    assert "has not run for 600 s; killing it" in caplog.text
    keeper._standbys.end_fallback()
