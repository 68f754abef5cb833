"""Floods of connections against a scheduler with a low limit of open files."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest
from distributed import Client

from tests.support.certificates import Authority, Pair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FILES_MAX = 160
FLOOD = 400
#: Maximum size of the log while connections are refused.
LOG_MAX_NBYTES = 20_000
FLOOD_SECONDS = 5.0


@dataclass
class Scheduler:
    """Start a scheduler process with a low limit of open files."""

    process: subprocess.Popen[bytes]
    address: str
    page_port: int
    log: Path

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def health(self) -> bytes:
        with urlopen(f"http://127.0.0.1:{self.page_port}/health", timeout=30) as answer:
            return bytes(answer.read())


@contextlib.contextmanager
def scheduler(folder: Path, loop: str, *options: str) -> Iterator[Scheduler]:
    file, log = folder / "scheduler.json", folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "paceline.scheduler",
                "--host",
                options[0],
                "--port",
                "0",
                *options[1:],
            ]
            + ["--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(file)],
            env={**os.environ, "DASK_DISTRIBUTED__ADMIN__EVENT_LOOP": loop},
            stdout=output,
            stderr=output,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX)),
        )
    try:
        deadline = time.monotonic() + 60
        while not file.exists():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        found = json.loads(file.read_text())
        yield Scheduler(process, found["address"], found["services"]["dashboard"], log)
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def worker(address: str, *options: str) -> Iterator[None]:
    command = [
        sys.executable,
        "-m",
        "dask",
        "worker",
        address,
        "--nthreads",
        "1",
        "--no-nanny",
        "--no-dashboard",
    ]
    process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def flood(port: int) -> Iterator[list[socket.socket]]:
    """Hold many silent connections."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(FLOOD):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(("127.0.0.1", port))
            connections.append(connection)
        time.sleep(FLOOD_SECONDS)
        yield connections


def is_up(connection: socket.socket) -> bool:
    """Return whether the peer has not closed the connection."""
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_connections_to_the_pages_leave_descriptors_for_peers(loop: str, tmp_path: Path) -> None:
    with (
        scheduler(tmp_path, loop, "127.0.0.1") as under_test,
        worker(under_test.address),
        Client(under_test.address) as client,
    ):
        client.wait_for_workers(1, timeout=60)
        with flood(under_test.page_port) as connections:
            assert under_test.health() == b"ok"
            assert client.submit(sum, [1, 2]).result(timeout=30) == 3
            with Client(under_test.address, timeout=30) as another:
                assert another.submit(sum, [3, 4]).result(timeout=30) == 7
            assert sum(map(is_up, connections)) <= FILES_MAX // 4
        log = under_test.log.read_text()
        assert log.count("HTTP connections are open") == 1 and "Cannot accept" not in log
        assert len(log) < LOG_MAX_NBYTES, log[-2000:]


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws", "wss"])
def test_connections_to_the_port_of_peers_are_accepted_later(
    scheme: str, loop: str, tmp_path: Path
) -> None:
    options, security = [f"{scheme}://127.0.0.1"], None
    if scheme in ("tls", "wss"):
        authority = Authority(tmp_path)
        pair: Pair = authority.issue("127.0.0.1", alternatives=("127.0.0.1",))
        options += [
            "--tls-ca-file",
            authority.ca_file,
            "--tls-cert",
            pair.cert,
            "--tls-key",
            pair.key,
        ]
        from distributed import Security

        files = {"ca_file": authority.ca_file, "client_cert": pair.cert, "client_key": pair.key}
        security = Security(
            require_encryption=True, **{f"tls_{name}": each for name, each in files.items()}
        )
    with (
        scheduler(tmp_path, loop, *options) as under_test,
        worker(under_test.address, *options[1:]),
        Client(under_test.address, security=security) as client,
    ):
        client.wait_for_workers(1, timeout=60)
        client.submit(sum, [1, 2]).result(timeout=30)
        with flood(under_test.port):
            assert client.submit(sum, [3, 4]).result(timeout=30) == 7
            log = under_test.log.read_text()
            assert len(log) < LOG_MAX_NBYTES, log[-2000:]
            assert log.count("Cannot accept connections") == 1
        with Client(under_test.address, security=security, timeout=60) as another:
            assert another.submit(sum, [5, 6]).result(timeout=30) == 11
        assert len(under_test.log.read_text()) < LOG_MAX_NBYTES
