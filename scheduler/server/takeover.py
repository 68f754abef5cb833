"""Puts paceline in the place of ``distributed.Scheduler``, for programs that name that class and take no other. Off by default.

Three ways, in the order in which to prefer them:

- In a program: ``import paceline.scheduler.server.takeover; paceline.scheduler.server.takeover.install()``.
- Before a module that is run with ``-m``: ``python -m paceline.scheduler.server.takeover -m distributed.cli.dask_scheduler --port 0``, or
  ``remote_python="python -m paceline.scheduler.server.takeover"`` for tools that put ``-m distributed.cli.dask_spec`` behind it.
- For commands that cannot be changed: ``paceline takeover --install`` writes a ``.pth`` file into this environment; from then on
  processes with ``PACELINE_TAKEOVER=1`` in their environment have the class replaced. ``paceline takeover --remove`` ends it.

Must not know: how the scheduler works.
"""

from __future__ import annotations

import itertools
import os
import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

#: Processes that have it set to "1" are taken over, once the file is there.
VARIABLE = "PACELINE_TAKEOVER"
#: The file in site-packages.
PTH_NAME = "paceline-takeover.pth"
PTH_TEXT = (
    f"import os; os.environ.get({VARIABLE!r}) == '1' and "
    "__import__('paceline.scheduler.server.takeover', fromlist=['install']).install_quietly()\n"
)
#: Modules that are a scheduler's process when they are run.
OWN_PROCESSES = ("distributed.cli.dask_scheduler", "distributed.cli.dask_spec")


def install(own_process: bool | None = None) -> type:
    """Replace the class wherever distributed binds it. Returns the class that stands there now.

    Args:
        own_process: schedulers have the process for themselves; None looks at how this process was started.
    """
    from paceline.workers_compat import replacing

    from .scheduler import Scheduler

    standing = replacing.standing_class()
    if getattr(standing, "takes_over", False):
        return standing
    own = runs_a_scheduler(sys.orig_argv) if own_process is None else own_process

    class TakenOver(Scheduler):
        """paceline's scheduler under the name of distributed's."""

        takes_over = True

        def __init__(self, **options: Any) -> None:
            super().__init__(**{"own_process": own, **options})

    TakenOver.__name__ = TakenOver.__qualname__ = "Scheduler"
    replacing.replace_class(TakenOver)
    return TakenOver


def install_quietly() -> None:
    """``install`` at the start of any process: one without distributed goes on as it is."""
    try:
        install()
    except ImportError:
        return


def runs_a_scheduler(command: list[str]) -> bool:
    """Whether a process with this command line is a scheduler's own: ``-m distributed.cli.dask_scheduler``, ``dask spec``, ..."""
    if any(part in OWN_PROCESSES for part in command):
        return True
    words = [os.path.basename(part) for part in command]
    pairs = set(itertools.pairwise(words))
    return bool(pairs & {("dask", "scheduler"), ("dask", "spec")})


def pth_file() -> Path:
    """Where the file is, or would be."""
    return Path(sysconfig.get_paths()["purelib"]) / PTH_NAME


def write_pth() -> Path:
    """Write the file. Raises OSError."""
    path = pth_file()
    path.write_text(PTH_TEXT)
    return path


def main() -> None:
    """``-m MODULE ARGUMENTS``: run it with the class replaced."""
    if len(sys.argv) < 3 or sys.argv[1] != "-m":
        sys.exit("usage: python -m paceline.scheduler.server.takeover -m MODULE [ARGUMENTS]")
    module = sys.argv[2]
    install(own_process=runs_a_scheduler(sys.argv[1:]))
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # the module under its own name: what it replaces asks for it there
    from paceline.scheduler.server import takeover

    takeover.main()
