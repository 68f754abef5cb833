"""Compute on a scheduler process with two stock workers and a client, and show progress bars.

The only part of paceline it uses is the command. `make demo` runs it.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dask.array as da
from dask.datasets import timeseries
from distributed import Client, progress

BIN = Path(sys.executable).parent
HERE = ["--host", "127.0.0.1"]
SCHEDULER = [str(BIN / "paceline"), *HERE, "--port", "0", "--dashboard-address", ":0"]
WORKER = [sys.executable, "-m", "dask", "worker", "--no-dashboard", *HERE]


def wait_for_address(file: Path, scheduler: subprocess.Popen) -> str:
    """Wait until the scheduler has written its address to `file`, and return the address."""
    for _ in range(600):
        if file.exists():
            return json.loads(file.read_text())["address"]
        if scheduler.poll() is not None:
            raise SystemExit("The scheduler exited during start-up; see its log above")
        time.sleep(0.1)
    raise SystemExit("The scheduler did not start within a minute")


def compute(client: Client) -> None:
    """Compute on a dataframe, an array and futures, and check the results."""
    print("\nA year of a random timeseries, 2.6 million rows: mean of x for each name")
    frame = timeseries(end="2000-12-31", freq="12s", partition_freq="5d", seed=42).persist()
    progress(frame, notebook=False)
    means = frame.groupby("name")["x"].mean().compute().sort_values()
    rows, spread = len(frame), means.abs().max()
    print(f"\n{means.head(3).to_string()}\n... {len(means)} names, {rows:,} rows")
    assert (rows, len(means)) == (365 * 24 * 60 * 5, 26), "rows or names are missing"
    assert spread < 0.05, f"x is uniform around zero, but a mean is {spread}"

    print("\nAn array of 64 million numbers: x + x.T is symmetric, and its sum is twice as large")
    x = da.random.default_rng(42).random((8000, 8000), chunks=(1000, 1000)).persist()
    y = (x + x.T).persist()
    progress(y, notebook=False)
    total, doubled, difference = da.compute(x.sum(), y.sum(), abs(y - y.T).max())
    print(f"\nsum of x {total:,.1f}, of x + x.T {doubled:,.1f}; asymmetry {difference}")
    assert difference == 0 and abs(doubled - 2 * total) < 1e-6 * total, "the results are wrong"

    squares = client.gather(client.map(lambda i: i * i, range(1000)))
    assert sum(squares) == 332_833_500, "the sum of squares is wrong"
    print("a thousand futures: the sum of squares is correct")


def main() -> None:
    """Start the cluster, compute, and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scheduler.json"
        scheduler = subprocess.Popen([*SCHEDULER, "--scheduler-file", str(file)])
        address = wait_for_address(file, scheduler)
        command = [*WORKER, address, "--nthreads", "1", "--local-directory", folder]
        workers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
        try:
            with Client(address, timeout=60) as client:
                client.wait_for_workers(2, timeout=60)
                print(f"\nscheduler {address}\nHTTP      {client.dashboard_link}")
                compute(client)
        finally:
            for process in (*workers, scheduler):
                process.terminate()
                process.wait(20)
    print("\nAll results are correct.")


if __name__ == "__main__":
    main()
