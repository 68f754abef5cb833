"""Command `python -m benchmarks.chaos.upgrade_silence`: measure how long an upgrade is noticed.

The scheduler has zero workers and keeps many finished tasks. It is upgraded to the same release.
Meanwhile `identity` is requested all the time: the slowest reply is the one for which the new
process was waited, and the slowest one before that shows how long the snapshot stalls the old one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from distributed import Client, wait
from distributed.comm import connect
from distributed.core import send_recv

from ..graphs import SHAPES
from ..per_task import START_TIMEOUT_SECONDS, running_scheduler, zero_workers
from .silence import load

#: Time between two requests, seconds.
PROBE_SECONDS = 0.002


async def upgrade(address: str, command: list[str]) -> dict[str, float]:
    """Upgrade the scheduler. Return durations in seconds."""
    comm = await connect(address)
    replies: list[tuple[float, float]] = []

    async def probe() -> None:
        while True:
            since = time.monotonic()
            await send_recv(comm, op="identity")
            replies.append((since, time.monotonic() - since))
            await asyncio.sleep(PROBE_SECONDS)

    probing = asyncio.create_task(probe())
    await asyncio.sleep(1)
    begun = time.monotonic()
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    total = time.monotonic() - begun
    await asyncio.sleep(1)
    probing.cancel()
    if process.returncode:
        raise RuntimeError("the upgrade failed")
    (without,) = re.findall(rb"for ([0-9.]+) s", output)
    switched, slowest = max(replies, key=lambda reply: reply[1])
    before = max(seconds for since, seconds in replies if begun < since < switched)
    return {
        "command_seconds": total,
        "without_process_seconds": float(without),
        "slowest_reply_seconds": slowest,
        "slowest_reply_before_seconds": before,
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the benchmark. Return durations, and what went wrong."""
    paceline = shlex.split(options.paceline)
    problems: list[str] = []
    with contextlib.ExitStack() as stack:
        _, port = stack.enter_context(running_scheduler([*paceline, "--durable", str(folder)]))
        address = f"tcp://127.0.0.1:{port}"
        stack.enter_context(zero_workers(port, options.workers))
        client = stack.enter_context(Client(address, timeout=START_TIMEOUT_SECONDS))
        graph, keys = SHAPES["embarrassing"](options.tasks, "kept")
        kept = client.get(graph, keys, sync=False)
        wait(kept)
        command = [*paceline, "upgrade", str(folder)]
        with load(client, options.load, problems):
            found = [asyncio.run(upgrade(address, command)) for _ in range(options.upgrades)]
        if any(future.status != "finished" for future in kept):
            problems.append("a future is not finished")
    return {"tasks": options.tasks, "upgrades": found, "problems": problems}


def main() -> None:
    """Run with the options of the command line. Exit with 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos.upgrade_silence")
    parser.add_argument("--upgrades", type=int, default=3, help="how often")
    parser.add_argument("--tasks", type=int, default=100_000, help="finished tasks that are kept")
    parser.add_argument("--workers", type=int, default=24, help="number of zero workers")
    parser.add_argument("--load", type=int, default=0, help="tasks per graph computed meanwhile")
    parser.add_argument("--paceline", default=f"{Path(sys.executable).with_name('paceline')}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    print(json.dumps(result, indent=2))
    sys.exit(1 if result["problems"] else 0)


if __name__ == "__main__":
    main()
