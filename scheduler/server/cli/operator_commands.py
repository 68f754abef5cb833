"""The commands ``paceline status``, ``paceline doctor`` and ``paceline explain``."""

from __future__ import annotations

import contextlib
import sys

import click

from .options import read_key, scheduler_address, timeout_option


@click.command()
@scheduler_address()
@click.option("--once", is_flag=True, help="Print one snapshot and exit")
@click.option(
    "--interval", type=float, default=1.0, show_default=True, help="Seconds between updates"
)
@timeout_option(10.0)
def status(address: str, once: bool, interval: float, timeout: float) -> None:
    """Show tasks by prefix, workers, memory and rates of a cluster in the terminal.

    Stop with Ctrl-C.
    """
    from . import status as view
    from .rpc_client import RpcError

    try:
        if once or not sys.stdout.isatty():
            click.echo(view.format_text(view.fetch(address, timeout)))
            return
        with contextlib.suppress(KeyboardInterrupt):
            view.watch(address, interval, timeout)
    except (RpcError, ValueError) as error:
        raise click.ClickException(str(error)) from error


@click.command()
@scheduler_address(required=False)
@timeout_option(30.0)
def doctor(address: str | None, timeout: float) -> None:
    """Check a cluster for likely problems: versions, open files, clocks, settings.

    The exit code is 1 if there are any.

    If no scheduler is given, check this machine and its configuration only.
    """
    from . import doctor as module

    found = module.examine(address, timeout)
    click.echo(module.text(found))
    if any(each.grade == module.BAD for each in found):
        sys.exit(1)


@click.command()
@click.argument("key", required=False)
@scheduler_address()
@click.option("--json", "as_json", is_flag=True, help="Print all details as JSON")
@timeout_option(30.0)
def explain(key: str | None, address: str, as_json: bool, timeout: float) -> None:
    """Report why the task KEY does not run; without KEY, report what holds up the cluster."""
    from .explain import report

    try:
        click.echo(report(read_key(key), address, as_json, timeout))
    except ValueError as error:
        raise click.ClickException(str(error)) from error


#: Added to ``paceline`` by ``main.py``.
COMMANDS: tuple[click.Command, ...] = (status, doctor, explain)
