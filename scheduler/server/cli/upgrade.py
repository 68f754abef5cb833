"""``paceline upgrade``: continue a durable scheduler with the release of this command."""

from __future__ import annotations

import os
import sys

import click


@click.command(name="upgrade")
@click.argument("folder", metavar="[DIR]", required=False)
def command(folder: str | None) -> None:
    """Continue a scheduler with the release of paceline that this command belongs to.

    DIR is the folder of its option --durable; by default that of the configuration. Workers,
    clients and running tasks are not affected. If this release cannot continue the scheduler, the
    present process goes on, and the reason is printed.
    """
    from paceline.scheduler.server.durable.keeper import control, preconditions
    from paceline.workers_compat.config import config

    if folder is None:
        folder = config.get("paceline.scheduler.durable")
    if not folder or not isinstance(folder, str | os.PathLike):
        raise click.UsageError("Missing DIR: the folder given to `paceline --durable DIR`.")
    try:
        path = preconditions.expanded(folder).absolute()
        reply = control.call(path, {"python": sys.executable})
    except control.ControlError as error:
        raise click.ClickException(str(error)) from error
    if "error" in reply:
        raise click.ClickException(f"the scheduler was not upgraded: {reply['error']}")
    click.echo(f"Upgraded from {reply['from']} to {reply['to']}.")
    click.echo(f"No scheduler process ran for {reply['seconds']:.2f} s.")
