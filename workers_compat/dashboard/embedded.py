"""distributed's dashboard in the process of an embedded scheduler, over the facade.

Importing this module imports bokeh.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from paceline.scheduler.core.inspection.memory_report import memory_report
from paceline.scheduler.core.inspection.share_report import share_report
from paceline.workers_compat.facade.pages import PageScheduler
from paceline.workers_compat.facade.server_port import FacadeServer
from paceline.workers_compat.loop_profile import Periods
from tornado.ioloop import IOLoop

from . import applications


class ProfiledLoop:
    """The tornado loop and its profile.

    The loop itself is not changed, because it may outlive the scheduler.
    """

    def __init__(self, loop: IOLoop, profile: Periods) -> None:
        self._loop = loop
        self.profile = profile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class DashboardScheduler(PageScheduler):
    """The facade, with the attributes that distributed's components need in addition."""

    #: Stock's digests, which exist only with crick.
    digests = None

    def __init__(self, facade: Any, server: FacadeServer) -> None:
        super().__init__(facade)
        object.__setattr__(self, "_server", server)
        #: Stock's counters of messages.
        object.__setattr__(self, "counters", {})

    _tick_interval_observed = property(lambda self: self._facade.scheduler.tick_interval_observed)
    share_report = property(lambda self: share_report(self._server.state))
    memory_report = property(lambda self: memory_report(self._server.state))
    jupyter = property(lambda self: bool(self._facade.scheduler.jupyter))
    cumulative_worker_metrics = property(
        lambda self: defaultdict(int, self._facade.cumulative_worker_metrics)
    )

    @property
    def io_loop(self) -> Any:
        """Return the loop with the profile of a stock server in it, or of this scheduler."""
        loop = IOLoop.current()
        if getattr(loop, "profile", None):
            return loop
        return ProfiledLoop(loop, Periods(self._server.request_state.loop_profile))

    def benchmark_hardware(self) -> Any:
        return self._facade.handlers["benchmark_hardware"]()


def make_application(server: FacadeServer, http_server: Any, prefix: str) -> Any:
    """Return a tornado application with all pages of the dashboard, started in the running loop.

    `http_server` has the ``port`` that browsers connect to.
    """
    scheduler = DashboardScheduler(server.plugins.facade, server)
    object.__setattr__(scheduler, "http_server", http_server)
    return applications.make_application(scheduler, prefix)
