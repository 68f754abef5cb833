"""``paceline status``: a live view of a cluster in the terminal. What is shown is asked of the scheduler once a second.

Must not know: how the scheduler knows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from paceline.protocol import messages as m

from ..asking import ask_scheduler

#: Workers that are shown; how many more there are is said.
WORKERS_SHOWN: Final = 20
#: Prefixes that are shown, those with most to do first.
PREFIXES_SHOWN: Final = 20
#: Width of a progress bar, characters.
BAR_WIDTH: Final = 32
#: How the bar shows a state: character and rich's style. Their order is that of the bar.
STATES: Final = (
    ("memory", "█", "green"),
    ("released", "█", "blue"),
    ("erred", "█", "red"),
    ("processing", "▓", "yellow"),
    ("waiting", "░", "bright_black"),
)
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(slots=True)
class Look:
    """What the scheduler said at one time.

    Attributes:
        at: when, seconds of a steady clock.
        identity: as ``Client.scheduler_info`` has it.
        prefixes: prefix -> state -> tasks.
    """

    at: float
    identity: dict[str, Any]
    prefixes: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        """State -> tasks of all prefixes."""
        return {
            state: sum(states.get(state, 0) for states in self.prefixes.values()) for state, _, _ in STATES
        }

    @property
    def done(self) -> int:
        """Tasks that are through, of those that the scheduler still knows."""
        totals = self.totals
        return totals["memory"] + totals["released"] + totals["erred"]


def look(address: str, timeout: float) -> Look:
    """Ask.

    Raises:
        AskError: nobody answered.
    """
    identity = ask_scheduler(address, m.Identity(n_workers=-1), timeout)
    prefixes = ask_scheduler(address, m.GetTaskPrefixStates(), timeout)
    return Look(time.monotonic(), identity, prefixes)


def rate(now: Look, before: Look | None) -> float | None:
    """Tasks a second since the look before; None where it cannot be said (tasks were forgotten meanwhile)."""
    if before is None or now.at <= before.at or now.done < before.done:
        return None
    return (now.done - before.done) / (now.at - before.at)


def format_nbytes(n: float) -> str:
    """``3221225472`` -> ``3.0 GiB``."""
    value = float(n)
    for unit in UNITS:
        if value < 1024 or unit == UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes all")


def bar_parts(states: dict[str, int], width: int = BAR_WIDTH) -> list[tuple[str, str]]:
    """(characters, style) of a progress bar; each state that has tasks gets a character at least."""
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
    """Prefixes that have tasks, those with most to do first, then the largest."""

    def order(item: tuple[str, dict[str, int]]) -> tuple[int, int, str]:
        states = item[1]
        return -states.get("processing", 0) - states.get("waiting", 0), -sum(states.values()), item[0]

    return sorted((item for item in prefixes.items() if any(item[1].values())), key=order)


def headline(now: Look, before: Look | None) -> str:
    """The first lines: where, how many, how fast."""
    who = now.identity
    workers = who["workers"].values()
    used = sum(w.get("metrics", {}).get("memory", 0) for w in workers)
    totals = now.totals
    speed = rate(now, before)
    counts = ", ".join(f"{n:,} {state}" for state, n in totals.items() if n) or "no tasks"
    lines = [
        f"{who['address']}   {len(who['workers'])} workers, {who.get('total_threads', 0)} threads, "
        f"{format_nbytes(used)} of {format_nbytes(who.get('total_memory', 0))}",
        counts + (f"   {speed:,.0f} tasks/s" if speed is not None else ""),
    ]
    return "\n".join(lines)


def worker_row(worker: dict[str, Any], address: str) -> tuple[str, ...]:
    """name, address, threads, cpu, memory, limit, tasks running, last seen."""
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
        str(executing),
    )


WORKER_COLUMNS: Final = ("worker", "address", "status", "threads", "cpu", "memory", "running")


def plain(now: Look, before: Look | None = None) -> str:
    """One look as text."""
    lines = [headline(now, before), ""]
    for name, states in busiest(now.prefixes)[:PREFIXES_SHOWN]:
        bar = "".join(text for text, _ in bar_parts(states))
        done = sum(states.get(state, 0) for state in ("memory", "released", "erred"))
        lines.append(f"{name[:30]:30} {bar:{BAR_WIDTH}} {done:,} / {sum(states.values()):,}")
    rows = [worker_row(w, a) for a, w in list(now.identity["workers"].items())[:WORKERS_SHOWN]]
    if rows:
        table = [WORKER_COLUMNS, *rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(WORKER_COLUMNS))]
        lines.append("")
        lines += ["  ".join(f"{x:{w}}" for x, w in zip(row, widths, strict=True)) for row in table]
    more = len(now.identity["workers"]) - WORKERS_SHOWN
    if more > 0:
        lines.append(f"and {more} more")
    return "\n".join(line.rstrip() for line in lines)


def drawn(now: Look, before: Look | None) -> Any:
    """One look for rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tasks = Table(expand=True, box=None, pad_edge=False)
    for title, justify in (("tasks", "left"), ("", "left"), ("done", "right"), ("running", "right"), ("erred", "right")):
        tasks.add_column(title, justify=justify)
    for name, states in busiest(now.prefixes)[:PREFIXES_SHOWN]:
        bar = Text()
        for text, style in bar_parts(states):
            bar.append(text, style=style)
        done = sum(states.get(state, 0) for state in ("memory", "released", "erred"))
        erred = states.get("erred", 0)
        tasks.add_row(
            name,
            bar,
            f"{done:,} / {sum(states.values()):,}",
            f"{states.get('processing', 0):,}",
            Text(f"{erred:,}", style="red" if erred else ""),
        )
    workers = Table(expand=True, box=None, pad_edge=False)
    for place, title in enumerate(WORKER_COLUMNS):
        workers.add_column(title, justify="left" if place < 3 else "right")
    shown = list(now.identity["workers"].items())[:WORKERS_SHOWN]
    for address, worker in shown:
        workers.add_row(*worker_row(worker, address))
    more = len(now.identity["workers"]) - len(shown)
    parts: list[Any] = [Text(headline(now, before), style="bold"), Text(""), tasks, Text(""), workers]
    if more > 0:
        parts.append(Text(f"and {more} more"))
    return Group(*parts)


def watch(address: str, interval: float, timeout: float) -> None:
    """Show it until Ctrl-C.

    Raises:
        AskError: nobody answered. ImportError: rich is not installed.
    """
    from rich.console import Console
    from rich.live import Live

    before, now = None, look(address, timeout)
    with Live(drawn(now, before), console=Console(), screen=True, auto_refresh=False) as live:
        live.refresh()
        while True:
            time.sleep(interval)
            before, now = now, look(address, timeout)
            live.update(drawn(now, before), refresh=True)
