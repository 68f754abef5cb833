"""Cost of a scrape of `/metrics` for the event loop, with 10,000 tasks on 1,000 workers.

usage: python -m benchmarks.scrape
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import statistics
import time
import urllib.request

from . import process_costs
from .graphs import SHAPES
from .open_pages import dashboard_port
from .per_task import (
    PACELINE,
    RUN_TIMEOUT_SECONDS,
    START_TIMEOUT_SECONDS,
    running_scheduler,
    settle_all,
    zero_workers,
)

#: CPU time is measured for windows with and without a scrape, and the difference is the cost.
WINDOW_SECONDS = 0.5


def cost(loop: int, url: str | None) -> tuple[float, int]:
    """Return the CPU time (ms) of the process `loop` in a window, and the bytes scraped in it.

    The page at `url` is scraped once, or not at all if `url` is None.
    """
    before, started, size = process_costs.cpu_seconds(loop), time.monotonic(), 0
    if url is not None:
        with urllib.request.urlopen(url, timeout=30) as response:
            size = len(response.read())
    time.sleep(max(0.0, WINDOW_SECONDS - (time.monotonic() - started)))
    return 1e3 * (process_costs.cpu_seconds(loop) - before), size


def main() -> None:
    """Measure scrapes and print the cost of one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scrape", description=__doc__)
    parser.add_argument("--paceline", default=shlex.join(PACELINE), help="command to measure")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--repeat", type=int, default=10)
    options = parser.parse_args()
    from distributed import Client, wait

    with contextlib.ExitStack() as stack:
        scheduler, port = stack.enter_context(running_scheduler(shlex.split(options.paceline)))
        stack.enter_context(zero_workers(port, options.workers))
        client = stack.enter_context(
            Client(f"tcp://127.0.0.1:{port}", timeout=START_TIMEOUT_SECONDS)
        )
        loop = process_costs.listener(port, process_costs.descendants(scheduler))
        url = f"http://127.0.0.1:{dashboard_port(scheduler, port)}/metrics"
        graph, outputs = SHAPES["merge"](options.tasks, "held")
        futures = client.get(
            graph, [*graph] if len(graph) <= options.tasks else outputs, sync=False
        )
        wait(futures, timeout=RUN_TIMEOUT_SECONDS)
        settle_all(scheduler)
        idle = statistics.median(cost(loop, None)[0] for _ in range(options.repeat))
        first, size = cost(loop, url)
        scrapes = [cost(loop, url)[0] - idle for _ in range(options.repeat)]
        print(
            f"{len(graph):,} tasks, {options.workers:,} workers: a scrape of {size:,} bytes takes "
            f"{statistics.median(scrapes):.1f} ms of the event loop (at most {max(scrapes):.1f}, "
            f"the first {first - idle:.1f}); {idle:.1f} ms per window of {WINDOW_SECONDS} s "
            "without a scrape are subtracted"
        )


if __name__ == "__main__":
    main()
