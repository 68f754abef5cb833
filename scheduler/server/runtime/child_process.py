"""Start and end child processes that run a module of this package.

Used by the graph compilers, the dashboard and performance reports. ``template.py`` starts the first
ones without importing anything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from paceline.workers_compat.config import config

#: Interval at which ``stop`` checks whether processes have ended, seconds.
POLL_SECONDS = 0.01


class ChildProcess(Protocol):
    """A child process; ``Popen`` is one."""

    @property
    def pid(self) -> int:
        """The process id."""

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises TimeoutExpired."""

    def kill(self) -> None:
        """Send SIGKILL."""


#: Starts a module with file descriptors that it inherits. Raises OSError.
Spawn = Callable[[str, Sequence[int]], ChildProcess]


def spawn(module: str, fds: Sequence[int]) -> ChildProcess:
    """Start ``python -m module FD...`` with the scheduler's configuration. Raises OSError.

    What it prints goes to standard error. It has a session of its own: Ctrl-C in a terminal reaches
    the scheduler only, which ends its children.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, fds)],
        stdin=subprocess.DEVNULL,
        stdout=2,
        pass_fds=fds,
        env=config.child_environment(),
        start_new_session=True,
    )


async def run(module: str, data: bytes, timeout: float) -> tuple[int, bytes, bytes]:
    """Run ``python -m module`` with ``data`` as input; return exit code, output and errors.

    The process is killed after ``timeout`` seconds, or if the caller is cancelled.

    Raises:
        OSError, TimeoutError: the process cannot be started, or did not end in time.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=config.child_environment(),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout):
            output, errors = await process.communicate(data)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, output, errors


async def stop(processes: Sequence[ChildProcess], timeout: float) -> None:
    """Wait up to ``timeout`` seconds for ``processes`` to end; kill those that have not."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while any(process.poll() is None for process in processes) and loop.time() < deadline:
        await asyncio.sleep(POLL_SECONDS)
    for process in processes:
        reap(process)


def reap(process: ChildProcess, timeout: float = 0.0) -> int:
    """Return the exit code of ``process``, which is killed after ``timeout`` seconds."""
    if timeout:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
    if process.poll() is None:
        process.kill()
    return process.wait()
