"""The dashboard's pages, created at the first request for one."""

from __future__ import annotations

import asyncio
import html
import importlib
import logging
import warnings
from typing import Any, Protocol

from paceline.workers_compat.dashboard.state_deltas import ObservedServer
from paceline.workers_compat.facade import pages as stock
from tornado import web

from .server import HttpServer, Route

logger = logging.getLogger("distributed.scheduler")

#: The module that runs the dashboard in this process; importing it imports bokeh.
EMBEDDED = "paceline.workers_compat.dashboard.embedded"
#: Text of the page that replaces the dashboard, HTML.
NO_BOKEH = (
    "bokeh is not installed. Dask needs bokeh for the dashboard: "
    "<code>pip install 'paceline[dashboard]'</code>"
)


class Dashboard(Protocol):
    """Serves the dashboard's pages."""

    def routes(self) -> list[Route]:
        """Return its routes below the prefix."""

    def connect(self, http: HttpServer) -> None:
        """Add its pages to ``http``."""

    async def stop(self) -> None:
        """Stop serving pages."""


class ToStatus(web.RequestHandler):
    """Redirect the front page to the status page."""

    def initialize(self, prefix: str) -> None:
        """See tornado."""
        self._prefix = prefix

    def get(self) -> None:
        """See tornado."""
        self.redirect(f"{self._prefix}/status")


class NoDashboard(web.RequestHandler):
    """A plain page with the reason why there is no dashboard."""

    def initialize(self, reason: str) -> None:
        """See tornado."""
        self._reason = reason

    def get(self) -> None:
        """See tornado."""
        self.render_reason(self, self._reason)

    @staticmethod
    def render_reason(handler: web.RequestHandler, reason: str) -> None:
        """Write the page to ``handler``. ``reason`` is HTML."""
        handler.write(
            "<!doctype html><title>paceline</title><h1>No dashboard</h1>"
            f"<p>{reason}</p>"
            "<p>These pages work without it: <a href='info/main/workers.html'>workers</a>, "
            "<a href='json/counts.json'>counts</a>, <a href='health'>health</a>, "
            "<a href='metrics'>metrics</a>.</p>"
        )


class MissingDashboard:
    """Replacement for the dashboard if bokeh is not installed."""

    def __init__(self, prefix: str, reason: str = NO_BOKEH) -> None:
        self._prefix = prefix
        self._reason = reason

    def routes(self) -> list[Route]:
        """See ``Dashboard``."""
        return [
            (r"/", ToStatus, {"prefix": self._prefix}),
            (r"/status", NoDashboard, {"reason": self._reason}),
        ]

    def connect(self, http: HttpServer) -> None:
        """See ``Dashboard``."""

    async def stop(self) -> None:
        """See ``Dashboard``."""


def page_patterns(prefix: str) -> list[str]:
    """Return patterns for all paths of the dashboard.

    Each page, the paths below it, and bokeh's static files.
    """
    return [prefix + path + r"(?:/.*)?" for path in [*stock.dashboard_paths(), "/static"]]


class EmbeddedDashboard:
    """The pages in this process, created at the first request: for schedulers embedded in programs.

    Args:
        server: the scheduler's server.
        prefix: prefix of every path.
    """

    def __init__(self, server: ObservedServer, prefix: str) -> None:
        self._server = server
        self._prefix = prefix
        self._http: HttpServer | None = None
        self._lazy: web.Application | None = None
        self._bokeh: Any = None
        self._lock = asyncio.Lock()

    def routes(self) -> list[Route]:
        """See ``Dashboard``."""
        return [(r"/", ToStatus, {"prefix": self._prefix})]

    def connect(self, http: HttpServer) -> None:
        """See ``Dashboard``."""
        self._http = http
        self._lazy = web.Application(
            [(pattern, FirstPage, {"dashboard": self}) for pattern in page_patterns(self._prefix)]
        )
        http.application.add_application(self._lazy)

    async def start(self) -> None:
        """Create the pages.

        Raises:
            ImportError: bokeh is missing, or distributed does not support its version.
        """
        assert self._http is not None and self._lazy is not None
        async with self._lock:
            if self._bokeh is not None:
                return
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = await asyncio.to_thread(importlib.import_module, EMBEDDED)
            self._bokeh = module.make_application(self._server, self._http, self._prefix)
            applications = self._http.application.applications
            applications[applications.index(self._lazy)] = self._bokeh

    async def stop(self) -> None:
        """See ``Dashboard``."""
        if self._bokeh is not None:
            self._bokeh.stop()


class FirstPage(web.RequestHandler):
    """Create the dashboard, then redirect the browser to the requested page."""

    def initialize(self, dashboard: EmbeddedDashboard) -> None:
        """See tornado."""
        self._dashboard = dashboard

    async def get(self) -> None:
        """See tornado."""
        try:
            await self._dashboard.start()
        except ImportError as error:
            logger.warning("The dashboard cannot start: %s", error)
            self.write(f"<p>The dashboard cannot start: {html.escape(str(error))}</p>")
            return
        self.redirect(self.request.uri or "status")
