"""A durable scheduler in processes of its own, for ``LocalCluster(durable=DIR)``."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.scheduler.server.comm import addresses
from paceline.workers_compat import addressing, stock_classes
from paceline.workers_compat.config import config

from .keeper.preconditions import expanded

#: Runs the command, and ends it when the thread that started it does, such as by SIGKILL.
COMMAND = (
    "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGTERM); "  # PR_SET_PDEATHSIG
    "from paceline.scheduler.server.cli.main import main; main()"
)
#: Option of ``LocalCluster`` -> option of the command.
OPTIONS = {
    "host": "--host",
    "port": "--port",
    "interface": "--interface",
    "dashboard_address": "--dashboard-address",
    "idle_timeout": "--idle-timeout",
}
#: Options of ``LocalCluster`` that are handled here. The protocol is always tcp.
OTHER_OPTIONS = frozenset({"dashboard", "protocol", "security"})
#: Interval at which the address is read, seconds.
POLL_SECONDS = 0.02
#: Length of the end of the log in an error, bytes.
LOG_TAIL = 2_000


class SchedulerProcess(stock_classes.ProcessInterface):  # type: ignore[misc]
    """Starts ``paceline --durable``, and stops it.

    Args:
        durable: the folder of the log. The scheduler's output goes to ``scheduler.log`` in it.
        options: options of ``Scheduler``.

    Raises:
        ValueError: the command has no such option.
    """

    def __init__(self, durable: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self._folder = expanded(durable)
        # of this process alone: the scheduler of another program may use the folder
        self._address_file = self._folder / f"scheduler-{uuid.uuid4()}.json"
        self._arguments = _arguments(options)
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start the keeper and wait for the scheduler's address.

        Raises:
            RuntimeError: it has ended.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        arguments = ["--durable", str(self._folder), "--scheduler-file", str(self._address_file)]
        output = self._folder / "scheduler.log"
        with output.open("ab") as log:
            start = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *arguments, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **config.inherited()},
                start_new_session=True,  # Ctrl-C is for the program
            )
        while not self._address_file.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"the scheduler has ended:\n{_tail(output, start)}")
            await asyncio.sleep(POLL_SECONDS)
        self.address = json.loads(self._address_file.read_text())["address"]
        await super().start()

    async def close(self) -> None:
        """Stop the scheduler, and wait until all of its processes have ended."""
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait)
            self._address_file.unlink(missing_ok=True)  # the process may have been killed
        await super().close()


def _tail(file: Path, start: int) -> str:
    """Return the end of the text behind the position ``start``, at most ``LOG_TAIL`` bytes."""
    with file.open("rb") as log:
        log.seek(max(start, log.seek(0, os.SEEK_END) - LOG_TAIL))
        return log.read().decode(errors="replace")


def _arguments(options: Mapping[str, Any]) -> list[str]:
    """Return the options of the command."""
    if getattr(options.get("security"), "require_encryption", None):
        raise ValueError("a durable scheduler cannot use TLS")
    known = {*OPTIONS, *OTHER_OPTIONS}
    unknown = [name for name, value in options.items() if value and name not in known]
    if unknown:
        raise ValueError(f"LocalCluster(durable=) does not have the options {', '.join(unknown)}")
    arguments = [] if options.get("dashboard", True) else ["--no-dashboard"]
    if options.get("dashboard_address") is None:  # the command's default is all interfaces
        where = (options.get("host"), None, options.get("interface"), "tcp", 0)
        host = addresses.address_host(addresses.listen_address(*where))
        arguments += [
            "--dashboard-address",
            addressing.join_host_port(host, addresses.DASHBOARD_PORT),
        ]
    for name, option in OPTIONS.items():
        if options.get(name) is not None:
            arguments += [option, str(options[name])]
    return arguments
