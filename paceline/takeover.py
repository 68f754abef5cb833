"""Replace distributed's ``Scheduler`` class in a process, for tools that accept no other.

In a program: ``takeover.install()``. For a module that is run with ``-m``:
``python -m paceline.takeover -m distributed.cli.dask_scheduler --port 8786``. See
docs/deploy/index.md.
"""

from paceline.scheduler.server.cli.replace_scheduler import install, main

__all__ = ["install"]

if __name__ == "__main__":
    main()
