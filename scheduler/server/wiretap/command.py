"""Run a wiretap until a signal arrives, and print a summary at the end."""

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
from paceline.scheduler.core.text import count
from paceline.workers_compat.security import tls_config

from .proxy import Wiretap
from .report import Filter, Reporter

#: Lines that wait to be printed. If the terminal is too slow, lines are dropped, and connections
#: are not affected.
LINES_MAX: Final = 10_000


class Printer:
    """Prints lines in a separate thread.

    Args:
        file: the file to print to.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._n_dropped = 0
        self._thread = threading.Thread(target=self._run, name="wiretap-printer", daemon=True)
        self._thread.start()

    def __call__(self, text: str) -> None:
        """Schedule a line for printing; drop it if too many are waiting."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._n_dropped += 1

    def close(self, timeout: float = 5.0) -> None:
        """Print the waiting lines and stop the thread."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=timeout)
            self._thread.join(timeout)
        if self._n_dropped:
            click.echo(
                f"({count(self._n_dropped, 'line')} not printed: output was too slow)", err=True
            )

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader of a pipe has ended
            while (text := self._lines.get()) is not None:
                self._file.write(text + "\n")
                if self._lines.empty():
                    self._file.flush()
            self._file.flush()


def run(
    listen: str,
    forward: str,
    *,
    security: dict[str, str] | None,
    serves: Sequence[Direction],
    chosen: Filter,
    quiet: bool,
    jsonl: str | None,
    stats: bool,
    color: bool | None,
) -> int:
    """Run a wiretap until SIGINT or SIGTERM.

    Return the exit code, which is 1 if there were violations.

    Raises:
        click.ClickException: an address or a file cannot be used.
    """
    if color is None:
        color = sys.stdout.isatty()
    printer = Printer(sys.stdout)
    with contextlib.ExitStack() as stack:
        stack.callback(printer.close)
        try:
            file = stack.enter_context(open(jsonl, "w", encoding="utf-8")) if jsonl else None
            reporter = Reporter(
                None if quiet else printer, printer, chosen=chosen, jsonl=file, color=color
            )
            n_connections = asyncio.run(
                _tap(
                    *(listen, forward, reporter, printer),
                    tls=tls_config.read(security),
                    serves=serves,
                )
            )
        except (OSError, ValueError, OverflowError) as error:
            raise click.ClickException(str(error)) from error
        if stats:
            for text in reporter.stats.table():
                printer(text)
        printer(reporter.stats.summary(n_connections))
    return 1 if reporter.stats.n_violations else 0


async def _tap(
    listen: str, forward: str, reporter: Reporter, printer: Printer, **options: Any
) -> int:
    """Run the proxy until a signal arrives, and return the number of connections."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread, or Windows
            loop.add_signal_handler(number, stopped.set)
    async with Wiretap(listen, forward, reporter, **options) as tap:
        printer(f"Listening at {tap.address}, forwarding to {forward}. Stop with Ctrl-C.")
        await stopped.wait()
    return tap.n_connections
