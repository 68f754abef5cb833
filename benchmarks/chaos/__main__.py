"""Command `python -m benchmarks.chaos`: kill the scheduler process while clients compute."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from distributed import Client

from ..per_task import PACELINE, START_TIMEOUT_SECONDS, real_workers, running_scheduler
from . import workloads

#: Time that the last runs of the workloads may take after the last kill.
JOIN_SECONDS = 300
#: Time after which released tasks must be forgotten.
SETTLE_SECONDS = 2
#: Interval of the checks whether a renewed scheduler process is there, seconds.
RENEWAL_POLL_SECONDS = 0.01


def kill_scheduler(folder: Path) -> None:
    """Kill the scheduler process, not its keeper. If it is being renewed, wait for the next one."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((folder / "scheduler.pid").read_text()), signal.SIGKILL)
            return
        time.sleep(RENEWAL_POLL_SECONDS)


def compute_until_killed(
    client: Client, address: str, work: Path, log: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Run the workloads and kill the scheduler. Return the result of each workload."""
    ended = threading.Event()
    results: dict[str, Any] = {}

    def run(name: str, seed: int) -> None:
        results[name] = workloads.run(name, address, work, seed, lambda: not ended.is_set())

    threads = [
        threading.Thread(target=run, args=(name, seed), daemon=True)
        for seed, name in enumerate(options.only or workloads.WORKLOADS)
    ]
    for thread in threads:
        thread.start()
    choice = random.Random(options.seed)
    for _ in range(options.kills):
        time.sleep(options.interval * choice.uniform(0.5, 1.5))
        kill_scheduler(log)
    ended.set()
    for thread in threads:
        thread.join(JOIN_SECONDS)
    return results


def chaos(options: argparse.Namespace, log: Path, work: Path) -> dict[str, Any]:
    """Run the benchmark. Return what was counted and what went wrong."""
    command = [*shlex.split(options.paceline), "--durable", str(log)]
    # all processes import the workloads, but not this checkout's paceline
    (work / "benchmarks").symlink_to(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = str(work)
    with contextlib.ExitStack() as stack:
        _, port = stack.enter_context(running_scheduler(command))
        address = f"tcp://127.0.0.1:{port}"
        stack.enter_context(real_workers(address, options.workers, options.threads))
        client = stack.enter_context(
            Client(address, timeout=START_TIMEOUT_SECONDS, set_as_default=False)
        )
        client.wait_for_workers(options.workers, timeout=START_TIMEOUT_SECONDS)
        before = sorted(client.scheduler_info(n_workers=-1)["workers"])
        results = compute_until_killed(client, address, work, log, options)
        after = sorted(client.scheduler_info(n_workers=-1)["workers"])
        time.sleep(SETTLE_SECONDS)
        left = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
    problems = [each for result in results.values() for each in result["problems"]]
    missing = set(options.only or workloads.WORKLOADS) - results.keys()
    problems += [f"{name} did not end" for name in missing]
    if before != after:
        problems.append(f"workers changed from {before} to {after}")
    if left:
        problems.append(f"tasks are left: {left[:10]}")
    return {
        "kills": options.kills,
        "runs": {name: result["runs"] for name, result in results.items()},
        "problems": problems,
    }


def main() -> None:
    """Run with the options of the command line. Exit with 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="how often")
    parser.add_argument("--interval", type=float, default=10, help="mean time between, seconds")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=workloads.WORKLOADS, metavar="WORKLOAD")
    parser.add_argument("--paceline", default=shlex.join(PACELINE))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.mkdir()
        result = chaos(options, Path(folder, "log"), work)
    print(json.dumps(result, indent=2))
    sys.exit(1 if result["problems"] else 0)


if __name__ == "__main__":
    main()
