"""Runs a tap until a signal comes, and says at the end what it has seen.

Must not know: how messages are read, or what a violation is.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final, TextIO

import click
from paceline.protocol.catalogue import Direction

from .proxy import TlsFiles, Wiretap
from .report import Filter, Reporter, Stats

#: Lines that wait to be printed. A terminal that stands still costs lines, not the connections.
LINES_MAX: Final = 10_000


class Printer:
    """Prints in a thread of its own.

    Args:
        file: where to; standard output.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._n_lost = 0
        self._thread = threading.Thread(target=self._run, name="wiretap-printer", daemon=True)
        self._thread.start()

    def __call__(self, text: str) -> None:
        """Print a line, soon."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._n_lost += 1

    def close(self, timeout: float = 5.0) -> None:
        """Print what waits."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=timeout)
            self._thread.join(timeout)
        if self._n_lost:
            click.echo(f"({self._n_lost} lines were not printed: too many at a time)", err=True)

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a pipe whose reader has gone
            while (text := self._lines.get()) is not None:
                self._file.write(text + "\n")
                if self._lines.empty():
                    self._file.flush()
            self._file.flush()


def run(
    listen: str,
    forward: str,
    *,
    tls: TlsFiles | None,
    serves: Sequence[Direction],
    chosen: Filter,
    quiet: bool,
    jsonl: str | None,
    stats: bool,
    colour: bool | None,
) -> int:
    """Tap until SIGINT or SIGTERM. Returns the exit code: 1 where there were violations.

    Raises:
        click.ClickException: an address or a file cannot be had.
    """
    if colour is None:
        colour = sys.stdout.isatty()
    printer = Printer(sys.stdout)
    with contextlib.ExitStack() as stack:
        stack.callback(printer.close)
        try:
            file = stack.enter_context(open(jsonl, "w", encoding="utf-8")) if jsonl else None
            reporter = Reporter(
                None if quiet else printer, printer, chosen=chosen, jsonl=file, colour=colour
            )
            n_connections = asyncio.run(
                _tap(listen, forward, reporter, printer, tls=tls, serves=serves)
            )
        except (OSError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        for text in _ending(reporter.stats, n_connections, stats):
            printer(text)
    return 1 if reporter.stats.n_violations else 0


def _ending(stats: Stats, n_connections: int, with_table: bool) -> list[str]:
    return [*(stats.table() if with_table else ()), stats.summary(n_connections)]


async def _tap(
    listen: str, forward: str, reporter: Reporter, printer: Printer, **options: Any
) -> int:
    """Returns how many connections there were."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for ending in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(RuntimeError, ValueError):  # no main thread, or Windows
            loop.add_signal_handler(ending, stopped.set)
    async with Wiretap(listen, forward, reporter, **options) as tap:
        printer(f"Listening at {tap.address}, forwarding to {forward}. Ctrl-C ends it.")
        await stopped.wait()
    return tap.n_connections
