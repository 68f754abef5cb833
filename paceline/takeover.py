"""Replace distributed's ``Scheduler`` class in a process: ``takeover.install()``.

For tools that name the class and accept no other. See docs/deploy/index.md.
"""

from paceline.scheduler.server.cli.replace_scheduler import install

__all__ = ["install"]
