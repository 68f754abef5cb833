"""The dashboard inside the HTTP server: pages that are created at the first request."""

from __future__ import annotations

import asyncio
import html
import importlib
import logging
import warnings
from typing import Any

from paceline.workers_compat.facade import pages as stock
from paceline.workers_compat.facade.server_port import FacadeServer
from tornado import httputil, web

from .server import HttpServer, Route, page

logger = logging.getLogger("distributed.scheduler")

#: The module that runs the dashboard in this process; importing it imports bokeh.
EMBEDDED = "paceline.workers_compat.dashboard.embedded"
#: Text of the page that replaces the dashboard, HTML.
NO_BOKEH = (
    "bokeh is not installed. Dask needs bokeh for the dashboard: "
    "<code>pip install 'paceline[dashboard]'</code>"
)


class Dashboard:
    """Serves the dashboard's pages, whose paths all begin with ``prefix``."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def routes(self) -> list[Route]:
        """Return its routes below the prefix."""
        url = f"{self.prefix}/status"
        return [(r"/", web.RedirectHandler, {"url": url, "permanent": False})]

    def connect(self, http: HttpServer) -> None:
        """Add its pages to ``http``."""

    def add_pages(self, http: HttpServer, handler: type[web.RequestHandler]) -> web.Application:
        """Serve all paths of pages by ``handler``."""
        arguments = {"dashboard": self}
        rules = [(pattern, handler, arguments) for pattern in page_patterns(self.prefix)]
        application = web.Application(list(rules))
        http.application.add_application(application)
        return application

    async def stop(self) -> None:
        """Stop serving pages."""


def reason_page(reason: str) -> str:
    """Return a page with the reason why there is no dashboard, which is HTML."""
    return (
        "<!doctype html><title>paceline</title><h1>No dashboard</h1>"
        f"<p>{reason}</p>"
        "<p>These pages work without it: <a href='info/main/workers.html'>workers</a>, "
        "<a href='json/counts.json'>counts</a>, <a href='health'>health</a>, "
        "<a href='metrics'>metrics</a>.</p>"
    )


def same_page(request: httputil.HTTPServerRequest) -> str:
    """Return the requested URL relative to itself, because a proxy may have removed a prefix."""
    path, separator, query = (request.uri or "").partition("?")
    return "./" + path.rpartition("/")[2] + separator + query


class MissingDashboard(Dashboard):
    """Replacement for the dashboard if bokeh is not installed."""

    def routes(self) -> list[Route]:
        return [*super().routes(), page(r"/status", lambda: reason_page(NO_BOKEH))]


def page_patterns(prefix: str) -> list[str]:
    """Return patterns for the paths of pages, the paths below them, and static files."""
    return [prefix + path + r"(?:/.*)?" for path in [*stock.dashboard_paths(), "/static"]]


class EmbeddedDashboard(Dashboard):
    """The pages in this process, created at the first request: for embedded schedulers."""

    def __init__(self, server: FacadeServer, prefix: str) -> None:
        super().__init__(prefix)
        self._server = server
        self._http: HttpServer | None = None
        self._lazy: web.Application | None = None
        self._bokeh: Any = None
        self._lock = asyncio.Lock()

    def connect(self, http: HttpServer) -> None:
        self._http = http
        self._lazy = self.add_pages(http, FirstPage)

    async def start(self) -> None:
        """Create the pages. Raises ImportError if bokeh is missing or not supported."""
        assert self._http is not None and self._lazy is not None
        async with self._lock:
            if self._bokeh is not None:
                return
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = await asyncio.to_thread(importlib.import_module, EMBEDDED)
            self._bokeh = module.make_application(self._server, self._http, self.prefix)
            applications = self._http.application.applications
            applications[applications.index(self._lazy)] = self._bokeh

    async def stop(self) -> None:
        if self._bokeh is not None:
            self._bokeh.stop(wait=False)  # bokeh 3.10 cannot wait in a running loop


class FirstPage(web.RequestHandler):
    """Create the dashboard, then redirect the browser to the requested page."""

    def initialize(self, dashboard: EmbeddedDashboard) -> None:
        self._dashboard = dashboard

    async def get(self) -> None:
        try:
            await self._dashboard.start()
        except ImportError as error:
            logger.warning("The dashboard cannot start: %s", error)
            self.write(f"<p>The dashboard cannot start: {html.escape(str(error))}</p>")
            return
        self.redirect(same_page(self.request))
