"""Cost per task of share groups: ten clients that are ten groups, compared with one group.

``python -m benchmarks.groups_cost`` starts two schedulers and prints the time of the event loop per
task. All graphs are submitted before the zero workers, which are stopped until then, begin.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import statistics
import warnings
from pathlib import Path
from typing import Any

from . import process_costs
from .graphs import SHAPES
from .per_task import (
    PACELINE,
    START_TIMEOUT_SECONDS,
    WARM_UP_TASKS,
    running_scheduler,
    settle_all,
    zero_workers,
)

N_CLIENTS = 10
N_WORKERS = 24
#: Environment variable that puts all clients in one group.
ONE_GROUP = {"DASK_PACELINE__SHARES__CLIENTS": "{'*': 'all'}"}


def zero_worker_processes() -> list[int]:
    """Return the ids of the processes of zero workers that this process started."""
    pids = process_costs.descendants(os.getpid())
    return [pid for pid in pids if b"zero_workers" in Path(f"/proc/{pid}/cmdline").read_bytes()]


class Side:
    """A scheduler with zero workers and clients, all in one group or each in its own."""

    def __init__(
        self, stack: contextlib.ExitStack, command: list[str], settings: dict[str, str]
    ) -> None:
        from distributed import Client

        os.environ.update(settings)
        try:
            self.scheduler, port = stack.enter_context(running_scheduler(command))
        finally:
            for name in settings:
                del os.environ[name]
        before = zero_worker_processes()
        stack.enter_context(zero_workers(port, N_WORKERS))
        self.workers = [pid for pid in zero_worker_processes() if pid not in before]
        address = f"tcp://127.0.0.1:{port}"
        self.clients: list[Any] = [
            stack.enter_context(Client(address, timeout=START_TIMEOUT_SECONDS, name=f"client{i}"))
            for i in range(N_CLIENTS)
        ]
        self.loop = process_costs.listener(port, process_costs.descendants(self.scheduler))

    def run(self, shape: str, n_tasks: int, tag: str) -> float:
        """Compute a graph for each client. Return the time of the event loop in us per task."""
        from distributed import wait

        graphs = [SHAPES[shape](n_tasks // N_CLIENTS, f"{tag}-{i}") for i in range(N_CLIENTS)]
        for pid in self.workers:
            os.kill(pid, signal.SIGSTOP)
        before = process_costs.read(self.scheduler, self.loop)
        futures = [
            client.get(graph, outputs, sync=False)
            for client, (graph, outputs) in zip(self.clients, graphs)
        ]
        settle_all(self.scheduler)
        for pid in self.workers:
            os.kill(pid, signal.SIGCONT)
        for client, wanted in zip(self.clients, futures):
            with client.as_current():
                wait(wanted)
        futures.clear()
        del wanted
        settle_all(self.scheduler)
        spent = process_costs.read(self.scheduler, self.loop) - before
        return spent.loop_cpu * 1e6 / sum(len(graph) for graph, _ in graphs)


def main() -> None:
    """Print the cost per task of each shape of graph."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups_cost", description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--tasks", type=int, default=40_000, help="tasks of all clients together")
    parser.add_argument("--repeat", type=int, default=8)
    parser.add_argument("--paceline", default=shlex.join(PACELINE), help="command to measure")
    options = parser.parse_args()
    # zero workers report no versions
    warnings.filterwarnings("ignore", message="\\s*Mismatched versions")
    command = shlex.split(options.paceline)
    with contextlib.ExitStack() as stack:
        sides = [Side(stack, command, ONE_GROUP), Side(stack, command, {})]
        for shape in options.shapes:
            for side in sides:
                side.run(shape, WARM_UP_TASKS, f"warm-{shape}")
            pairs = []
            for i in range(options.repeat):
                order = sides if i % 2 else sides[::-1]
                found = {side: side.run(shape, options.tasks, f"{shape}{i}") for side in order}
                pairs.append([found[side] for side in sides])
            one, ten = (statistics.median(column) for column in zip(*pairs))
            more = statistics.median(b - a for a, b in pairs)
            print(f"{shape}: one group {one:.1f} us, ten {ten:.1f}, pairs {more:+.1f}", flush=True)


if __name__ == "__main__":
    main()
