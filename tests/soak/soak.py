"""Soak test: three clients run random programs while faults hit the workers, and a checker watches progress.

``python -m tests.soak.soak --minutes 30 --seed 1 --scheduler paceline`` prints a report as JSON. Its exit code is 0 if
every answer was right or an error that a fault explains, no task was stuck, no key was left at the end,
and the scheduler did not leak memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.soak.soak_faults import WORKERS_MIN, Faults, RelayedCluster
from tests.soak.soak_net import Net
from tests.soak.soak_programs import PROGRAM_TIMEOUT_SECONDS, PROGRAMS, WrongResult
from tests.support.real_cluster import IMPORTABLE, SHORT_LOGS, scheduler_command

N_CLIENTS = 3
#: Interval of the checker, seconds.
CHECK_SECONDS = 10
#: Seconds without a finished task after which the run is stuck. Longer than any partition and than a worker's time to live.
STUCK_SECONDS = 60
#: Number of rounds in which each variant runs once: shuffles make the scheduler import modules.
WARM_UP_ROUNDS = 3
#: Interval between measurements of the scheduler's memory, seconds.
MEMORY_SECONDS = 60
#: Maximum growth from a third of the run to its end, and the minimum number of measurements to check it. Before, logs
#: fill up, and so does the free space of the allocators.
MEMORY_GROWTH_MAX, MEMORY_SAMPLES_MIN = 1.10, 10
#: Words in errors that a lost worker causes; each error is also compared with the log of faults.
EXPLAINED = ("KilledWorker", "CancelledError", "lost", "P2P", "CommClosed", "not running", "TimeoutError", "OSError")  # fmt: skip

CONFIG = {
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "8s",
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "10",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s",
    **SHORT_LOGS,
    **IMPORTABLE,
}


@dataclass
class Report:
    """Result of a soak.

    Attributes:
        finished: program -> number of successful runs.
        explained: errors that a fault explains, by kind.
        failures: errors that no fault explains.
        blocks: number of the scheduler's memory blocks (`sys.getallocatedblocks`) after the first rounds, then once a
            minute and at the end.
        rss_mb: the scheduler's resident memory at the same times, MiB.
    """

    finished: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    keys_left: int = 0


class Soak:
    """A soak of `seconds` after the first rounds, with the random choices of `seed`."""

    def __init__(self, cluster: RelayedCluster, seed: int, seconds: float) -> None:
        self._cluster = cluster
        self._seed = seed
        self._seconds = seconds
        self._lock = threading.Lock()
        self._running: dict[str, tuple[str, float]] = {}
        self._progress_at = time.monotonic()
        self.report = Report()

    def run(self) -> Report:
        """Run the whole soak."""
        from distributed import Client

        with Client(self._cluster.address, name="checker") as checker:
            self._warm_up()
            self._measure_memory(checker)
            faults = Faults(self._cluster, checker, Random(f"{self._seed}-faults"))
            faults.start()
            deadline = time.monotonic() + self._seconds
            threads = [
                threading.Thread(
                    target=self._client, args=(n, faults, deadline), name=f"client-{n}", daemon=True
                )
                for n in range(N_CLIENTS)
            ]
            for thread in threads:
                thread.start()
            self._check(checker, threads, deadline)
            faults.stop()
            self.report.faults = Counter(fault.kind for fault in faults.log)
            self._check_the_end(checker)
        return self.report

    def _warm_up(self) -> None:
        """Run a program with a separate client: exceptions of the ``raising`` program hold its futures while they live."""
        from distributed import Client

        with Client(self._cluster.address, name="warm-up", set_as_default=False) as client:
            for round in range(WARM_UP_ROUNDS):
                for number, program in enumerate(PROGRAMS):
                    with client.as_current():
                        program(client, Random(f"warm-{round}-{number}"))

    def _client(self, number: int, faults: Faults, deadline: float) -> None:
        from distributed import Client

        draw = Random(f"{self._seed}-client-{number}")
        with Client(self._cluster.address, name=f"soak-{number}", set_as_default=False) as client:
            while time.monotonic() < deadline and not self.report.failures:
                program = draw.choice(PROGRAMS)
                self._one(client, program, draw.randrange(2**32), f"client-{number}", faults)

    def _one(self, client: Any, program: Any, seed: int, who: str, faults: Faults) -> None:
        started = time.time()
        with self._lock:
            self._running[who] = (program.__name__, started)
        try:
            with client.as_current():
                program(client, Random(seed))
        except WrongResult as error:
            self._fail(f"{program.__name__}({seed}): {error}")
        except BaseException as error:
            self._judge(error, program.__name__, seed, started, faults)
        else:
            self.report.finished[program.__name__] += 1
        finally:
            with self._lock:
                del self._running[who]
            self._progress_at = time.monotonic()

    def _judge(
        self, error: BaseException, program: str, seed: int, started: float, faults: Faults
    ) -> None:
        """Report an error as explained if a fault occurred meanwhile and the error's text fits, else as a failure."""
        text = f"{type(error).__name__}: {error}"
        causes = [f for f in faults.between(started, time.time()) if f.kind != "add"]
        if causes and any(word in text for word in EXPLAINED):
            self.report.explained[type(error).__name__] += 1
        else:
            trace = "".join(traceback.format_exception(error))[-3000:]
            self._fail(f"{program}({seed}): {text}\nfaults then: {causes}\n{trace}")

    def _fail(self, text: str) -> None:
        self.report.failures.append(text)

    def _check(self, checker: Any, threads: list[threading.Thread], deadline: float) -> None:
        """Check every few seconds that tasks finish."""
        seen = -1
        measure_at = time.monotonic() + MEMORY_SECONDS
        while any(thread.is_alive() for thread in threads):
            time.sleep(min(CHECK_SECONDS, 1 + max(0, deadline - time.monotonic())))
            states = checker.sync(checker.scheduler.get_task_prefix_states)
            finished = sum(
                counts.get("memory", 0) + counts.get("erred", 0) for counts in states.values()
            )
            if finished != seen:
                seen = finished
                self._progress_at = time.monotonic()
            if time.monotonic() >= measure_at:
                measure_at += MEMORY_SECONDS
                self._measure_memory(checker)
            with self._lock:
                running = dict(self._running)
            oldest = min((start for _, start in running.values()), default=time.time())
            stuck = time.monotonic() - self._progress_at > STUCK_SECONDS
            if running and (stuck or time.time() - oldest > 2 * PROGRAM_TIMEOUT_SECONDS):
                self._fail(f"stuck: {running}; states {states}; {self._explain(checker)}")
                return

    def _explain(self, checker: Any) -> str:
        """Return the scheduler's state of the stuck tasks, with ``explain`` if the scheduler supports it."""
        processing = checker.processing()
        said = f"processing: { {w: keys[:5] for w, keys in processing.items()} }"[:3000]
        with contextlib.suppress(Exception):  # the stock scheduler does not support it
            said += f"; {checker.sync(checker.scheduler.explain)}"[:3000]
        return said

    def _check_the_end(self, checker: Any) -> None:
        """Check that all keys are forgotten and that memory did not grow."""
        deadline = time.monotonic() + 30
        left = -1
        while time.monotonic() < deadline:
            states = checker.sync(checker.scheduler.get_task_prefix_states)
            left = sum(sum(n for s, n in c.items() if s != "forgotten") for c in states.values())
            if not left:
                break
            time.sleep(0.5)
        self.report.keys_left = left
        if left:
            self._fail(f"{left} keys left: {states}")
        time.sleep(3)
        self._measure_memory(checker)
        for what, sizes in (("blocks", self.report.blocks), ("resident MiB", self.report.rss_mb)):
            before = sizes[len(sizes) // 3]
            if len(sizes) >= MEMORY_SAMPLES_MIN and sizes[-1] > MEMORY_GROWTH_MAX * before:
                self._fail(f"the scheduler's memory grew from {before} to {sizes[-1]} {what}")

    def _measure_memory(self, checker: Any) -> None:
        import psutil

        self.report.blocks.append(checker.run_on_scheduler(allocated_blocks))
        rss = psutil.Process(self._cluster.processes[0].pid).memory_info().rss
        self.report.rss_mb.append(round(rss / 2**20, 1))


def allocated_blocks() -> int:
    """Return the number of memory blocks of this process, without those of garbage."""
    import gc
    import sys

    gc.collect()
    return sys.getallocatedblocks()


def soak(command: tuple[str, ...], seed: int, seconds: float, folder: Path) -> tuple[Report, str]:
    """Run one soak; return the report and the ends of the logs."""
    cluster = RelayedCluster(
        command, folder, nannies=(False, True) * (WORKERS_MIN // 2), nthreads=2, config=CONFIG
    )
    cluster.net, cluster.relays = Net(), {}
    with cluster.net, cluster:
        report = Soak(cluster, seed, seconds).run()
        return report, cluster.logs() if report.failures else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--scheduler", default="paceline", help="paceline, stock, or a command line"
    )
    parser.add_argument(
        "--validate", action="store_true", help="paceline checks its invariants after each turn"
    )
    options = parser.parse_args()
    kind = options.scheduler
    command = scheduler_command(kind) if kind in ("paceline", "stock") else tuple(shlex.split(kind))
    if options.validate:
        CONFIG["DASK_DISTRIBUTED__SCHEDULER__VALIDATE"] = "true"
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True)
            )
        )
        report, logs = soak(command, options.seed, options.minutes * 60, folder)
    if logs:
        print(logs, file=sys.stderr)
    print(
        json.dumps(
            {"scheduler": kind, "seed": options.seed, "minutes": options.minutes, **vars(report)},
            default=str,
            indent=1,
        )
    )
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
