"""The command ``paceline``: its subcommand ``scheduler``, and a list of all others.

``paceline`` alone starts a scheduler, as ``dask scheduler`` does: same options, same log lines,
same exit codes, except that it is 2 if the value of an option is refused.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Any

import click

from . import doctor, explain, protocol_commands, replace_scheduler, replay, shares, status, upgrade
from .options import tls_options
from .run_scheduler import (
    PRELOAD_HINT,
    open_closed_streams,
    raise_file_limit,
    run_scheduler,
    set_process_title,
    write_pid_file,
)

#: Settings of commands: those of `dask`.
CONTEXT = {"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}
#: Default port of the scheduler.
DEFAULT_PORT = 8786


class DefaultGroup(click.Group):
    """A group that runs the subcommand ``scheduler`` if no subcommand is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["scheduler", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Report output that cannot be written in one line."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the flush at exit
            raise click.ClickException(f"Cannot write: {error}") from error


def validate_preload_argv(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Validate options that are passed to a preload. Raises ClickException."""
    if not value and not ctx.params.get("preload"):
        return value
    from paceline.workers_compat.config import preloads

    try:
        return preloads.validate_argv(ctx, param, value)
    except ImportError as error:
        raise click.ClickException(PRELOAD_HINT.format(error)) from error


def print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the version and the kind of build, and exit."""
    if value and not ctx.resilient_parsing:
        from paceline.scheduler.server.runtime import build

        click.echo(f"paceline, version {build.description()}")
        ctx.exit()


def validate_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Validate a duration option and report an invalid one before the scheduler starts."""
    if value is None:
        return None
    from paceline.workers_compat.config import config

    try:
        config.seconds(value)
    except (ValueError, KeyError, TypeError) as error:
        raise click.BadParameter(
            f'{value!r} is not a duration, for example "5 minutes", "1h" or a number of seconds'
        ) from error
    return value


@click.group(name="paceline", cls=DefaultGroup, context_settings=CONTEXT)
def main() -> None:
    """paceline: a scheduler for Dask clusters."""


@main.command(
    name="scheduler",
    context_settings=CONTEXT,
    help="Launch a scheduler (the default command; takes the options of `dask scheduler`).",
)
@click.option("--host", default="", help="URI, IP or hostname of this server")
@click.option("--port", help="Serving port")
@click.option("--interface", help="Preferred network interface like 'eth0' or 'ib0'")
@click.option("--protocol", help="Protocol like tcp, tls, or ucx")
@tls_options
@click.option(
    "--dashboard-address",
    default=":8787",
    show_default=True,
    help="Address on which to listen for diagnostics dashboard",
)
@click.option(
    "--dashboard/--no-dashboard", default=True, help="Launch the Dashboard [default: --dashboard]"
)
@click.option(
    "--jupyter/--no-jupyter", default=False, help="Start a Jupyter Server in the same process"
)
@click.option("--show/--no-show", expose_value=False, help="Ignored; accepted for compatibility")
@click.option("--dashboard-prefix", "http_prefix", default="", help="Prefix for the dashboard app")
@click.option(
    "--use-xheaders", type=bool, expose_value=False, help="Ignored; accepted for compatibility"
)
@click.option("--pid-file", help="File to write the process PID")
@click.option(
    "--scheduler-file",
    help="File to write connection information; a way to share it on a network file system",
)
@click.option(
    "--preload",
    multiple=True,
    is_eager=True,
    help="Module that should be loaded by the scheduler process "
    'like "foo.bar" or "/path/to/foo.py"',
)
@click.option(
    "--idle-timeout",
    callback=validate_duration,
    help="Time of inactivity after which to end the scheduler",
)
@click.option(
    "--journal",
    type=click.Path(dir_okay=False),
    help="Record every stimulus in this file, for `paceline replay`",
)
@click.option(
    "--durable",
    type=click.Path(file_okay=False),
    help="Survive the death of the scheduler process: keep what it needs in this folder",
)
@click.argument("preload_argv", nargs=-1, type=click.UNPROCESSED, callback=validate_preload_argv)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the version and the kind of build, and exit",
)
def scheduler(
    host: str,
    port: str | None,
    interface: str | None,
    protocol: str | None,
    security: dict[str, str] | None,
    pid_file: str | None,
    durable: str | None,
    **options: Any,
) -> None:
    """Launch a scheduler."""
    open_closed_streams()
    if security and not host and not protocol:
        protocol = "tls"
    address = listen_options(host, port, interface, protocol)
    if pid_file:
        write_pid_file(pid_file)
    set_process_title("dask scheduler [not started]")
    raise_file_limit()
    run_scheduler(**address, **options, durable=durable, security=security)


for command in (
    *protocol_commands.COMMANDS,
    replace_scheduler.command,
    replay.command,
    status.command,
    doctor.command,
    explain.command,
    upgrade.command,
    shares.shares_command,
    shares.usage_command,
):
    main.add_command(command)
scheduler.epilog = (
    f"Other commands: {', '.join(sorted(main.commands.keys() - {'scheduler'}))}. "
    "Help for a command: paceline COMMAND --help"
)


def dask_scheduler() -> None:
    """Run the command ``dask-scheduler``, which distributed dropped in 2026.6."""
    scheduler(prog_name="dask-scheduler")


def listen_options(
    host: str, port: str | None, interface: str | None, protocol: str | None
) -> dict[str, Any]:
    """Return the arguments of ``Scheduler`` for listening; comma-separated values as lists."""
    protocols: Any = protocol.split(",") if protocol and "," in protocol else protocol
    interfaces: Any = interface.split(",") if interface and "," in interface else interface
    ports: Any = port
    if port is not None:
        try:  # as in stock, an empty text means 0
            numbers = [int(each) for each in (port or "0").split(",")]
        except ValueError:
            numbers = [-1]
        if not all(0 <= number < 2**16 for number in numbers):
            raise click.UsageError(
                "--port must be a number (0 for any free port) or several, "
                f"for example 8786,8787; got {port!r}"
            )
        ports = numbers if "," in port else numbers[0]
    if port is None and (not host or not re.search(r":\d", host)):
        many = isinstance(protocols, list)
        ports = [DEFAULT_PORT] + [0] * (len(protocols) - 1) if many else DEFAULT_PORT
    lists = [x for x in (protocols, ports) if isinstance(x, list)]
    if lists and (len(lists) != 2 or len(ports) != len(protocols)):
        raise click.UsageError("--protocol and --port must both be lists of equal length")
    return {"host": host, "port": ports, "interface": interfaces, "protocol": protocols}


if __name__ == "__main__":
    main()
