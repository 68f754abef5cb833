"""`python -m benchmarks.scrape`: what one scrape of `/metrics` costs the event loop, with 10,000 tasks on 1,000 workers."""

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
from .per_task import (  # fmt: skip
    PACELINE,
    RUN_TIMEOUT_SECONDS,
    START_TIMEOUT_SECONDS,
    running_scheduler,
    settle_all,
    zero_workers,
)

#: How long the loop is watched with and without a scrape, seconds: what it does anyway is taken off.
WINDOW_SECONDS = 0.5


def cost(loop: int, url: str | None) -> tuple[float, int]:
    """Milliseconds of the loop's processor time in a window, with one scrape in it or with none; bytes scraped."""
    before, started, size = process_costs.cpu_seconds(loop), time.monotonic(), 0
    if url is not None:
        with urllib.request.urlopen(url, timeout=30) as answer:
            size = len(answer.read())
    time.sleep(max(0.0, WINDOW_SECONDS - (time.monotonic() - started)))
    return 1e3 * (process_costs.cpu_seconds(loop) - before), size


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scrape", description=__doc__)
    parser.add_argument("--paceline", default=shlex.join(PACELINE), help="the command measured")
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
            f"{len(graph):,} tasks, {options.workers:,} workers: a scrape of {size:,} bytes takes the loop "
            f"{statistics.median(scrapes):.1f} ms (at most {max(scrapes):.1f}; the first one {first - idle:.1f}; "
            f"{idle:.1f} ms in {WINDOW_SECONDS} s without one are taken off)"
        )


if __name__ == "__main__":
    main()
