"""``paceline status``: a live view of a cluster in the terminal, updated once a second."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import Any, Final

import click
from paceline.protocol import messages as m
from paceline.scheduler.core.text import count, format_duration, format_nbytes

from .options import Seconds, scheduler_address, timeout_option
from .rpc_client import (
    RpcError,
    call_paceline,
    call_scheduler,
    printable,
    scheduler_identity,
)
from .shares import table

#: Number of workers shown; the number of further ones is printed.
WORKERS_SHOWN: Final = 20
#: Number of prefixes shown, those with most unfinished tasks first.
PREFIXES_SHOWN: Final = 20
#: Width of a progress bar, characters.
BAR_WIDTH: Final = 32
#: State, its character and color in the bar, in the order of the bar.
STATES: Final = (
    ("memory", "█", "green"),
    ("released", "█", "blue"),
    ("erred", "█", "red"),
    ("processing", "▓", "yellow"),
    ("queued", "▒", "cyan"),
    ("waiting", "░", "bright_black"),
    ("no-worker", "░", "magenta"),
)
#: States of finished tasks.
DONE: Final = ("memory", "released", "erred")


@dataclass(slots=True)
class Snapshot:
    """A snapshot of the cluster.

    Attributes:
        at: its time, seconds of the monotonic clock.
        identity: as ``Client.scheduler_info`` returns it.
        prefixes: prefix -> state -> number of tasks.
    """

    at: float
    identity: dict[str, Any]
    prefixes: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        """State -> number of tasks of all prefixes."""
        return {
            state: sum(states.get(state, 0) for states in self.prefixes.values())
            for state, _, _ in STATES
        }

    @property
    def done(self) -> int:
        """Number of finished tasks that the scheduler still knows."""
        return sum(map(n_done, self.prefixes.values()))


def n_done(states: dict[str, int]) -> int:
    """Return the number of finished tasks among those counted by state."""
    return sum(states.get(state, 0) for state in DONE)


def fetch(address: str, timeout: float) -> Snapshot:
    """Request a snapshot from the scheduler, which may be a stock one. Raises RpcError."""
    identity = scheduler_identity(address, timeout)
    prefixes = None
    if "build" in identity:
        with contextlib.suppress(RpcError):  # distributed.scheduler.blocked-handlers
            found = call_paceline(address, m.Explain(prefixes_only=True), timeout)
            prefixes = found.get("prefixes")
    if prefixes is None:  # without queued and no-worker tasks
        prefixes = call_scheduler(address, m.GetTaskPrefixStates(), timeout)
    return Snapshot(time.monotonic(), identity, prefixes)


def rate(now: Snapshot, before: Snapshot | None) -> float | None:
    """Return tasks per second since ``before``; None if unknown, as after tasks were forgotten."""
    if before is None or now.at <= before.at or now.done < before.done:
        return None
    return (now.done - before.done) / (now.at - before.at)


def bar_parts(states: dict[str, int], width: int = BAR_WIDTH) -> list[tuple[str, str]]:
    """Return (characters, style) of a progress bar, in which each state has a character."""
    total = sum(states.get(state, 0) for state, _, _ in STATES)
    parts: list[tuple[str, str]] = []
    left = width
    for state, character, style in STATES:
        count = states.get(state, 0)
        if count and left > 0:
            length = min(left, max(1, round(width * count / total)))
            parts.append((character * length, style))
            left -= length
    return parts


def busiest(prefixes: dict[str, dict[str, int]]) -> list[tuple[str, dict[str, int]]]:
    """Return prefixes with tasks, those with most unfinished tasks first, then the largest."""

    def order(item: tuple[str, dict[str, int]]) -> tuple[int, int, str]:
        states = item[1]
        total = sum(states.values())
        return n_done(states) - total, -total, item[0]

    return sorted((item for item in prefixes.items() if any(item[1].values())), key=order)


def headline(now: Snapshot, before: Snapshot | None) -> str:
    """Return the first lines: address, size, tasks and rate."""
    identity = now.identity
    workers = identity["workers"].values()
    used = sum(w.get("metrics", {}).get("memory", 0) for w in workers)
    totals = now.totals
    speed = rate(now, before)
    n_restarts = identity.get("restarts")
    n_upgrades = identity.get("upgrades")
    restarts = f", {count(n_restarts, 'restart')}" if n_restarts else ""
    restarts += f", upgraded {count(n_upgrades, 'time')}" if n_upgrades else ""
    counts = ", ".join(f"{n:,} {state}" for state, n in totals.items() if n) or "no tasks"
    lines = [
        f"{identity['address']}   {count(len(workers), 'worker')}, "
        f"{count(identity.get('total_threads', 0), 'thread')}, "
        f"{format_nbytes(used)} of {format_nbytes(identity.get('total_memory', 0))}"
        f"   {identity.get('build') or 'dask scheduler'}{restarts}",
        counts + (f"   {speed:,.0f} tasks/s" if speed is not None else ""),
    ]
    return "\n".join(map(printable, lines))


def worker_row(worker: dict[str, Any], address: str, n_given_up: int = 0) -> tuple[str, ...]:
    """Return the cells of a worker, in the order of ``WORKER_COLUMNS``.

    `n_given_up`: number of runs that were given up and go on.
    """
    metrics = worker.get("metrics", {})
    counts = metrics.get("task_counts") or {}
    running = counts.get("executing", 0)
    executing = sum(running.values()) if isinstance(running, dict) else running
    limit = worker.get("memory_limit") or 0
    memory = metrics.get("memory", 0)
    share = f" ({100 * memory / limit:.0f} %)" if limit else ""
    return (
        str(worker.get("name", "")),
        address,
        str(worker.get("status", "")),
        str(worker.get("nthreads", "")),
        f"{metrics.get('cpu', 0):.0f} %",
        format_nbytes(memory) + share,
        f"{executing}, {n_given_up} given up" if n_given_up else str(executing),
        _end_text(metrics.get("ends_in")),
    )


def _end_text(seconds: Any) -> str:
    """Return the time until a worker ends, the metric "ends_in"; "" if it reports none."""
    if not isinstance(seconds, int | float) or not isfinite(seconds):
        return ""
    return format_duration(seconds) if seconds > 0 else "past"


#: Escape sequences of terminals.
ALTERNATE_SCREEN: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # without cursor and line breaks
MAIN_SCREEN: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K\n", "\x1b[J"

WORKER_COLUMNS: Final = (
    *("worker", "address", "status", "threads", "cpu", "memory", "running", "ends in"),
)


def format_text(now: Snapshot, before: Snapshot | None = None, color: bool = False) -> str:
    """Return a snapshot as text."""
    lines = [headline(now, before), ""]
    for name, states in busiest(now.prefixes)[:PREFIXES_SHOWN]:
        parts = bar_parts(states)
        bar = "".join(click.style(text, style) if color else text for text, style in parts)
        bar += " " * (BAR_WIDTH - sum(len(text) for text, _ in parts))
        line = f"{printable(name)[:30]:30} {bar} {n_done(states):,} / {sum(states.values()):,}"
        if states.get("erred"):
            line += f"  {states['erred']:,} erred"
        lines.append(line)
    given_up = now.identity.get("given_up_runs", {})
    shown = islice(now.identity["workers"].items(), WORKERS_SHOWN)
    rows = [worker_row(worker, address, given_up.get(address, 0)) for address, worker in shown]
    if rows and not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    if rows:
        lines += ["", *table([WORKER_COLUMNS[: len(rows[0])], *rows])]
    more = len(now.identity["workers"]) - WORKERS_SHOWN
    if more > 0:
        lines.append(f"and {more} more")
    return "\n".join(line.rstrip() for line in lines)


def watch(address: str, interval: float, timeout: float) -> None:
    """Show the live view until Ctrl-C. Raises RpcError."""
    before, now = None, fetch(address, timeout)
    click.echo(ALTERNATE_SCREEN, nl=False)
    try:
        while True:
            lines = format_text(now, before, color=True).splitlines()
            shown = lines[: shutil.get_terminal_size().lines - 1]
            click.echo(HOME + "".join(line + CLEAR_LINE for line in shown) + CLEAR_BELOW, nl=False)
            time.sleep(interval)
            before, now = now, fetch(address, timeout)
    finally:
        click.echo(MAIN_SCREEN, nl=False)


@click.command("status")
@scheduler_address()
@click.option("--once", is_flag=True, help="Print one snapshot and exit")
@click.option(
    "--interval", type=Seconds(), default=1.0, show_default=True, help="Seconds between updates"
)
@timeout_option(10.0)
def command(address: str, once: bool, interval: float, timeout: float) -> None:
    """Show tasks by prefix, workers, memory and rates of a cluster in the terminal.

    Stop with Ctrl-C.
    """
    if once or not sys.stdout.isatty():
        click.echo(format_text(fetch(address, timeout)))
        return
    with contextlib.suppress(KeyboardInterrupt):
        watch(address, interval, timeout)
