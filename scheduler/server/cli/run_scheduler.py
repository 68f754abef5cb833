"""Run a scheduler in this process until it has finished, for the command ``paceline``."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.scheduler.server.durable.channel.keeper_channel import KeeperChannel

logger = logging.getLogger("distributed.scheduler")

#: Logged before and after the start.
RULE = "-" * 47
#: Error text for a preload that cannot be imported.
PRELOAD_HINT = (
    "A preload cannot be loaded: {}. "
    "Is it installed in this environment, or its folder on PYTHONPATH?"
)
#: Options of `Scheduler` and of the command, named in errors of sockets and of certificates.
ADDRESSES: tuple[tuple[str, str], ...] = (
    ("host", "--host"),
    ("port", "--port"),
    ("interface", "--interface"),
    ("dashboard_address", "--dashboard-address"),
)
TLS_FILES: tuple[tuple[str, str], ...] = (
    ("tls_ca_file", "--tls-ca-file"),
    ("tls_scheduler_cert", "--tls-cert"),
    ("tls_scheduler_key", "--tls-key"),
)
TLS_HINT = "These files must be in PEM format, and the key must match the certificate."
HOST_HINT = "Is one of these host names or ports wrong?"
#: Advice for other system errors at start-up.
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


def write_pid_file(path: str) -> None:
    """Write the process id to a file and remove the file at exit.

    A standby does nothing, and an upgraded keeper does not write: the file has its process id.

    Raises:
        ClickException: the file cannot be written.
    """
    from paceline.scheduler.server.durable.keeper.upgrade import KEEPER, STANDBY, VARIABLE

    role = os.environ.get(VARIABLE, "").partition(":")[0]
    if role == STANDBY:
        return
    pid = os.getpid()
    try:
        if role != KEEPER:  # an error would end the cluster
            with open(path, "w") as file:
                file.write(str(pid))
    except OSError as error:
        raise click.ClickException(f"--pid-file: {advice(error, {})}") from error

    def remove() -> None:
        if os.getpid() == pid:  # not in a process that the keeper has forked
            with contextlib.suppress(OSError):
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


def open_closed_streams() -> None:
    """Open the null device in place of standard streams that the parent process has closed.

    Without this, sockets get their descriptors, which child processes inherit as streams.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "r+")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


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
    from paceline.scheduler.server.durable.log.segments import RecoveryError
    from paceline.scheduler.server.runtime import child_process
    from paceline.scheduler.server.runtime.template import Template
    from paceline.scheduler.server.scheduler import Scheduler
    from paceline.workers_compat.config import config

    # `logging: {version: 1}` in dask's configuration disables loggers that precede distributed
    logger.disabled = False
    # imports of this process write to pages that it shares with the template after the fork
    make_loop = loop_factory(config.get("distributed.admin.event-loop"))
    requests.import_modules()
    if durable == "":
        raise click.ClickException("--durable: the path of the folder is empty")
    durable = durable or config.get("paceline.scheduler.durable")

    def serve(keeper: KeeperChannel | None) -> None:
        template = keeper.template if keeper is not None else Template.start()
        spawn = template.spawn if template is not None else child_process.spawn
        try:
            with asyncio.Runner(loop_factory=make_loop) as runner:
                run_loop(runner, run(spawn, keeper), has_successor=keeper is not None)
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
        await asyncio.wait([signalled, finished], return_when=asyncio.FIRST_COMPLETED)
        if signalled.done():
            await scheduler.close(reason=f"signal-{signalled.result()}")
        signalled.cancel()
        if finished.done():  # a start that fails closes the scheduler, too
            finished.result()
        if scheduler.contact_addresses:
            logger.info("Stopped scheduler at %r", scheduler.address)

    serve(start_keeper(durable, options, serve) if durable else None)


def run_loop(runner: asyncio.Runner, main: Coroutine[Any, Any, None], has_successor: bool) -> None:
    """Run ``main``. End the process at once if it is interrupted and has a successor."""
    from paceline.workers_compat.end_process import end_process

    try:
        runner.run(main)
    except (KeyboardInterrupt, SystemExit) as error:
        if has_successor:
            # the clean-up would run the loop: it would close what the successor continues
            logger.exception("The scheduler process ends: %r", error)
            end_process(1)
        raise


def start_keeper(
    folder: str, options: Mapping[str, Any], serve: Callable[[KeeperChannel], None]
) -> KeeperChannel:
    """Make this process the keeper, and return in the scheduler processes that it forks.

    A standby calls ``serve`` when it becomes the scheduler process.

    Raises:
        ClickException: the scheduler cannot be durable with these options.
    """
    from paceline.scheduler.server.durable.keeper import keeper, preconditions
    from paceline.scheduler.server.durable.keeper.keeper_state import KeeperState
    from paceline.scheduler.server.durable.keeper.upgrade import KEEPER, STANDBY, UpgradeError
    from paceline.scheduler.server.durable.standby import new_release
    from paceline.scheduler.server.durable.standby.snapshot import SnapshotError
    from paceline.workers_compat.config.config import ConfigError

    try:
        preconditions.check(options)
        role, fd = new_release.role()
        if role == STANDBY:
            channel = new_release.join(fd)
        else:
            state = KeeperState.load(fd) if role == KEEPER else None
            channel = keeper.start(preconditions.expanded(folder), state)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
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
    names, hint = ADDRESSES, HINTS.get(error.errno or 0, "")
    if isinstance(error, ssl.SSLError):  # its errno is a number of OpenSSL
        names, hint = TLS_FILES, TLS_HINT
    elif isinstance(error, socket.gaierror):
        hint = HOST_HINT
    if error.filename is None:
        given = {**options, **(options.get("security") or {})}
        where = ", ".join(f"{option} {given[name]}" for name, option in names if given.get(name))
        text = f"{text} ({where})" if where else text
    return f"{text}. {hint}" if hint else text


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
