"""dask-mpi: `initialize()` in a program, and its command, under `mpiexec`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.deploy import dataframe_program
from tests.support.real_cluster import IMPORTABLE

pytestmark = [pytest.mark.slow, pytest.mark.integration]
pytest.importorskip("dask.dataframe")
pytest.importorskip("dask_mpi")
pytest.importorskip("mpi4py")
BIN = Path(sys.executable).parent
MPIEXEC = shutil.which("mpiexec", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
if MPIEXEC is None:
    pytest.skip("no mpiexec", allow_module_level=True)

PROGRAM = """
from paceline import takeover
takeover.install(own_process=True)  # before dask_mpi binds the class
from dask_mpi import initialize
initialize(dashboard_address="127.0.0.1:0")
from tests.deploy import dataframe_program
from dask.distributed import Client
with Client() as client:
    print("computed", dataframe_program.run(client), flush=True)
"""


def ranks(count: int, *command: str) -> list[str]:
    return [str(MPIEXEC), "-n", str(count), sys.executable, *command]


def test_initialize(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        ranks(4, str(program)),
        env={**os.environ, **IMPORTABLE},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0 and "computed" in done.stdout, done.stdout + done.stderr


def test_command(tmp_path: Path) -> None:
    from distributed import Client

    file = tmp_path / "scheduler.json"
    takeover = ("-m", "paceline.takeover", "-m", "dask_mpi.cli")
    options = ("--scheduler-file", str(file), "--dashboard-address", "127.0.0.1:0")
    process = subprocess.Popen(
        ranks(3, *takeover, *options, "--worker-class", "distributed.Worker"),
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        with Client(scheduler_file=str(file), timeout=60) as client:
            dataframe_program.run(client)
            client.shutdown()
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
