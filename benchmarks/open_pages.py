"""Cost per task in the event loop, with and without open pages of the dashboard.

usage: python -m benchmarks.open_pages

Needs `pip install playwright`, and the path of a Chromium in `CHROMIUM` if playwright has none of
its own. On a machine with few cores the browser competes with the scheduler for CPU time.
Therefore the cost is also measured while the pages of a second, idle scheduler are open.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import process_costs
from .per_task import (
    PACELINE,
    START_TIMEOUT_SECONDS,
    Case,
    run_once,
    running_scheduler,
    settle,
    zero_workers,
)

#: Pages that users leave open. All of them are updated while tasks run.
PAGES = (
    "status",
    "workers",
    "tasks",
    "system",
    "groups",
    "graph",
    "individual-progress",
    "individual-workers-memory",
    "individual-nprocessing",
    "individual-cluster-memory",
)
#: A page is complete within this time.
OPENING_SECONDS = 6.0
#: CPU time of the event loop in a tenth of a second if it only updates pages.
UPDATE_CPU_SECONDS = 0.015


@contextlib.contextmanager
def open_pages(dashboard_port: int, names: Sequence[str]) -> Iterator[None]:
    """Open the pages `names` in a browser, if there are any."""
    if not names:
        yield
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM"),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        _lower_priority()
        for name in names:
            browser.new_page().goto(f"http://127.0.0.1:{dashboard_port}/{name}", timeout=60_000)
        time.sleep(OPENING_SECONDS)
        yield
        browser.close()


def _lower_priority() -> None:
    """Give the browser the lowest priority, because users run it on another machine."""
    for pid in process_costs.descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if b"chrom" in (Path("/proc") / str(pid) / "cmdline").read_bytes().lower():
                os.setpriority(os.PRIO_PROCESS, pid, 19)


def dashboard_port(pid: int, port: int) -> int:
    """Return the HTTP port of the scheduler `pid`: the one on which it listens besides `port`."""
    import psutil

    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        connections = psutil.Process(pid).net_connections("tcp")
        others = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN} - {port}
        if others:
            return int(others.pop())
        time.sleep(0.05)
    raise RuntimeError("The scheduler does not listen on an HTTP port")


def costs(
    command: Sequence[str], case: Case, settings: dict[str, tuple[bool, int]], rounds: int
) -> dict[str, list[float]]:
    """Return the event loop's microseconds per task of each run, by the name of the setting.

    A setting is (whether the pages of the working scheduler are open, number of pages).
    """
    from distributed import Client

    found: dict[str, list[float]] = {name: [] for name in settings}
    with contextlib.ExitStack() as stack:
        scheduler, port = stack.enter_context(running_scheduler(command))
        idle, idle_port = stack.enter_context(running_scheduler(command))
        ports = {True: dashboard_port(scheduler, port), False: dashboard_port(idle, idle_port)}
        stack.enter_context(zero_workers(port, case.workers))
        stack.enter_context(zero_workers(idle_port, case.workers))
        client = stack.enter_context(
            Client(f"tcp://127.0.0.1:{port}", timeout=START_TIMEOUT_SECONDS)
        )
        loop = process_costs.listener(port, process_costs.descendants(scheduler))

        def settled(_: int) -> None:
            settle(lambda: [loop], UPDATE_CPU_SECONDS)

        warm = Case(case.shape, 2_000, case.workers)
        run_once(client, warm, "warm", scheduler, loop, settled)
        for turn in range(rounds):
            for name, (own, count) in settings.items():
                with open_pages(ports[own], PAGES[:count]):
                    for i in range(case.repeat):
                        tag = f"{name}-{turn}-{i}"
                        measured = run_once(client, case, tag, scheduler, loop, settled)
                        found[name].append(measured.loop_us)
    return found


def main() -> None:
    """Measure the settings in turn and print their costs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_pages", description=__doc__)
    parser.add_argument("--paceline", default=shlex.join(PACELINE), help="command to measure")
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=4, help="runs of each setting in a round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all settings")
    parser.add_argument("--pages", type=int, default=len(PAGES), choices=range(1, len(PAGES) + 1))
    options = parser.parse_args()
    case = Case("merge", options.tasks, options.workers, options.repeat)
    settings = {
        "no page": (True, 0),
        "pages of an idle scheduler": (False, options.pages),
        "pages": (True, options.pages),
    }
    found = costs(shlex.split(options.paceline), case, settings, options.rounds)
    for name, values in found.items():
        each = " ".join(f"{value:.1f}" for value in values)
        print(
            f"{name:28} median {statistics.median(values):6.1f}, "
            f"minimum {min(values):6.1f} µs per task ({each})"
        )
    for name, statistic in (("median", statistics.median), ("minimum", min)):
        without, idle, pages = (statistic(values) for values in found.values())
        print(
            f"{name}: {options.pages} pages / no page {pages / without:.2f}, "
            f"pages / pages of an idle scheduler {pages / idle:.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
