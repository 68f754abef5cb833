"""Judge of schedules: recorded graphs on model workers, under different policies.

Each program of ``benchmarks.quality_programs`` runs once in this process, and its graph, the sizes
of its results and the durations of its tasks are recorded. Then the scheduler core plays it against
model workers (``benchmarks.simulated``) under each policy of ``POLICIES``, and under paceline's
with tasks in the order of their paths to a result, longest first. Random list schedules follow.
Durations are modelled by the bytes that a task touches, or with ``--measured`` as they were.
Printed are the time, the bytes moved and the peak of the bytes held, as ratios to Dask's policy,
and their geometric means.

With ``--waits``, chains of tasks are played instead, with and without the rule that root-ish tasks
with large results wait for free threads and for short tasks. Printed are the time and the peak of
the bytes held with the rule, as ratios to those without.

``python -m benchmarks.schedules [--only NAME …] [--json | --waits]``
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from paceline.testing import Rows

from .simulated import BYTES_PER_SECOND, Cluster

N_WORKERS, NTHREADS = 4, 2
#: As the real workers of the benchmarks have.
MEMORY_NBYTES = 4 * 10**9
#: Chains of ``--waits``, and the result of their first tasks, which is large for these workers.
N_CHAINS, CHUNK_NBYTES = 400, 2_000_000
#: Random list schedules of which the best of each measurement is taken.
RANDOM_SCHEDULES = 50
#: Modelled duration of a task: a constant, and the bytes it reads and returns at a rate.
TASK_SECONDS = 0.002
TOUCHED_BYTES_PER_SECOND = 500e6
#: Programs that need a client or workers.
NOT_RECORDED = ("p2p", "skewed")

#: Settings of the core by name of a policy. The others are compared with the first, Dask's: above
#: the default of 1.1, root-ish tasks do not wait for free threads.
POLICIES: dict[str, dict[str, Any]] = {
    "dask": {"coassigned_tasks": 0, "fetch_weight": 1.0, "worker_saturation": 1.11},
    "paceline": {},
}


@dataclass(frozen=True)
class Recording:
    """A graph that was run once.

    Attributes:
        graph: key -> keys of its dependencies.
        want: the keys of the results.
        order: key -> position in dask's order.
        producers: keys of tasks that are marked as data producers.
        seconds, nbytes: duration of each task, and size of its result.
    """

    graph: dict[Any, list[Any]]
    want: list[Any]
    order: dict[Any, int]
    producers: list[Any]
    seconds: dict[Any, float]
    nbytes: dict[Any, int]


@dataclass(frozen=True)
class Judgement:
    """The cost of a schedule: seconds, bytes moved, and the peak of the bytes held."""

    seconds: float
    moved_nbytes: float
    peak_nbytes: float


# ------------------------------------------------------------------ recording


def record(program: Callable[[Any], object], measured: bool = False) -> list[Recording]:
    """Run `program` in this process and return its graphs."""
    import dask

    found: list[Recording] = []

    def get(graph: Any, keys: Any, **options: Any) -> Any:
        recording, results = _run(graph, keys, measured)
        found.append(recording)
        return _nested(keys, results)

    with dask.config.set(scheduler=get):
        program(None)
    return found


def _run(graph: Any, keys: Any, measured: bool) -> tuple[Recording, dict[Any, Any]]:
    """Run the tasks of `graph` that `keys` need, in dask's order."""
    from dask._task_spec import convert_legacy_graph, resolve_aliases
    from dask.core import flatten, reverse_dict
    from dask.order import order
    from dask.sizeof import sizeof

    want = list(dict.fromkeys(flatten(keys if isinstance(keys, list) else [keys])))
    graph = convert_legacy_graph(graph if isinstance(graph, dict) else graph.__dask_graph__())
    edges = {key: set(task.dependencies) for key, task in graph.items()}
    graph = resolve_aliases(graph, set(want), reverse_dict(edges))
    needed: dict[Any, list[Any]] = {}
    stack = list(want)
    while stack:
        key = stack.pop()
        if key not in needed:
            needed[key] = sorted(graph[key].dependencies, key=str)
            stack += needed[key]
    ranks = order({key: graph[key] for key in needed})
    data: dict[Any, Any] = {}
    seconds, nbytes = {}, {}
    for key in sorted(needed, key=ranks.__getitem__):
        begin = time.perf_counter()
        data[key] = graph[key]({d: data[d] for d in needed[key]})
        nbytes[key] = sizeof(data[key])
        touched = nbytes[key] + sum(nbytes[d] for d in needed[key])
        took = time.perf_counter() - begin
        seconds[key] = took if measured else TASK_SECONDS + touched / TOUCHED_BYTES_PER_SECOND
    producers = [key for key in needed if graph[key].data_producer]
    in_order = {key: needed[key] for key in sorted(needed, key=ranks.__getitem__)}
    return Recording(in_order, want, ranks, producers, seconds, nbytes), data


