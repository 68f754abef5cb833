"""Clusters of real processes for tests and benchmarks: a scheduler command, and stock `dask worker` commands."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Client

    from tests.support.hosts import Host

START_TIMEOUT_SECONDS = 60.0  # a busy machine imports dask slowly
STOP_TIMEOUT_SECONDS = 8.0  # then the process group is killed
LOG_TAIL_NBYTES = 6000  # size of the end of each process's log that a failing test shows

STOCK = (sys.executable, "-m", "dask", "scheduler")
PACELINE = (str(Path(sys.executable).parent / "paceline"),)

#: Environment in which processes can import the package `tests`, and so unpickle functions of its modules.
IMPORTABLE = {"PYTHONPATH": str(Path(__file__).parents[2])}

#: Environment in which logs of processes are soon full, so that memory and dumps do not grow with them.
SHORT_LOGS = {
    "DASK_DISTRIBUTED__ADMIN__LOG_LENGTH": "200",
    "DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "100",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__LOG_LENGTH": "60",
}


def overridden() -> bool:
    """Return whether another command replaces paceline."""
    return "PACELINE_TEST_COMMAND" in os.environ


def scheduler_command(kind: str) -> tuple[str, ...]:
    """Return the command line of the scheduler called `stock` or `paceline`.

    PACELINE_TEST_COMMAND replaces the command of paceline, so that a program can be developed
    against the stock scheduler on both sides.
    """
    if kind == "stock":
        return STOCK
    override = os.environ.get("PACELINE_TEST_COMMAND")
    return tuple(shlex.split(override)) if override else PACELINE


@dataclass
class Process:
    """A process in its own process group, with its output in a file.

    Attributes:
        whole_group: whether to terminate the whole group, because ``popen`` is ``nsenter``.
    """

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    whole_group: bool = False

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self) -> str:
        return self.output()[-LOG_TAIL_NBYTES:]

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.whole_group:
                os.killpg(self.popen.pid, signal.SIGTERM)
            else:
                self.popen.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = STOP_TIMEOUT_SECONDS) -> int:
        """Return the exit code of the process; kill the rest of its process group."""
        try:
            code = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self.popen.wait()
        self.kill()
        return code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)


def start_process(
    name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
) -> Process:
    """Start a command that writes its output to `folder/name.log`."""
    log = folder / f"{name}.log"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
    with log.open("wb") as out:
        popen = subprocess.Popen(
            list(command),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=folder,
            env=environment,
        )
    return Process(name, popen, log)


def wait_for_nannies(client: Client, count: int) -> None:
    """Wait until `count` nannies report that their worker runs.

    A worker registers before its nanny knows that it started, and a nanny does not replace a worker
    that dies in between (distributed/nanny.py, `Nanny._on_worker_exit`, status `starting`).
    """

    def status(dask_worker: object) -> str:
        return dask_worker.status.name

    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    client.wait_for_workers(count, timeout=START_TIMEOUT_SECONDS)
    while list(client.run(status, nanny=True).values()).count("running") < count:
        assert time.monotonic() < deadline, "nannies did not start"
        time.sleep(0.05)


@dataclass
class Cluster:
    """A scheduler process and worker processes; use it as a context manager.

    Attributes:
        scheduler: its command line without options.
        nannies: whether each worker runs under a nanny.
        config: dask's configuration for all processes, as environment variables
            (`DASK_DISTRIBUTED__...`).
        python: interpreter of the workers.
        host: this machine's address, on which the scheduler listens.
        hosts: virtual hosts on which workers run in turn.
    """

    scheduler: Sequence[str]
    folder: Path
    nannies: Sequence[bool] = (True, False)
    nthreads: int = 2
    options: Sequence[str] = ()
    worker_options: Sequence[str] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    name: str = "scheduler"
    python: str = sys.executable
    host: str = "127.0.0.1"
    hosts: Sequence[Host] = ()
    processes: list[Process] = field(default_factory=list)
    address: str = ""

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.start_scheduler()
            for nanny in self.nannies:
                self.add_worker(nanny=nanny)
            self.wait_for_workers(len(self.nannies))
            if any(self.nannies):
                with self.client() as client:
                    wait_for_nannies(client, sum(self.nannies))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def scheduler_file(self) -> Path:
        return self.folder / "scheduler.json"

    def start_scheduler(self) -> None:
        """Start the scheduler on a free port and wait until its scheduler file contains an address."""
        command = [*self.scheduler, "--host", self.host, "--port", "0"]
        command += ["--dashboard-address", "127.0.0.1:0"]
        command += ["--scheduler-file", str(self.scheduler_file), *self.options]
        process = start_process(self.name, command, self.folder, self.config)
        self.processes.append(process)
        self.address = self._wait_for_address(process)

    def _wait_for_address(self, process: Process) -> str:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            # the file may be written in two steps: treat an unreadable one as missing
            with contextlib.suppress(OSError, ValueError):
                return str(json.loads(self.scheduler_file.read_text())["address"])
            if not process.running:
                raise RuntimeError(f"{process.name} ended at its start:\n{process.tail()}")
            time.sleep(0.05)
        raise TimeoutError(f"{process.name} gave no address:\n{process.tail()}")

    def add_worker(
        self, *, nanny: bool = False, name: str | None = None, address: str = ""
    ) -> Process:
        """Start one stock worker process without waiting for it to register.

        `address` replaces the scheduler's address, for example by that of a proxy.
        """
        name = name or f"worker-{len(self.processes)}"
        command = [self.python, "-m", "dask", "worker", address or self.address, "--name", name]
        command += ["--nanny" if nanny else "--no-nanny", "--nthreads", str(self.nthreads)]
        on = self.hosts[(len(self.processes) - 1) % len(self.hosts)] if self.hosts else None
        command += ["--no-dashboard", "--host", on.address if on else self.host]
        command += ["--memory-limit", "0", "--death-timeout", "60"]
        command += ["--local-directory", str(self.folder / "work" / name), *self.worker_options]
        started = on.command(command) if on else command
        process = start_process(name, started, self.folder, env=self.config)
        process.whole_group = on is not None
        self.processes.append(process)
        return process

    def wait_for_workers(self, count: int) -> None:
        """Wait until the given number of workers answer requests of a stock client."""
        with self.client() as client:
            try:
                client.wait_for_workers(count, timeout=START_TIMEOUT_SECONDS)
            except TimeoutError as exc:
                raise TimeoutError(f"no {count} workers registered\n{self.logs()}") from exc

    @contextlib.contextmanager
    def client(self, **options: object) -> Iterator[object]:
        """Yield a stock client, and close it when the block ends."""
        from distributed import Client

        with Client(self.address, timeout=START_TIMEOUT_SECONDS, **options) as client:
            yield client

    def logs(self) -> str:
        """Return the ends of all processes' logs, for the message of a failing test."""
        return "\n".join(
            f"--- {p.name} (pid {p.pid}, exit code {p.popen.poll()}) ---\n{p.tail()}"
            for p in self.processes
        )

    def close(self) -> None:
        """Stop all processes, workers before their scheduler, and kill those that do not stop in time."""
        scheduler, *workers = self.processes or [None]
        for process in workers:
            process.terminate()
        for process in workers:
            process.wait()
        if scheduler is not None:
            scheduler.terminate()
            scheduler.wait()
