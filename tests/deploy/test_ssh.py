"""SSHCluster, over a real SSH connection to a server in this process that runs its commands.

The scheduler is the class that `distributed.cli.dask_spec` names: paceline's if `remote_python` replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import dataframe_program

pytestmark = [pytest.mark.slow, pytest.mark.integration]
pytest.importorskip("dask.dataframe")
asyncssh = pytest.importorskip("asyncssh")

TAKEN_OVER = f"{sys.executable} -m paceline.takeover"


#: Pipes of commands that have ended are closed by the loop.
CLOSING_SECONDS = 0.3


async def pump(source: Any, target: Any) -> None:
    """Forward all output of a command to the SSH client."""
    while data := await source.read(65_536):
        target.write(data.decode())


async def run_command(process: Any) -> None:
    """Handle a login: run one command in a shell."""
    child = await asyncio.create_subprocess_shell(
        process.command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        await asyncio.gather(pump(child.stdout, process.stdout), pump(child.stderr, process.stderr))
        process.exit(await child.wait())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()


class AnybodyMayCome(asyncssh.SSHServer):  # type: ignore[misc]
    """Accept all users without a password; the server listens on this machine only."""

    def begin_auth(self, username: str) -> bool:
        return False


@pytest.fixture
def ssh_port() -> Iterator[int]:
    """Run a server in a separate thread."""
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        key = asyncssh.generate_private_key("ssh-ed25519")
        server = await asyncssh.create_server(
            AnybodyMayCome, "127.0.0.1", 0, server_host_keys=[key], process_factory=run_command
        )
        found.update(loop=asyncio.get_running_loop(), stop=asyncio.Event(), port=server.get_port())
        ready.set()
        await found["stop"].wait()
        server.close()
        commands = asyncio.all_tasks() - {asyncio.current_task()}
        for command in commands:
            command.cancel()
        await asyncio.gather(*commands, return_exceptions=True)
        await asyncio.sleep(CLOSING_SECONDS)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(30)
    yield found["port"]
    found["loop"].call_soon_threadsafe(found["stop"].set)
    thread.join(10)


@pytest.mark.parametrize("way", ["remote_python", "the environment"])
def test_ssh_cluster(
    way: str, ssh_port: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    from distributed import Client, SSHCluster

    if way == "the environment":
        request.getfixturevalue("taken_over")
    with (
        SSHCluster(
            ["127.0.0.1"] * 3,
            connect_options={"port": ssh_port, "known_hosts": None, "username": "anybody"},
            worker_options={"nthreads": 1, "local_directory": str(tmp_path)},
            scheduler_options={"port": 0, "dashboard_address": "127.0.0.1:0"},
            remote_python=TAKEN_OVER if way == "remote_python" else None,
        ) as cluster,
        Client(cluster) as client,
    ):
        dataframe_program.run(client)
