"""The processes of a durable scheduler, for tests."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


def pid(folder: Path, name: str = "scheduler") -> int:
    """Return the process id of the scheduler or keeper whose log is in `folder`/log."""
    return int((folder / "log" / f"{name}.pid").read_text())


def kill(folder: Path, name: str = "scheduler") -> None:
    """Kill the scheduler process or the keeper."""
    os.kill(pid(folder, name), signal.SIGKILL)


@contextlib.contextmanager
def stopped_keeper(folder: Path) -> Iterator[None]:
    """Stop the keeper, so that it notices only at the end what happened."""
    os.kill(pid(folder, "keeper"), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid(folder, "keeper"), signal.SIGCONT)
