"""Replace ``distributed.Scheduler`` by paceline, for programs that use only that class.

There are three ways, in order of preference:

- In a program: ``from paceline import takeover; takeover.install()``.
- For a module that is run with ``-m``: ``python -m paceline.takeover -m
  distributed.cli.dask_scheduler --port 0``, or ``remote_python="python -m paceline.takeover"`` for
  tools that append ``-m distributed.cli.dask_spec``.
- For commands that cannot be changed: ``paceline takeover --install`` writes a ``.pth`` file into
  this environment, which replaces the class in processes with ``PACELINE_TAKEOVER=1``.
  ``paceline takeover --remove`` removes the file.
"""

from __future__ import annotations

import itertools
import os
import runpy
import sys
import sysconfig
import weakref
from pathlib import Path
from typing import Any, ClassVar

import click

#: Environment variable; "1" replaces the class if the file is installed.
VARIABLE = "PACELINE_TAKEOVER"
#: Name of the file in site-packages.
PTH_NAME = "paceline-takeover.pth"
PTH_TEXT = (
    f"import os; os.environ.get({VARIABLE!r}) == '1' and "
    "__import__('paceline.scheduler.server.cli.replace_scheduler', fromlist=['install'])"
    ".install_quietly()\n"
)
#: Modules whose process runs a scheduler and nothing else.
OWN_PROCESSES = ("distributed.cli.dask_scheduler", "distributed.cli.dask_spec")


def install(own_process: bool | None = None) -> type:
    """Replace the class in all modules of distributed, and return the class that is used now.

    With `own_process` the process runs only a scheduler; None derives that from its command line.
    """
    from paceline.scheduler.server.scheduler import Scheduler
    from paceline.workers_compat import stock_classes

    current = stock_classes.current_scheduler_class()
    if getattr(current, "is_replacement", False):
        return current
    own = runs_a_scheduler(sys.orig_argv) if own_process is None else own_process

    class ReplacementScheduler(Scheduler):
        """paceline's scheduler under the name of distributed's."""

        is_replacement = True
        #: Read by distributed's workers and its test fixtures.
        _instances: ClassVar[weakref.WeakSet[Scheduler]] = weakref.WeakSet()

        def __init__(self, **options: Any) -> None:
            super().__init__(**{"own_process": own, **options})
            self._instances.add(self)

    ReplacementScheduler.__name__ = ReplacementScheduler.__qualname__ = "Scheduler"
    stock_classes.replace_class(ReplacementScheduler)
    return ReplacementScheduler


def install_quietly() -> None:
    """Call ``install`` unless distributed cannot be imported."""
    try:
        install()
    except ImportError:
        return


def runs_a_scheduler(arguments: list[str]) -> bool:
    """Return whether a command line, for example ``dask scheduler``, runs a scheduler."""
    if any(part in OWN_PROCESSES for part in arguments):
        return True
    words = [os.path.basename(part) for part in arguments]
    pairs = set(itertools.pairwise(words))
    return bool(pairs & {("dask", "scheduler"), ("dask", "spec")})


def pth_file() -> Path:
    """Return the path of the file, which need not exist."""
    return Path(sysconfig.get_paths()["purelib"]) / PTH_NAME


@click.command("takeover")
@click.option(
    "--install/--remove",
    "wanted",
    default=None,
    help="Write or remove the file; without either, report whether it exists",
)
def command(wanted: bool | None) -> None:
    """Replace `distributed.Scheduler` in commands that cannot be changed (off by default).

    After --install, processes of this environment that have PACELINE_TAKEOVER=1 set start paceline
    instead of distributed's scheduler: `python -m distributed.cli.dask_scheduler`, `dask spec`,
    SSHCluster, SubprocessCluster.
    """
    path = pth_file()
    try:
        if wanted:
            path.write_text(PTH_TEXT)
        elif wanted is False:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(f"{path}: {error}") from error
    if path.exists():
        click.echo(f"{path} is installed: processes with {VARIABLE}=1 use paceline.")
    else:
        click.echo(f"{path} is not installed.")


def main() -> None:
    """Run ``-m MODULE ARGUMENTS`` with the class replaced."""
    if len(sys.argv) < 3 or sys.argv[1] != "-m":
        sys.exit("usage: python -m paceline.takeover -m MODULE [ARGUMENTS]")
    module = sys.argv[2]
    install(own_process=runs_a_scheduler(sys.argv[1:]))
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