def _nested(keys: Any, results: dict[Any, Any]) -> Any:
    return [_nested(key, results) for key in keys] if isinstance(keys, list) else results[keys]


# ------------------------------------------------------------------ schedules


def simulate(recording: Recording, config: dict[str, Any]) -> Judgement:
    """Play `recording` with the scheduler core."""
    return play(Cluster(True, N_WORKERS, NTHREADS, (), MEMORY_NBYTES, **config), recording, config)


def play(cluster: Cluster, recording: Recording, config: dict[str, Any]) -> Judgement:
    """Play `recording` on `cluster`, whose core has the settings `config`."""
    cluster.core.state.drops_replicas = config is not POLICIES["dask"]
    begin = cluster.now
    rows = Rows(priorities=recording.order, producers=set(recording.producers))
    cluster.play(
        "c", recording.graph, recording.want, dict(recording.seconds), dict(recording.nbytes), rows
    )
    cluster.run()
    return Judgement(cluster.now - begin, cluster.moved_nbytes, cluster.peak_nbytes)


def load_and_use(seconds: float, numbers: Iterable[int]) -> Recording:
    """Return chains of a root-ish task that takes `seconds`, and one that takes a fifth of that."""
    graph: dict[Any, list[Any]] = {("load", i): [] for i in numbers}
    graph |= {("use", i): [("load", i)] for _, i in graph}
    order = {key: 2 * key[1] + (key[0] == "use") for key in graph}
    durations = {key: seconds if key[0] == "load" else seconds / 5 for key in graph}
    nbytes = {key: CHUNK_NBYTES if key[0] == "load" else 8 for key in graph}
    return Recording(graph, [key for key in graph if key[0] == "use"], order, [], durations, nbytes)


