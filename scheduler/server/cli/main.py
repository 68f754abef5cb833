"""The command ``paceline`` and its subcommands ``scheduler``, ``replay`` and ``takeover``.

The other subcommands are in ``status.py``, ``doctor.py``, ``explain.py``, ``upgrade.py`` and
``protocol_commands.py``.

``paceline`` alone starts a scheduler, as ``dask scheduler`` does: same options, same log lines,
same exit codes.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import gc
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import doctor, explain, protocol_commands, shares, status, upgrade
from .options import read_key, tls_options

if TYPE_CHECKING:
    from paceline.scheduler.server.durable.keeper_channel import KeeperChannel

logger = logging.getLogger("distributed.scheduler")

#: Default port of the scheduler.
DEFAULT_PORT = 8786
#: Logged before and after the start.
RULE = "-" * 47
#: Error text for a preload that cannot be imported.
PRELOAD_HINT = (
    "A preload cannot be loaded: {}. "
    "Is it installed in this environment, or its folder on PYTHONPATH?"
)
#: Advice for system errors at start-up.
HINTS = {
    errno.EADDRINUSE: "Another program uses this port. Stop it, or use `--port 0` for a free one.",
    errno.EADDRNOTAVAIL: (
        "This machine does not have this address. Omit --host to listen on all addresses."
    ),
    errno.EACCES: (
        "Ports below 1024 need root: choose another with --port. "
        "Also check the permissions of the given files."
    ),
    errno.ENOENT: "The folder of a given file does not exist: create it first.",
}


class DefaultGroup(click.Group):
    """A group that runs the subcommand ``scheduler`` if no subcommand is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["scheduler", *args]
        return super().parse_args(ctx, args)


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


@click.group(name="paceline", cls=DefaultGroup, context_settings={"ignore_unknown_options": True})
def main() -> None:
    """paceline: a scheduler for Dask clusters."""


