"""Command `python -m benchmarks.chaos.upgrade_silence`: measure how long an upgrade is noticed.

The scheduler has zero workers and keeps many finished tasks. It is upgraded to the same release.
Meanwhile `identity` without workers is requested all the time. The slowest reply is the first one
of the new process. The slowest reply before that shows how long the snapshot stalls the old one.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
import time
from pathlib import Path
from typing import Any

from distributed.comm import connect
from distributed.core import send_recv

from .silence import add_options, loaded_scheduler, run

#: Time between two requests, seconds.
PROBE_SECONDS = 0.002


async def upgrade(address: str, command: list[str]) -> dict[str, float]:
    """Upgrade the scheduler. Return durations in seconds."""
    comm = await connect(address)
    replies: list[tuple[float, float]] = []

    async def probe() -> None:
        while True:
            since = time.monotonic()
            await send_recv(comm, op="identity", n_workers=0)
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
    await comm.close()
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
    command = [*shlex.split(options.paceline), "upgrade", str(folder)]
    with loaded_scheduler(options, folder) as loaded:
        found = [asyncio.run(upgrade(loaded.address, command)) for _ in range(options.upgrades)]
    return {"tasks": options.tasks, "upgrades": found, "problems": loaded.problems}


def main() -> None:
    """Run with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos.upgrade_silence")
    parser.add_argument("--upgrades", type=int, default=3, help="how often")
    add_options(parser, n_workers=24)
    run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
