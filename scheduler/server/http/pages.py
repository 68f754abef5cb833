"""Which pages there are, and those that are our own: health, metrics, counts, the site map, a plain front page.

Stock's pages about workers and tasks, its ``/api/v1`` and its websocket of events are its own, over our facade
(``workers_compat/pages.py``).

Must not know: what the numbers mean.
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.workers_compat import pages as stock
from tornado import web

from .metrics import MetricsPage
from .server import Route

if TYPE_CHECKING:
    from paceline.scheduler.core.state import SchedulerState

#: Tasks that are looked at for ``/json/counts.json`` before the loop turns.
COUNT_SLICE = 20_000

#: Browsers ask for an icon at a fixed place; it lies elsewhere.
FAVICON = "/statics/images/favicon.ico"

Facts = Callable[[], dict[str, Any]]


class HealthHandler(web.RequestHandler):
    """Says that the event loop turns."""

    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.write("ok")


class MetricsHandler(web.RequestHandler):
    """What Prometheus scrapes."""

    def initialize(self, page: MetricsPage) -> None:
        self._page = page

    def get(self) -> None:
        self.set_header("Content-Type", self._page.content_type)
        self.write(self._page.render())


class PlainPage(web.RequestHandler):
    """A page for whoever opens the port in a browser where there is no dashboard."""

    def initialize(self, facts: Facts) -> None:
        self._facts = facts

    def get(self) -> None:
        rows = "".join(
            f"<tr><th align=left>{html.escape(str(k))}</th><td>{html.escape(str(v))}</td></tr>"
            for k, v in self._facts().items()
        )
        self.write(
            "<!doctype html><title>paceline</title><h1>paceline</h1>"
            f"<table>{rows}</table>"
            "<p><a href='info/main/workers.html'>workers</a> <a href='health'>health</a> "
            "<a href='metrics'>metrics</a></p>"
        )


class CountsHandler(web.RequestHandler):
    """Tasks, workers and bytes as numbers. Many tasks are looked at in slices, so that nobody waits for it."""

    def initialize(self, state: SchedulerState, desired: Callable[[], int]) -> None:
        self._state = state
        self._desired = desired

    async def get(self) -> None:
        state = self._state
        erred = released = waiting = waiting_data = 0
        tasks = list(state.tasks.values())
        for start in range(0, len(tasks), COUNT_SLICE):
            for ts in tasks[start : start + COUNT_SLICE]:
                erred += ts.state == "erred"
                released += ts.state == "released"
                waiting += ts.waiting_count > 0
                waiting_data += ts.waiters_count > 0
            await asyncio.sleep(0)
        workers = list(state.workers.values())
        self.write(
            {
                "bytes": sum(ws.nbytes for ws in workers),
                "clients": len(state.clients),
                "cores": state.total_nthreads,
                "erred": erred,
                "hosts": len(state.host_info),
                "idle": len(state.idle),
                "memory": sum(len(ws.has_what) for ws in workers),
                "processing": sum(len(ws.processing) for ws in workers),
                "released": released,
                "saturated": len(state.saturated),
                "tasks": len(state.tasks),
                "unrunnable": len(state.unrunnable),
                "waiting": waiting,
                "waiting_data": waiting_data,
                "workers": len(workers),
                "desired_workers": self._desired(),
            }
        )


class IdentityHandler(web.RequestHandler):
    """Who we are, and our workers. What workers measured may have tuples for names: they are shown as text."""

    def initialize(self, identity: Callable[[], dict[str, Any]]) -> None:
        self._identity = identity

    def get(self) -> None:
        self.write(jsonable(self._identity()))


def jsonable(value: Any) -> Any:
    """A value that JSON can say, with text for what it cannot."""
    if isinstance(value, dict):
        return {k if isinstance(k, str) else str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


class SiteMap(web.RequestHandler):
    """All paths, for ``export_tool`` and for people."""

    def initialize(self, paths: list[str]) -> None:
        self._paths = paths

    def get(self) -> None:
        self.write({"paths": self._paths})


class IndividualPlots(web.RequestHandler):
    """Plots that can stand alone: title -> path. JupyterLab's extension asks for it."""

    def initialize(self, plots: dict[str, str]) -> None:
        self._plots = plots

    def get(self) -> None:
        self.write(self._plots)


def routes(
    page: MetricsPage,
    facts: Facts,
    facade: Any = None,
    state: SchedulerState | None = None,
    dashboard: list[Route] | None = None,
    prefix: str = "",
) -> list[Route]:
    """What is served, each path below the prefix.

    Args:
        facade: the scheduler for stock's pages; without one there are none.
        dashboard: routes of the dashboard's pages; None where there is none.
        prefix: before all paths, for the site map.
    """
    found: list[Route] = [
        (r"/health", HealthHandler, {}),
        (r"/metrics", MetricsHandler, {"page": page}),
    ]
    if facade is not None and state is not None:
        plots = stock.individual_plots(prefix) if dashboard else {}
        found += [
            (r"/json/counts.json", CountsHandler, {"state": state, "desired": facade.adaptive_target}),
            (r"/json/identity.json", IdentityHandler, {"identity": facade.identity}),
            (r"/individual-plots.json", IndividualPlots, {"plots": plots}),
        ]
        found.append((r"/favicon.ico", web.RedirectHandler, {"url": prefix + FAVICON}))
        found += stock.stock_routes(facade, {path for path, _, _ in found})
    found += dashboard or [(r"/", PlainPage, {"facts": facts})]
    paths = stock.site_paths([path for path, _, _ in found], bool(dashboard))
    found.append((r"/sitemap.json", SiteMap, {"paths": sorted(prefix + path for path in paths)}))
    return found