@main.command(
    name="scheduler",
    context_settings={"ignore_unknown_options": True},
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
    if security and not host and not protocol:
        protocol = "tls"
    address = listen_options(host, port, interface, protocol)
    is_standby = os.environ.get("PACELINE_UPGRADE", "").startswith("standby")
    if pid_file and not is_standby:
        write_pid_file(pid_file)
    set_process_title("dask scheduler [not started]")
    raise_file_limit()
    run_scheduler(**address, **options, durable=durable, security=security)


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--until", type=int, help="Stop after this number of stimuli")
@click.option("--print", "show", is_flag=True, help="Print each stimulus and its outputs")
@click.option(
    "--key", help="Print only stimuli and outputs with this key, and its story at the end"
)
def replay(file: str, until: int | None, show: bool, key: str | None) -> None:
    """Replay a journal in a new core and print a hash of all outputs."""
    from paceline.scheduler.core.inspection import queries
    from paceline.scheduler.server.journal.journal import JournalError
    from paceline.scheduler.server.journal.replay import replay as run

    wanted = read_key(key)
    try:
        report = run(file, until=until, show=click.echo if show or key else None, key=wanted)
    except JournalError as error:
        raise click.ClickException(str(error)) from error
    if wanted is not None:
        for line in queries.story(report.core.state, wanted):
            click.echo(repr(line))
    for number, text in report.errors:
        click.echo(f"Stimulus {number} failed: {text}")
    click.echo(f"{report.n_stimuli} stimuli ({report.ending})")
    differs = f"differ from those of the run after stimulus {report.differs_after}"
    same = report.differs_after is None
    click.echo(f"The outputs {'are the same as in the run' if same else differs}.")
    click.echo(f"Hash of the outputs: {report.digest}")
    if report.errors:
        sys.exit(1)


@main.command()
@click.option(
    "--install/--remove",
    "wanted",
    default=None,
    help="Write or remove the file; without either, report whether it exists",
)
def takeover(wanted: bool | None) -> None:
    """Replace `distributed.Scheduler` in commands that cannot be changed (off by default).

    After --install, processes of this environment that have PACELINE_TAKEOVER=1 set start paceline
    instead of distributed's scheduler: `python -m distributed.cli.dask_scheduler`, `dask spec`,
    SSHCluster, SubprocessCluster.
    """
    from . import replace_scheduler as module

    path = module.pth_file()
    try:
        if wanted:
            path.write_text(module.PTH_TEXT)
        elif wanted is False:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(f"{path}: {error}") from error
    if path.exists():
        click.echo(f"{path} is installed: processes with {module.VARIABLE}=1 use paceline.")
    else:
        click.echo(f"{path} is not installed.")


for command in (
    *protocol_commands.COMMANDS,
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
    if port:
        try:
            ports = [int(p) for p in port.split(",")] if "," in port else int(port)
        except ValueError:
            raise click.UsageError(
                "--port must be a number (0 for any free port) or several, "
                f"for example 8786,8787; got {port!r}"
            ) from None
    if port is None and (not host or not re.search(r":\d", host)):
        many = isinstance(protocols, list)
        ports = [DEFAULT_PORT] + [0] * (len(protocols) - 1) if many else DEFAULT_PORT
    lists = [x for x in (protocols, ports) if isinstance(x, list)]
    if lists and (len(lists) != 2 or len(ports) != len(protocols)):
        raise click.UsageError("--protocol and --port must both be lists of equal length")
    return {"host": host, "port": ports, "interface": interfaces, "protocol": protocols}


def write_pid_file(path: str) -> None:
    """Write the process id to a file and remove the file at exit."""
    with open(path, "w") as file:
        file.write(str(os.getpid()))

    def remove() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    atexit.register(remove)


def raise_file_limit() -> None:
    """Raise the soft limit of open files to half of the hard limit: each peer is an open file."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard // 2), hard))


def set_process_title(title: str) -> None:
    """Set the title that ``ps`` shows."""
    import setproctitle

    # child processes of Dask set their titles, too, if this variable is set
    os.environ["__DASK_PARENT_PID"] = str(os.getpid())
    setproctitle.setproctitle(title)


def run_scheduler(*, durable: str | None = None, **options: Any) -> None:
    """Run a scheduler until it has finished or a signal arrives.

    ``durable`` is the folder of the log; with it, this process becomes the keeper.
    """
    gc.disable()  # for the imports; GcPolicy collects from then on
    from paceline.workers_compat.graphs.accelerators import optional_imports

    optional_imports.hide(optional_imports.SCHEDULER)
    from paceline.scheduler.server import requests
    from paceline.scheduler.server.durable.log import RecoveryError
    from paceline.scheduler.server.runtime import child_process
    from paceline.scheduler.server.runtime.template import Template
    from paceline.scheduler.server.scheduler import Scheduler
    from paceline.workers_compat.config import config

    # imports of this process write to pages that it shares with the template after the fork
    make_loop = loop_factory(config.get("distributed.admin.event-loop"))
    requests.import_modules()
    durable = durable or config.get("paceline.scheduler.durable")

    def serve(keeper: KeeperChannel | None) -> None:
        template = keeper.template if keeper is not None else Template.start()
        spawn = template.spawn if template is not None else child_process.spawn
        try:
            with asyncio.Runner(loop_factory=make_loop) as runner:
                runner.run(run(spawn, keeper))
        except RecoveryError as error:
            logger.error("The scheduler cannot continue from its log: %s", error)
            raise SystemExit(1) from error
        except (ImportError, ValueError, OSError) as error:  # invalid options
            raise click.ClickException(advice(error, options)) from error
        finally:
            if template is not None:
                template.stop()
            gc.freeze()  # the interpreter does not traverse these objects when it ends
            gc.enable()
            logger.info("End scheduler")

    async def run(spawn: child_process.Spawn, keeper: KeeperChannel | None) -> None:
        logger.info(RULE)
        scheduler = Scheduler(own_process=True, spawn=spawn, keeper=keeper, **options)
        logger.info(RULE)
        signalled = asyncio.create_task(wait_for_signal())
        finished = asyncio.create_task(start_and_finish(scheduler))
        done, _ = await asyncio.wait([signalled, finished], return_when=asyncio.FIRST_COMPLETED)
        if signalled in done:
            await scheduler.close(reason=f"signal-{signalled.result()}")
        for task in done:
            task.result()
        signalled.cancel()
        logger.info("Stopped scheduler at %r", scheduler.address)

    serve(start_keeper(durable, options, serve) if durable else None)


def start_keeper(
    folder: str, options: Mapping[str, Any], serve: Callable[[KeeperChannel], None]
) -> KeeperChannel:
    """Make this process the keeper, and return in the scheduler processes that it forks.

    A standby calls ``serve`` when it becomes the scheduler process.

    Raises:
        ClickException: the scheduler cannot be durable with these options.
    """
    from paceline.scheduler.server.durable import keeper, new_release, preconditions
    from paceline.scheduler.server.durable.keeper_state import KeeperState
    from paceline.scheduler.server.durable.snapshot import SnapshotError
    from paceline.scheduler.server.durable.upgrade import KEEPER, STANDBY, UpgradeError

    try:
        preconditions.check(options)
        role, fd = new_release.role()
        if role == STANDBY:
            channel = new_release.join(fd)
        else:
            channel = keeper.start(Path(folder), KeeperState.load(fd) if role == KEEPER else None)
    except (preconditions.DurableError, UpgradeError, SnapshotError, OSError) as error:
        raise click.ClickException(f"--durable: {error}") from error
    channel.serve = serve
    return channel


def advice(error: Exception, options: Mapping[str, Any]) -> str:
    """Return the text of an error at start-up, with advice."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError) and options.get("preload"):
        return PRELOAD_HINT.format(text)
    if not isinstance(error, OSError):
        return text
    given = {
        name: options[name]
        for name in ("host", "port", "interface", "dashboard_address")
        if options.get(name)
    }
    where = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())
    hint = HINTS.get(error.errno or 0)
    return f"{text} ({where}). {hint}" if hint else text


def loop_factory(wanted: str | None) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop: uvloop, unless the configuration selects asyncio."""
    if sys.platform == "win32":
        return asyncio.SelectorEventLoop
    if wanted == "asyncio":
        return None
    import uvloop

    return uvloop.new_event_loop


async def start_and_finish(scheduler: Any) -> None:
    """Start the scheduler and wait until it has finished."""
    await scheduler
    if sys.stderr.isatty():
        click.echo(what_next(scheduler.address, scheduler.services), err=True)
    await scheduler.finished()


def what_next(address: str, services: Mapping[str, Any]) -> str:
    """Return the next commands to type; they are shown on terminals only."""
    lines = [
        "",
        f"  Start workers:   dask worker {address}",
        f'  In Python:       from distributed import Client; client = Client("{address}")',
        f"  Watch:           paceline status {address}",
    ]
    if "dashboard" in services:
        lines.append(f"  In a browser:    http://localhost:{services['dashboard'].port}/status")
    return "\n".join([*lines, "  Stop with Ctrl-C.", ""])


async def wait_for_signal() -> int:
    """Wait for SIGINT or SIGTERM and return its number; a second one ends the process at once."""
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
