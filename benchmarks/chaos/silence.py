"""Command `python -m benchmarks.chaos.silence`: measure how long a killed scheduler is silent.

The scheduler has zero workers and keeps many finished tasks. With `--load`, a client computes
graphs meanwhile. After each kill, `identity` without workers is requested on several connections
that were opened before: the first and the last reply are what peers notice. At the end, all futures
must have finished, all workers be there, each task have been computed once, with its dependencies
available, and after their release no task and no result be left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client, wait
from distributed.comm import connect
from distributed.core import send_recv

from ..graphs import SHAPES
from ..per_task import PACELINE, START_TIMEOUT_SECONDS, running_scheduler, zero_workers
from .__main__ import kill_scheduler

#: Connections on which a reply is requested after each kill.
N_PROBES = 20
#: Time within which the graphs of the load must be done after the last kill.
JOIN_SECONDS = 300
#: Time after which released tasks must be forgotten, and interval of the checks, seconds.
SETTLE_SECONDS, POLL_SECONDS = 30, 0.2


@dataclass(frozen=True)
class Loaded:
    """A scheduler under load."""

    address: str
    #: Numbers of the graphs computed meanwhile.
    graphs: list[int]
    #: What went wrong.
    problems: list[str]


async def silences(address: str, folder: Path, options: argparse.Namespace) -> list[list[float]]:
    """Kill the scheduler repeatedly.

    Return, for each kill, the seconds until each connection had its reply.
    """
    comms = [await connect(address) for _ in range(N_PROBES)]
    found = []
    choice = random.Random(options.seed)

    async def reply_seconds(comm: Any, since: float) -> float:
        await send_recv(comm, op="identity", n_workers=0)
        return time.monotonic() - since

    for _ in range(options.kills):
        await asyncio.sleep(options.interval * choice.uniform(0.5, 1.5))
        kill_scheduler(folder)
        killed = time.monotonic()
        found.append(await asyncio.gather(*(reply_seconds(comm, killed) for comm in comms)))
    for comm in comms:
        await comm.close()
    return found


@contextlib.contextmanager
def load(client: Client, n_tasks: int, problems: list[str]) -> Iterator[list[int]]:
    """Compute graphs of ``n_tasks`` tasks until the context is left. Yield the number of each."""
    ended = threading.Event()
    done: list[int] = []

    def run() -> None:
        for number in itertools.count():
            if ended.is_set():
                return
            graph, keys = SHAPES["tree"](n_tasks, f"load-{number}")
            futures = client.get(graph, keys, sync=False)
            wait(futures, timeout=JOIN_SECONDS)
            problems.extend(f"{each.key} is {each.status}" for each in futures if not each.done())
            problems.extend(f"{each.key} failed" for each in futures if each.status != "finished")
            done.append(number)

    thread = threading.Thread(target=run, daemon=True)
    if n_tasks:
        thread.start()
    yield done
    ended.set()
    if n_tasks:
        thread.join(JOIN_SECONDS)
        if thread.is_alive():
            problems.append("a graph was not computed")


@contextlib.contextmanager
def loaded_scheduler(options: argparse.Namespace, folder: Path) -> Iterator[Loaded]:
    """Run a durable scheduler with zero workers, finished tasks and the load of `options`.

    When the context is left, add to its problems what was lost meanwhile.
    """
    command = [*shlex.split(options.paceline), "--durable", str(folder)]
    problems: list[str] = []
    with contextlib.ExitStack() as stack:
        _, port = stack.enter_context(running_scheduler(command))
        address = f"tcp://127.0.0.1:{port}"
        counts = stack.enter_context(zero_workers(port, options.workers))
        client = stack.enter_context(Client(address, timeout=START_TIMEOUT_SECONDS))
        graph, keys = SHAPES["embarrassing"](options.tasks, "kept")
        kept = client.get(graph, keys, sync=False)
        wait(kept)
        with load(client, options.load, problems) as graphs:
            yield Loaded(address, graphs, problems)
        lost = sum(each.status != "finished" for each in kept)
        if lost:
            problems.append(f"{lost} futures are not finished")
        n_workers = len(client.scheduler_info(n_workers=-1)["workers"])
        if n_workers != options.workers:
            problems.append(f"{n_workers} workers are left")
        n_tasks = len(graph)
        if graphs:
            n_tasks += len(graphs) * len(SHAPES["tree"](options.load, "")[0])
        kept.clear()
        problems += leftovers(client, counts, n_tasks)


def leftovers(client: Client, counts: Callable[[], dict[str, int]], n_tasks: int) -> list[str]:
    """Return what differs after `n_tasks` tasks were computed once and released."""
    expected = {"computed": n_tasks, "repeated": 0, "missing": 0, "held": 0}
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        left = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        found = counts()
        if (left == 0 and found == expected) or time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    problems = [f"{left} tasks are left"] if left else []
    if found != expected:
        problems.append(f"workers were sent {found}, expected {expected}")
    return problems


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the benchmark. Return medians and maxima in seconds, and what went wrong."""
    with loaded_scheduler(options, folder) as loaded:
        found = asyncio.run(silences(loaded.address, folder, options))
    first, last = sorted(map(min, found)), sorted(map(max, found))
    return {
        "kills": options.kills,
        "tasks": options.tasks,
        "workers": options.workers,
        "graphs": len(loaded.graphs),
        "first_reply_seconds": {"median": first[len(first) // 2], "max": first[-1]},
        "last_reply_seconds": {"median": last[len(last) // 2], "max": last[-1]},
        "problems": loaded.problems,
    }


def add_options(parser: argparse.ArgumentParser, n_workers: int) -> None:
    """Add the options of the scheduler, its tasks and its load to `parser`."""
    parser.add_argument("--tasks", type=int, default=100_000, help="finished tasks that are kept")
    parser.add_argument("--workers", type=int, default=n_workers, help="number of zero workers")
    parser.add_argument("--load", type=int, default=0, help="tasks per graph computed meanwhile")
    parser.add_argument("--paceline", default=shlex.join(PACELINE))


def run(
    measure: Callable[[argparse.Namespace, Path], dict[str, Any]], options: argparse.Namespace
) -> None:
    """Print what `measure` returns. Exit with 1 if anything was lost."""
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    print(json.dumps(result, indent=2))
    sys.exit(1 if result["problems"] else 0)


def main() -> None:
    """Run with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos.silence", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="how often")
    parser.add_argument("--interval", type=float, default=5, help="mean time between, seconds")
    parser.add_argument("--seed", type=int, default=1)
    add_options(parser, n_workers=1000)
    run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
