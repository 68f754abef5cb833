"""distributed's dashboard in the scheduler's own process, over the facade: for schedulers that are embedded in programs.

Importing this imports bokeh.

Must not know: when it is wanted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from paceline.workers_compat.own_profile import Periods
from paceline.workers_compat.pages import PageScheduler
from tornado.ioloop import IOLoop

from .applications import pages


class ProfiledLoop:
    """tornado's loop and a profile of it; the loop itself is left alone, since it may outlive the scheduler."""

    def __init__(self, loop: IOLoop, profile: Periods) -> None:
        self._loop = loop
        self.profile = profile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class DashboardScheduler(PageScheduler):
    """The scheduler for distributed's components: the facade, with what they ask for beside."""

    @property
    def counters(self) -> dict[str, Any]:
        """Stock's counters of messages: none."""
        return {}

    @property
    def digests(self) -> None:
        """Stock's digests, which it keeps where crick is installed: none."""
        return None

    @property
    def _tick_interval_observed(self) -> float:
        """How far apart the event loop's ticks are, seconds."""
        return float(self._facade._scheduler.tick_interval_observed)

    @property
    def io_loop(self) -> Any:
        """tornado's loop, with the profile that is taken of it: by a stock server that runs in it, or ours."""
        loop = IOLoop.current()
        if getattr(loop, "profile", None):
            return loop
        return ProfiledLoop(loop, Periods(self._facade._server.flows.own_profile))

    @property
    def jupyter(self) -> bool:
        """Whether Jupyter is served beside."""
        return bool(self._facade._scheduler.jupyter)

    @property
    def cumulative_worker_metrics(self) -> Any:
        """Sums of what workers report."""
        return defaultdict(int, self._facade.cumulative_worker_metrics)

    def benchmark_hardware(self) -> Any:
        """Bandwidths of workers; to be awaited."""
        return self._facade.handlers["benchmark_hardware"]()


def make_application(facade: Any, http_server: Any, prefix: str) -> Any:
    """A tornado application with all of the dashboard's pages, started in the running loop.

    Args:
        http_server: has the ``port`` that is served.
        prefix: before every path.
    """
    scheduler = DashboardScheduler(facade)
    object.__setattr__(scheduler, "http_server", http_server)
    application = BokehApplication(
        pages(),
        scheduler,
        prefix=prefix,
        template_variables=template_variables(scheduler),
    )
    application.initialize(IOLoop.current())
    application.start()
    return application
