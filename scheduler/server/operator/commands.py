"""The commands ``paceline status`` and ``paceline doctor``.

Must not know: how either finds out.
"""

from __future__ import annotations

import contextlib
import sys

import click

from ..explaining import find_address

SCHEDULER_FILE = click.option(
    "--scheduler-file",
    type=click.Path(exists=True, dir_okay=False),
    default=None,
    help="The file that it wrote its address to",
)


@click.command()
@click.argument("address", required=False)
@SCHEDULER_FILE
@click.option("--once", is_flag=True, help="Print one look and end")
@click.option("--interval", type=float, default=1.0, show_default=True, help="Seconds between looks")
@click.option("--timeout", type=float, default=10.0, show_default=True, help="Seconds to wait for an answer")
def status(
    address: str | None, scheduler_file: str | None, once: bool, interval: float, timeout: float
) -> None:
    """Watch a cluster in the terminal: tasks by prefix, workers, memory, rates. Ctrl-C ends it."""
    from ..asking import AskError
    from . import status as view

    try:
        where = find_address(address, scheduler_file)
        if once or not sys.stdout.isatty():
            click.echo(view.plain(view.look(where, timeout)))
            return
        with contextlib.suppress(KeyboardInterrupt):
            view.watch(where, interval, timeout)
    except ImportError as error:
        raise click.ClickException(
            "the live view needs rich: pip install 'paceline[status]', or use --once"
        ) from error
    except (AskError, ValueError) as error:
        raise click.ClickException(str(error)) from error


@click.command()
@click.argument("address", required=False)
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for an answer")
def doctor(address: str | None, timeout: float) -> None:
    """Look for what makes a cluster fail or crawl: versions, open files, clocks, settings. Exits with 1 if there is any.

    Without ADDRESS it looks at this machine and its configuration only.
    """
    from . import doctor as module

    found = module.examine(address, timeout)
    click.echo(module.text(found))
    if any(each.grade == module.BAD for each in found):
        sys.exit(1)


#: Added to ``paceline`` by ``cli.py``.
COMMANDS: tuple[click.Command, ...] = (status, doctor)
