"""The dashboard's pages: made when somebody first asks for one.

Must not know: what they show (``workers_compat/dashboard/``).
"""

from __future__ import annotations

import asyncio
import html
import importlib
import logging
import warnings
from typing import Any, Protocol

from paceline.workers_compat import pages as stock
from tornado import web

from .server import HttpServer, Route

logger = logging.getLogger("distributed.scheduler")

#: The module that runs the dashboard in this process; importing it imports bokeh.
EMBEDDED = "paceline.workers_compat.dashboard.embedded"
NO_BOKEH = (
    "bokeh is not installed. Dask needs bokeh for the dashboard: <code>pip install 'paceline[dashboard]'</code>"
)


class Dashboard(Protocol):
    """What serves the dashboard's pages."""

    def routes(self) -> list[Route]:
        """Its routes below the prefix."""

    def connect(self, http: HttpServer) -> None:
        """Pages are about to be asked for."""

    async def stop(self) -> None:
        """No more pages."""


class ToStatus(web.RequestHandler):
    """The front page is the status page."""

    def initialize(self, prefix: str) -> None:
        self._prefix = prefix

    def get(self) -> None:
        self.redirect(f"{self._prefix}/status")


class NoDashboard(web.RequestHandler):
    """A plain page that says why there is none."""

    def initialize(self, reason: str) -> None:
        self._reason = reason

    def get(self) -> None:
        self.say(self, self._reason)

    @staticmethod
    def say(handler: web.RequestHandler, reason: str) -> None:
        """Write the page. ``reason`` is HTML."""
        handler.write(
            "<!doctype html><title>paceline</title><h1>No dashboard here</h1>"
            f"<p>{reason}</p>"
            "<p>These pages work without it: <a href='info/main/workers.html'>workers</a>, "
            "<a href='json/counts.json'>counts</a>, <a href='health'>health</a>, "
            "<a href='metrics'>metrics</a>.</p>"
        )


class MissingDashboard:
    """Bokeh is not there."""

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
    """Patterns of all paths of the dashboard: each page and what lies below it, and bokeh's own static files."""
    return [prefix + path + r"(?:/.*)?" for path in [*stock.dashboard_paths(), "/static"]]


class EmbeddedDashboard:
    """The pages in this process, made when the first is asked for: for schedulers embedded in programs.

    Args:
        facade: the scheduler, for them.
    """

    def __init__(self, facade: Any, prefix: str) -> None:
        self._facade = facade
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

    async def begin(self) -> None:
        """Make the pages.

        Raises:
            ImportError: bokeh is missing, or is not one that distributed takes.
        """
        assert self._http is not None and self._lazy is not None
        async with self._lock:
            if self._bokeh is not None:
                return
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = await asyncio.to_thread(importlib.import_module, EMBEDDED)
            self._bokeh = module.make_application(self._facade, self._http, self._prefix)
            applications = self._http.application.applications
            applications[applications.index(self._lazy)] = self._bokeh

    async def stop(self) -> None:
        """See ``Dashboard``."""
        if self._bokeh is not None:
            self._bokeh.stop()


class FirstPage(web.RequestHandler):
    """Makes the dashboard, then sends the browser to the page that it wanted."""

    def initialize(self, dashboard: EmbeddedDashboard) -> None:
        self._dashboard = dashboard

    async def get(self) -> None:
        try:
            await self._dashboard.begin()
        except ImportError as error:
            logger.warning("The dashboard cannot start: %s", error)
            self.write(f"<p>The dashboard cannot start: {html.escape(str(error))}</p>")
            return
        self.redirect(self.request.uri or "status")
