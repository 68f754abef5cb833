"""The command ``paceline``: the options of ``dask scheduler``, ``paceline replay`` and ``paceline explain``; ``protocol_cli.py`` has more.

``paceline`` alone starts a scheduler, as ``dask scheduler`` does: same options, same log lines, same exit codes.

Must not know: the core, connections.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from . import protocol_cli
from .operator import commands as operator_cli

logger = logging.getLogger("distributed.scheduler")

PEM_FILE = click.Path(exists=True, resolve_path=True)
#: The port of a scheduler when nobody says otherwise.
DEFAULT_PORT = 8786
RULE = "-" * 47
PRELOAD_HINT = "A preload cannot be loaded: {}. Is it installed in this environment, or its folder on PYTHONPATH?"
#: What to do about errors of the system at start.
HINTS = {
    errno.EADDRINUSE: "Another program listens there: `--port 0` takes any free port, or end that program.",
    errno.EADDRNOTAVAIL: "That is no address of this machine: leave --host out to listen on all of them, or name one of its own.",
    errno.EACCES: "Ports below 1024 are for root: take another with --port, and look at the rights of the files that you named.",
    errno.ENOENT: "The folder of a file that you named is not there: make it first.",
}


class DefaultGroup(click.Group):
    """A group whose own options start a scheduler when no subcommand is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["scheduler", *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help(ctx, formatter)


def validate_preload_argv(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Unknown options belong to a preload; without one they are errors."""
    from paceline.workers_compat import preloads

    try:
        return preloads.validate_argv(ctx, param, value)
    except ImportError as error:
        raise click.ClickException(PRELOAD_HINT.format(error)) from error


def validate_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """What is no duration is told before anything starts."""
    from paceline.workers_compat import config

    try:
        config.seconds(value)
    except (ValueError, KeyError, TypeError) as error:
        raise click.BadParameter(f'{value!r} is no duration: write "5 minutes", "1h" or seconds') from error
    return value


@click.group(name="paceline", cls=DefaultGroup, context_settings={"ignore_unknown_options": True})
def main() -> None:
    """paceline: a scheduler for Dask clusters."""


@main.command(
    name="scheduler",
    context_settings={"ignore_unknown_options": True},
    help="Launch a scheduler (the default command; takes the options of `dask scheduler`).",
)
@click.option("--host", type=str, default="", help="URI, IP or hostname of this server")
@click.option("--port", type=str, default=None, help="Serving port")
@click.option(
    "--interface", type=str, default=None, help="Preferred network interface like 'eth0' or 'ib0'"
)
@click.option("--protocol", type=str, default=None, help="Protocol like tcp, tls, or ucx")
@click.option("--tls-ca-file", type=PEM_FILE, default=None, help="CA cert(s) file for TLS (in PEM format)")
@click.option("--tls-cert", type=PEM_FILE, default=None, help="certificate file for TLS (in PEM format)")
@click.option("--tls-key", type=PEM_FILE, default=None, help="private key file for TLS (in PEM format)")
@click.option(
    "--dashboard-address",
    type=str,
    default=":8787",
    show_default=True,
    help="Address on which to listen for diagnostics dashboard",
)
@click.option(
    "--dashboard/--no-dashboard",
    "dashboard",
    default=True,
    help="Launch the Dashboard [default: --dashboard]",
)
@click.option("--jupyter/--no-jupyter", default=False, help="Start a Jupyter Server in the same process")
@click.option("--show/--no-show", default=False, help="Ignored: kept for old command lines")
@click.option("--dashboard-prefix", type=str, default="", help="Prefix for the dashboard app")
@click.option("--use-xheaders", type=bool, default=False, help="Ignored: kept for old command lines")
@click.option("--pid-file", type=str, default="", help="File to write the process PID")
@click.option(
    "--scheduler-file",
    type=str,
    default="",
    help="File to write connection information; a way to share it on a network file system",
)
@click.option(
    "--preload",
    type=str,
    multiple=True,
    is_eager=True,
    help='Module that should be loaded by the scheduler process like "foo.bar" or "/path/to/foo.py"',
)
@click.option(
    "--idle-timeout",
    default=None,
    type=str,
    callback=validate_duration,
    help="Time of inactivity after which to end the scheduler",
)
@click.option("--journal", type=click.Path(dir_okay=False), default=None, help="Write every stimulus to this file, for `paceline replay`")
@click.argument("preload_argv", nargs=-1, type=click.UNPROCESSED, callback=validate_preload_argv)
@click.version_option(package_name="paceline", prog_name="paceline")
def scheduler(
    host: str,
    port: str | None,
    interface: str | None,
    protocol: str | None,
    tls_ca_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    dashboard_address: str,
    dashboard: bool,
    jupyter: bool,
    show: bool,
    dashboard_prefix: str,
    use_xheaders: bool,
    pid_file: str,
    scheduler_file: str,
    preload: tuple[str, ...],
    idle_timeout: str | None,
    journal: str | None,
    preload_argv: tuple[str, ...],
) -> None:
    """Launch a scheduler."""
    files = {"tls_ca_file": tls_ca_file, "tls_scheduler_cert": tls_cert, "tls_scheduler_key": tls_key}
    security = {name: value for name, value in files.items() if value}
    if security and not host and not protocol:
        protocol = "tls"
    address = listen_options(host, port, interface, protocol)
    if pid_file:
        write_pid_file(pid_file)
    set_process_title("dask scheduler [not started]")
    raise_file_limit()
    run_scheduler(
        **address,
        dashboard=dashboard,
        dashboard_address=dashboard_address,
        http_prefix=dashboard_prefix,
        scheduler_file=scheduler_file or None,
        preload=preload,
        preload_argv=preload_argv,
        idle_timeout=idle_timeout,
        journal=journal,
        security=security or None,
        jupyter=jupyter,
    )


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--until", type=int, default=None, help="Stop after so many stimuli")
@click.option("--print", "show", is_flag=True, help="Print each stimulus and what came of it")
@click.option("--key", default=None, help="Only what names this task's key; prints its story at the end")
def replay(file: str, until: int | None, show: bool, key: str | None) -> None:
    """Run a journal through a fresh core and print a hash of all outputs."""
    from paceline.scheduler.core import queries

    from .journal import JournalError
    from .replay import replay as run

    wanted = read_key(key)
    try:
        report = run(file, until=until, show=click.echo if show or key else None, key=wanted)
    except JournalError as error:
        raise click.ClickException(str(error)) from error
    if wanted is not None:
        for line in queries.get_story(report.core.state, [wanted]):
            click.echo(repr(line))
    for number, text in report.errors:
        click.echo(f"stimulus {number} failed: {text}")
    click.echo(f"{report.n_stimuli} stimuli ({report.ending})")
    if report.differs_after is None:
        click.echo("the same outputs as in the run")
    else:
        click.echo(f"outputs differ from the run's after stimulus {report.differs_after}")
    click.echo(f"outputs {report.digest}")
    if report.errors:
        sys.exit(1)


@main.command()
@click.argument("key", required=False)
@click.option("--address", default=None, help="Where the scheduler listens, as tcp://127.0.0.1:8786")
@click.option("--scheduler-file", type=click.Path(exists=True, dir_okay=False), default=None, help="The file that it wrote its address to")
@click.option("--json", "as_json", is_flag=True, help="All that is known, as JSON")
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for the answer")
def explain(
    key: str | None, address: str | None, scheduler_file: str | None, as_json: bool, timeout: float
) -> None:
    """Why is my task not running? Without KEY: what holds up the cluster."""
    from .explaining import EXIT_NO_ANSWER, report

    try:
        click.echo(report(read_key(key), address, scheduler_file, as_json, timeout))
    except ValueError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_NO_ANSWER)


@main.command()
@click.option("--install/--remove", "wanted", default=None, help="Write or remove the file; without either, say what is")
def takeover(wanted: bool | None) -> None:
    """Stand in for `distributed.Scheduler` in commands that cannot be changed (off by default).

    After --install, processes of this environment that have PACELINE_TAKEOVER=1 set start paceline where they name
    distributed's class: `python -m distributed.cli.dask_scheduler`, `dask spec`, SSHCluster, SubprocessCluster.
    """
    from . import takeover as module

    path = module.pth_file()
    try:
        if wanted:
            module.write_pth()
        elif wanted is False:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(f"{path}: {error}") from error
    if path.exists():
        click.echo(f"{path} is there: processes with {module.VARIABLE}=1 are taken over")
    else:
        click.echo("Nothing is taken over")


def read_key(text: str | None) -> Any:
    """A key as a user types it: ``('x', 0)`` is a tuple, anything else a name."""
    if text is None or not text.startswith("("):
        return text
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


for command in (*protocol_cli.COMMANDS, *operator_cli.COMMANDS):
    main.add_command(command)


def dask_scheduler() -> None:
    """The command ``dask-scheduler``, whose name distributed gave up in 2026.6."""
    scheduler(prog_name="dask-scheduler")


def listen_options(
    host: str, port: str | None, interface: str | None, protocol: str | None
) -> dict[str, Any]:
    """host, port, interface and protocol as ``Scheduler`` takes them; comma lists become lists.

    Raises:
        click.UsageError: lists of unequal length.
    """
    protocols: Any = protocol.split(",") if protocol and "," in protocol else protocol
    interfaces: Any = interface.split(",") if interface and "," in interface else interface
    ports: Any = port
    if port:
        try:
            ports = [int(p) for p in port.split(",")] if "," in port else int(port)
        except ValueError:
            raise click.UsageError(f"--port takes a number (0: any free one), or several as 8786,8787; not {port!r}") from None
    if port is None and (not host or not re.search(r":\d", host)):
        many = isinstance(protocols, list)
        ports = [DEFAULT_PORT] + [0] * (len(protocols) - 1) if many else DEFAULT_PORT
    lists = [x for x in (protocols, ports) if isinstance(x, list)]
    if lists and (len(lists) != 2 or len(ports) != len(protocols)):
        raise click.UsageError("--protocol and --port must both be lists of equal length")
    return {"host": host, "port": ports, "interface": interfaces, "protocol": protocols}


def write_pid_file(path: str) -> None:
    """Write our process id; removed at exit."""
    with open(path, "w") as file:
        file.write(str(os.getpid()))

    def remove() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    atexit.register(remove)


def raise_file_limit() -> None:
    """Each peer is an open file: take half of what the system allows."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard // 2), hard))


def set_process_title(title: str) -> None:
    """What ``ps`` shows."""
    import setproctitle

    # children that belong to Dask show their titles too; this variable is how they know
    os.environ["__DASK_PARENT_PID"] = str(os.getpid())
    setproctitle.setproctitle(title)


def run_scheduler(**options: Any) -> None:
    """Run a scheduler until it has finished or a signal came."""
    from paceline.workers_compat import config

    config.initialize()
    from .scheduler import Scheduler

    async def run() -> None:
        logger.info(RULE)
        scheduler = Scheduler(own_process=True, **options)
        logger.info(RULE)
        signalled = asyncio.create_task(wait_for_signal())
        finished = asyncio.create_task(start_and_finish(scheduler))
        done, _ = await asyncio.wait(
            [signalled, finished], return_when=asyncio.FIRST_COMPLETED
        )
        if signalled in done:
            await scheduler.close(reason=f"signal-{signalled.result()}")
        for task in done:
            task.result()
        signalled.cancel()
        logger.info("Stopped scheduler at %r", scheduler.address)

    try:
        with asyncio.Runner(loop_factory=loop_factory(config.get("distributed.admin.event-loop"))) as runner:
            runner.run(run())
    except (ImportError, ValueError, OSError) as error:  # options that cannot be carried out
        raise click.ClickException(advice(error, options)) from error
    finally:
        logger.info("End scheduler")


def advice(error: Exception, options: Mapping[str, Any]) -> str:
    """An error at start, and what to do about it."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError) and options.get("preload"):
        return PRELOAD_HINT.format(text)
    if not isinstance(error, OSError):
        return text
    given = {name: options[name] for name in ("host", "port", "interface", "dashboard_address") if options.get(name)}
    where = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())
    hint = HINTS.get(error.errno or 0)
    return f"{text} ({where}). {hint}" if hint else text


def loop_factory(wanted: str | None) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of a process of our own: uvloop, unless the configuration asks for asyncio's."""
    if sys.platform == "win32":
        return asyncio.SelectorEventLoop
    if wanted == "asyncio":
        return None
    import uvloop

    return uvloop.new_event_loop


async def start_and_finish(scheduler: Any) -> None:
    """Start it; return when it has finished."""
    await scheduler
    if sys.stderr.isatty():
        click.echo(what_next(scheduler.address, scheduler.services), err=True)
    await scheduler.finished()


def what_next(address: str, services: Mapping[str, Any]) -> str:
    """What a person types next. Nothing reads these lines: they are for terminals only."""
    lines = [
        "",
        f"  Start workers:   dask worker {address}",
        f'  In Python:       from distributed import Client; client = Client("{address}")',
        f"  Watch:           paceline status {address}",
    ]
    if "dashboard" in services:
        lines.append(f"  In a browser:    http://localhost:{services['dashboard'].port}/status")
    return "\n".join([*lines, "  Ctrl-C ends it.", ""])


async def wait_for_signal() -> int:
    """Wait for SIGINT or SIGTERM; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    caught: asyncio.Future[int] = loop.create_future()
    old: dict[int, Any] = {}

    def note(number: int) -> None:
        if not caught.done():
            caught.set_result(number)

    def handle(number: int, frame: Any) -> None:
        signal.signal(number, old[number])
        loop.call_soon_threadsafe(note, number)

    for ending in (signal.SIGINT, signal.SIGTERM):
        old[ending] = signal.signal(ending, handle)
    try:
        received = await caught
        logger.info("Received signal %s (%d)", signal.Signals(received).name, received)
        return received
    finally:
        for restored, handler in old.items():
            signal.signal(restored, handler)


if __name__ == "__main__":
    main()