def print_waits() -> None:
    """Print time and peak of chains, relative to sending root-ish tasks to any free slot."""
    for nthreads in (1, 2, 4):
        row = [f"threads per worker: {nthreads}"]
        for seconds in (0.005, 0.015, 0.05, 0.2):
            found: list[Judgement] = []
            for saturation in (1.1, 1.11):
                config = {"worker_saturation": saturation}
                cluster = Cluster(True, 8 // nthreads, nthreads, (), MEMORY_NBYTES, **config)
                # after the first chain, the core knows the size of the results
                play(cluster, load_and_use(seconds, [-1]), config)
                found.append(play(cluster, load_and_use(seconds, range(N_CHAINS)), config))
            time_ratio, _, peak_ratio = ratios(*found)
            row.append(f"{seconds} s: {time_ratio:.2f} / {peak_ratio:.2f}")
        print(" | ".join(row), flush=True)


class ListSchedule:
    """A list schedule: a free thread takes the ready task that is best by a random preference.

    The preference is a sum of the place in dask's order, with noise, and of the bytes that the
    worker would have to fetch, each with a random weight.
    """

    def __init__(self, recording: Recording, seed: int) -> None:
        self.recording = recording
        self.rng = Random(seed)
        self.noise = self.rng.choice((0.0, 0.01, 0.1))
        self.locality = self.rng.choice((0.0, 0.1, 1.0, 10.0))
        self.n_compared = self.rng.choice((1, 8, 64))
        self.held: list[dict[Any, None]] = [{} for _ in range(N_WORKERS)]
        self.moved = self.now_held = self.peak = 0

    def run(self) -> Judgement:
        """Return what the schedule takes."""
        graph = self.recording.graph
        dependents: dict[Any, list[Any]] = {key: [] for key in graph}
        for key, dependencies in graph.items():
            for dependency in dependencies:
                dependents[dependency].append(key)
        users = {
            key: len(after) + (key in self.recording.want) for key, after in dependents.items()
        }
        missing = {key: len(dependencies) for key, dependencies in graph.items()}
        ready = [(self._rank(key), str(key), key) for key, n in missing.items() if not n]
        heapq.heapify(ready)
        free = [i for i in range(N_WORKERS) for _ in range(NTHREADS)]
        running: list[tuple[float, int, int, Any]] = []
        now, n = 0.0, 0
        while ready or running:
            while ready and free:
                key, worker = self._choose(ready, free)
                fetched = self._fetch(key, worker)
                done = now + fetched / BYTES_PER_SECOND + self.recording.seconds[key]
                n += 1
                heapq.heappush(running, (done, n, worker, key))
            now, _, worker, key = heapq.heappop(running)
            free.append(worker)
            self._keep(key, worker)
            for dependency in graph[key]:
                users[dependency] -= 1
                if not users[dependency]:
                    self._drop(dependency)
            for after in dependents[key]:
                missing[after] -= 1
                if not missing[after]:
                    heapq.heappush(ready, (self._rank(after), str(after), after))
        return Judgement(now, self.moved, self.peak)

    def _rank(self, key: Any) -> float:
        n = len(self.recording.graph)
        return self.recording.order[key] / n + self.rng.gauss(0, 1) * self.noise

    def _choose(self, ready: list[Any], free: list[int]) -> tuple[Any, int]:
        """Take a task of the first ones that are ready, and a free thread, from the lists."""
        first = [heapq.heappop(ready) for _ in range(min(len(ready), self.n_compared))]
        workers = dict.fromkeys(free)
        total = max(1, sum(self.recording.nbytes.values()) // len(self.recording.nbytes))
        _, each, worker = min(
            (each[0] + self.locality * self._missing(each[2], worker) / total, each, worker)
            for each in first
            for worker in workers
        )
        for other in first:
            if other is not each:
                heapq.heappush(ready, other)
        free.remove(worker)
        return each[2], worker

    def _missing(self, key: Any, worker: int) -> int:
        held = self.held[worker]
        nbytes = self.recording.nbytes
        return sum(nbytes[d] for d in self.recording.graph[key] if d not in held)

    def _fetch(self, key: Any, worker: int) -> int:
        fetched = self._missing(key, worker)
        self.moved += fetched
        for dependency in self.recording.graph[key]:
            self._keep(dependency, worker)
        return fetched

    def _keep(self, key: Any, worker: int) -> None:
        if key not in self.held[worker]:
            self.held[worker][key] = None
            self.now_held += self.recording.nbytes[key]
            self.peak = max(self.peak, self.now_held)

    def _drop(self, key: Any) -> None:
        for held in self.held:
            if key in held:
                del held[key]
                self.now_held -= self.recording.nbytes[key]


def critical_path(recording: Recording) -> Recording:
    """Return `recording` with another order: tasks on longer paths to a result come first."""
    paths = dict(recording.seconds)
    after = dict.fromkeys(paths, 0.0)
    for key in sorted(paths, key=recording.order.__getitem__, reverse=True):  # dependents first
        paths[key] += after[key]
        for dependency in recording.graph[key]:
            after[dependency] = max(after[dependency], paths[key])
    ranked = sorted(paths, key=lambda key: (-paths[key], recording.order[key]))
    return replace(recording, order={key: i for i, key in enumerate(ranked)})


def best_random(recording: Recording, n: int = RANDOM_SCHEDULES) -> Judgement:
    """Return the best of each measurement over `n` random list schedules."""
    runs = [ListSchedule(recording, seed).run() for seed in range(n)]
    return Judgement(
        min(run.seconds for run in runs),
        min(run.moved_nbytes for run in runs),
        min(run.peak_nbytes for run in runs),
    )


# ------------------------------------------------------------------ comparison


def combined(judgements: Iterable[Judgement]) -> Judgement:
    """Return the judgement of several graphs, run one after the other."""
    parts = list(judgements)
    return Judgement(
        sum(part.seconds for part in parts),
        sum(part.moved_nbytes for part in parts),
        max(part.peak_nbytes for part in parts),
    )


def ratios(one: Judgement, other: Judgement) -> tuple[float, float, float]:
    """Return `one` in relation to `other`; bytes below 1 MB count as 1 MB."""
    return (
        one.seconds / other.seconds,
        max(one.moved_nbytes, 1e6) / max(other.moved_nbytes, 1e6),
        max(one.peak_nbytes, 1e6) / max(other.peak_nbytes, 1e6),
    )


def judge(recordings: list[Recording], n_random: int) -> dict[str, Judgement]:
    """Return the judgement of each policy over `recordings`."""
    out = {
        name: combined(simulate(each, config) for each in recordings)
        for name, config in POLICIES.items()
    }
    out["critical path"] = combined(simulate(critical_path(each), {}) for each in recordings)
    if n_random:
        out["random"] = combined(best_random(each, n_random) for each in recordings)
    return out


def main(arguments: list[str] | None = None) -> None:
    """Judge all programs, or those that the command line names."""
    from .quality_programs import PROGRAMS

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.schedules",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="programs; the default is all")
    parser.add_argument("--measured", action="store_true", help="use the measured durations")
    parser.add_argument("--random", type=int, default=RANDOM_SCHEDULES, metavar="N")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--waits", action="store_true", help="judge chains of tasks instead")
    options = parser.parse_args(arguments)
    if options.waits:
        print_waits()
        return
    found: dict[str, dict[str, Judgement]] = {}
    for program in PROGRAMS:
        name = program.__name__
        if any(part in name for part in NOT_RECORDED) or name not in (options.only or [name]):
            continue
        found[name] = judge(record(program, options.measured), options.random)
        if not options.json:
            _print_row(name, found[name])
    if options.json:
        rows = {name: {k: vars(v) for k, v in row.items()} for name, row in found.items()}
        json.dump(rows, sys.stdout, indent=1)
        return
    for policy in next(iter(found.values())):
        all_ratios = [ratios(row[policy], row["dask"]) for row in found.values()]
        means = [statistics.geometric_mean(column) for column in zip(*all_ratios)]
        worst = [max(column) for column in zip(*all_ratios)]
        print(
            f"{policy:>13}: geometric means: time {means[0]:.2f}, moved {means[1]:.2f}, "
            f"peak {means[2]:.2f}; maxima {worst[0]:.2f}, {worst[1]:.2f}, {worst[2]:.2f}"
        )


def _print_row(name: str, row: dict[str, Judgement]) -> None:
    base = row["dask"]
    text = (
        f"{name:>20}: {base.seconds:6.2f} s {base.moved_nbytes / 1e6:6.0f} MB moved "
        f"{base.peak_nbytes / 1e6:6.0f} MB held"
    )
    for policy, each in row.items():
        if policy != "dask":
            text += f" | {policy} " + " ".join(f"{r:.2f}" for r in ratios(each, base))
    print(text, flush=True)


if __name__ == "__main__":
    main()
