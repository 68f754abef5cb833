"""Routes of the HTTP server, and its pages health, metrics, counts, site map and front page.

Pages about workers and tasks, ``/api/v1`` and the websocket of events are those of distributed
(``workers_compat/facade/pages.py``).
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.workers_compat.facade import pages as stock
from tornado import web

from .metrics import MetricsPage
from .server import Route

if TYPE_CHECKING:
    from paceline.scheduler.core.state.scheduler_state import SchedulerState

#: Tasks counted for ``/json/counts.json`` before the event loop may run other callbacks.
COUNT_SLICE = 20_000

#: Target of the redirect from ``/favicon.ico``.
FAVICON = "/statics/images/favicon.ico"

Facts = Callable[[], dict[str, Any]]


class HealthHandler(web.RequestHandler):
    """Report that the event loop runs."""

    def get(self) -> None:
        """See tornado."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.write("ok")


class MetricsHandler(web.RequestHandler):
    """The page that Prometheus scrapes."""

    def initialize(self, page: MetricsPage) -> None:
        """See tornado."""
        self._page = page

    def get(self) -> None:
        """See tornado."""
        self.set_header("Content-Type", self._page.content_type)
        self.write(self._page.render())


class PlainPage(web.RequestHandler):
    """The front page if there is no dashboard."""

    def initialize(self, facts: Facts) -> None:
        """See tornado."""
        self._facts = facts

    def get(self) -> None:
        """See tornado."""
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
    """Numbers of tasks and workers.

    Tasks are counted in slices, so that the event loop is not blocked.
    """

    def initialize(self, state: SchedulerState, desired: Callable[[], int]) -> None:
        """See tornado."""
        self._state = state
        self._desired = desired

    async def get(self) -> None:
        """See tornado."""
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
                "idle": len(state.loads.idle),
                "memory": sum(len(ws.has_what) for ws in workers),
                "processing": sum(len(ws.processing) for ws in workers),
                "released": released,
                "saturated": len(state.loads.saturated),
                "tasks": len(state.tasks),
                "unrunnable": len(state.unrunnable),
                "waiting": waiting,
                "waiting_data": waiting_data,
                "workers": len(workers),
                "desired_workers": self._desired(),
            }
        )


class IdentityHandler(web.RequestHandler):
    """The scheduler and its workers. Names of metrics that are tuples are converted to text."""

    def initialize(self, identity: Callable[[], dict[str, Any]]) -> None:
        """See tornado."""
        self._identity = identity

    def get(self) -> None:
        """See tornado."""
        self.write(jsonable(self._identity()))


def jsonable(value: Any) -> Any:
    """Return ``value`` with text in place of keys and values that JSON cannot represent."""
    if isinstance(value, dict):
        return {k if isinstance(k, str) else str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


class SiteMap(web.RequestHandler):
    """All paths."""

    def initialize(self, paths: list[str]) -> None:
        """See tornado."""
        self._paths = paths

    def get(self) -> None:
        """See tornado."""
        self.write({"paths": self._paths})


class IndividualPlots(web.RequestHandler):
    """Title -> path of the pages with one plot, for JupyterLab's extension."""

    def initialize(self, plots: dict[str, str]) -> None:
        """See tornado."""
        self._plots = plots

    def get(self) -> None:
        """See tornado."""
        self.write(self._plots)


def routes(
    page: MetricsPage,
    facts: Facts,
    facade: Any = None,
    state: SchedulerState | None = None,
    dashboard: list[Route] | None = None,
    prefix: str = "",
    has_token: bool = False,
) -> list[Route]:
    """Return all routes, with paths below the prefix.

    Args:
        page: the page of metrics.
        facts: returns the rows of the plain front page.
        facade: the scheduler for distributed's pages; None omits them.
        state: the scheduler's state, for the counts.
        dashboard: routes of the dashboard's pages; None if there is no dashboard.
        prefix: prefix of every path, for the site map.
        has_token: requests are checked for a token before they reach a route.
    """
    found: list[Route] = [
        (r"/health", HealthHandler, {}),
        (r"/metrics", MetricsHandler, {"page": page}),
    ]
    if facade is not None and state is not None:
        plots = stock.individual_plots(prefix) if dashboard else {}
        found += [
            (
                r"/json/counts.json",
                CountsHandler,
                {"state": state, "desired": facade.adaptive_target},
            ),
            (r"/json/identity.json", IdentityHandler, {"identity": facade.identity}),
            (r"/individual-plots.json", IndividualPlots, {"plots": plots}),
        ]
        found.append((r"/favicon.ico", web.RedirectHandler, {"url": prefix + FAVICON}))
        found += stock.stock_routes(facade, {path for path, _, _ in found}, has_token)
    found += dashboard or [(r"/", PlainPage, {"facts": facts})]
    paths = stock.site_paths([path for path, _, _ in found], bool(dashboard))
    found.append((r"/sitemap.json", SiteMap, {"paths": sorted(prefix + path for path in paths)}))
    return found
