"""Compute a dataframe with a stock client and a stock worker on paceline.

Only the command that starts the scheduler differs from a program for the stock scheduler.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dask.datasets import timeseries
from distributed import Client

PACELINE = str(Path(sys.executable).parent / "paceline")
LOCAL = ["--host", "127.0.0.1"]

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "scheduler.json"
    ports = ["--port", "0", "--dashboard-address", ":0"]
    scheduler = subprocess.Popen([PACELINE, *LOCAL, *ports, "--scheduler-file", str(file)])
    while not file.exists() and scheduler.poll() is None:
        time.sleep(0.1)
    address = json.loads(file.read_text())["address"]
    command = [sys.executable, "-m", "dask", "worker", address, *LOCAL, "--no-dashboard"]
    worker = subprocess.Popen([*command, "--nthreads", "2", "--local-directory", folder])
    try:
        with Client(address, timeout=30) as client:
            client.wait_for_workers(1, timeout=60)
            df = timeseries(end="2000-02-01", freq="60s", seed=1)
            means = df.groupby("name")["x"].mean().compute()
            selected = df[(df["x"] > 0) | (df["y"] < 0)].compute()
            print(means.describe())
            print(len(selected), "of", len(df), "rows are selected")
            assert len(means) == 26
            assert ((selected.x > 0) | (selected.y < 0)).all()
    finally:
        for process in (worker, scheduler):
            process.terminate()
            process.wait(20)
assert scheduler.returncode == 0, "the scheduler exits without error"
