"""Work computed again when workers are lost, in simulated time.

In an hour of work of 20 model workers with 2 threads, 6 of them are killed at random times and
replaced 30 s later. Printed are the thread-seconds of runs whose result had been computed before
(they are counted as if in full), as part of all thread-seconds, and the bytes of second copies, as
part of what the network of the workers can carry and of the results computed.

``python -m benchmarks.losses`` runs each program with second copies and without, the policy of the
stock scheduler.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

from paceline.protocol import messages as m
from paceline.scheduler.core.stimuli import WorkerRemoved
from paceline.scheduler.extensions.memory_manager import MemoryManager
from paceline.testing import Graph

from .fairness import chains
from .simulated import BYTES_PER_SECOND, Cluster, Worker

N_WORKERS, NTHREADS, N_KILLED = 20, 2, 6
HOUR = 3600.0
REPLACED_SECONDS = 30.0
#: Tasks of a minute that fill the hour, and what each returns.
N_TASKS = int(HOUR / 60 * N_WORKERS * NTHREADS)
NBYTES = 20_000_000

Program: TypeAlias = Callable[[], Graph]


class LossyCluster(Cluster):
    """A cluster whose workers are killed and replaced.

    Attributes:
        n_runs: key -> number of times that it was computed.
        copied_nbytes: bytes of second copies.
    """

    def __init__(self, seed: int, second_copies: bool) -> None:
        manager = MemoryManager(interval_seconds=2.0, measure="managed")
        super().__init__(
            True, N_WORKERS, NTHREADS, extensions=[manager], second_copies=second_copies
        )
        self.feed(m.AmmHandler(method="start"))
        self.n_runs: Counter[Any] = Counter()
        self.copied_nbytes = 0
        rng = Random(seed)
        for worker in rng.sample(sorted(self.workers), N_KILLED):
            self.after(rng.uniform(0.0, HOUR), self._kill, worker)

    def _kill(self, address: str) -> None:
        if not self.n_left:
            return
        worker = self.workers.pop(address)
        self.held_nbytes -= sum(self.nbytes[key] for key in worker.data)
        worker.data.clear()
        worker.jobs.clear()
        self.feed(WorkerRemoved(address))
        self.after(REPLACED_SECONDS, self.add_worker, f"{address}-2", NTHREADS)

    def _is_gone(self, worker: Worker) -> bool:
        return self.workers.get(worker.address) is not worker

    def _receive(self, worker: Worker, message: Any) -> None:
        if self._is_gone(worker):
            return
        if type(message) is m.AcquireReplicas:
            for key in message.who_has:
                if key not in worker.data:
                    self.copied_nbytes += self.nbytes[key]
                    self._fetch(worker, key)
        else:
            super()._receive(worker, message)

    def _fetched(self, worker: Worker, key: Any) -> None:
        if not self._is_gone(worker):
            super()._fetched(worker, key)

    def _finish(self, worker: Worker, job: Any, start: float) -> None:
        if self._is_gone(worker):
            return
        self.n_left += self.n_runs[job.message.key] > 0
        self.n_runs[job.message.key] += 1
        super()._finish(worker, job, start)


# ------------------------------------------------------------------ programs


def long_chains() -> Graph:
    """Return chains of 12 tasks: each result is released when the next one is there."""
    return chains("step", N_TASKS // 12, 12)


def kept_results() -> Graph:
    """Return tasks whose results are all held until they are combined at the end."""
    graph: dict[Any, list[Any]] = {("load", i): [] for i in range(N_TASKS)}
    return {**graph, "all": list(graph)}


def rounds() -> Graph:
    """Return 24 rounds of tasks that each take three results of the round before."""
    n = N_TASKS // 24
    graph: dict[Any, list[Any]] = {("round-0", i): [] for i in range(n)}
    for r in range(1, 24):
        for i in range(n):
            graph[(f"round-{r}", i)] = [(f"round-{r - 1}", (i + d) % n) for d in (-1, 0, 1)]
    return graph


def tree() -> Graph:
    """Return a reduction of results in groups of eight."""
    graph: dict[Any, list[Any]] = {("leaf", i): [] for i in range(N_TASKS * 7 // 8)}
    level, name = list(graph), 0
    while len(level) > 1:
        name += 1
        level_above = [(f"node-{name}", i) for i in range((len(level) + 7) // 8)]
        graph |= {key: level[8 * i : 8 * i + 8] for i, key in enumerate(level_above)}
        level = level_above
    return graph


PROGRAMS: tuple[Program, ...] = (long_chains, kept_results, rounds, tree)


def run(graph: Graph, seed: int, second_copies: bool) -> tuple[float, float, float, float]:
    """Run `graph`.

    Returns:
        hours; the part of the work that was done again; bytes of second copies as part of what the
        network carries in that time, and of the bytes of all results.
    """
    cluster = LossyCluster(seed, second_copies)
    begin = cluster.now
    cluster.submit("c", graph, 60.0, NBYTES)
    cluster.run()
    seconds = cluster.now - begin
    work = sum(cluster.seconds[key] for key in graph)
    again = sum((n - 1) * cluster.seconds[key] for key, n in cluster.n_runs.items())
    carried = BYTES_PER_SECOND * N_WORKERS * seconds
    copied = cluster.copied_nbytes
    return seconds / HOUR, again / work, copied / carried, copied / sum(cluster.nbytes.values())


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each program and policy."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.losses",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=5, help="runs of which the mean is printed")
    options = parser.parse_args(arguments)
    for program in PROGRAMS:
        for second_copies in (True, False):
            runs = [run(program(), seed, second_copies) for seed in range(options.seeds)]
            hours, again, network, results = (sum(column) / len(runs) for column in zip(*runs))
            print(
                f"{program.__name__:>13}, {'with' if second_copies else 'without'} second copies: "
                f"{hours:.2f} h, {again:.1%} of the work again, copies: {network:.2%} of the "
                f"network, {results:.0%} of the results",
                flush=True,
            )


if __name__ == "__main__":
    main()
