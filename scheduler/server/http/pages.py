"""Routes of the HTTP server, and its pages health, metrics, counts, site map and front page.

Pages about workers and tasks, ``/api/v1`` except ``/api/v1/shares``, and the websocket of events
are those of distributed (``workers_compat/facade/pages.py``).
"""

from __future__ import annotations

import asyncio
import html
from collections import Counter
from typing import TYPE_CHECKING, Any

from paceline.scheduler.core.inspection.dump import jsonable
from paceline.scheduler.core.inspection.memory_report import memory_report
from paceline.scheduler.core.inspection.share_report import share_report
from paceline.scheduler.core.policy import scaling
from paceline.scheduler.server.requests.cluster import target_duration_seconds
from paceline.workers_compat.facade import pages as stock
from tornado import web

from .dashboard import Dashboard
from .metrics import SchedulerMetrics
from .server import Route, page

if TYPE_CHECKING:
    from paceline.scheduler.core.state.scheduler_state import SchedulerState
    from paceline.scheduler.server.server import Server

#: Tasks counted for ``/json/counts.json`` before the event loop may run other callbacks.
COUNT_SLICE = 20_000

#: Target of the redirect from ``/favicon.ico``.
FAVICON = "/statics/images/favicon.ico"


def front_page(server: Server) -> str:
    """Return the front page that is shown if there is no dashboard."""
    state = server.state
    facts = {
        "address": server.scheduler.address,
        "workers": len(state.workers),
        "threads": state.total_nthreads,
        "clients": len(state.clients) - 1,
        "tasks": len(state.tasks),
    }
    rows = "".join(
        f"<tr><th align=left>{k}</th><td>{html.escape(str(v))}</td></tr>" for k, v in facts.items()
    )
    return (
        "<!doctype html><title>paceline</title><h1>paceline</h1>"
        f"<table>{rows}</table>"
        "<p><a href='info/main/workers.html'>workers</a> <a href='health'>health</a> "
        "<a href='metrics'>metrics</a></p>"
    )


async def counts(state: SchedulerState) -> dict[str, int]:
    """Return numbers of tasks and workers.

    Tasks are counted in slices, so that the event loop is not blocked.
    """
    states: Counter[str] = Counter()
    waiting = waiting_data = 0
    tasks = list(state.tasks.values())
    for start in range(0, len(tasks), COUNT_SLICE):
        for ts in tasks[start : start + COUNT_SLICE]:
            states[ts.state] += 1
            waiting += ts.waiting_count > 0
            waiting_data += ts.waiters_count > 0
        await asyncio.sleep(0)
    workers = list(state.workers.values())
    return {
        "bytes": sum(ws.nbytes for ws in workers),
        "clients": len(state.clients),
        "cores": state.total_nthreads,
        "erred": states["erred"],
        "hosts": len(state.host_info),
        "idle": len(state.loads.idle),
        "memory": sum(len(ws.has_what) for ws in workers),
        "processing": sum(len(ws.processing) for ws in workers),
        "released": states["released"],
        "saturated": len(state.loads.saturated),
        "tasks": len(state.tasks),
        "unrunnable": len(state.unrunnable),
        "waiting": waiting,
        "waiting_data": waiting_data,
        "workers": len(workers),
        "desired_workers": scaling.adaptive_target(state, target_duration_seconds()),
    }


def routes(
    server: Server,
    metrics: SchedulerMetrics,
    dashboard: Dashboard | None,
    prefix: str,
    has_token: bool,
) -> list[Route]:
    """Return all routes, with paths below the prefix; for `has_token` see ``stock_routes``."""
    facade: Any = server.plugins.facade
    plots = stock.individual_plots() if dashboard else {}
    found: list[Route] = [
        page(r"/health", lambda: "ok", "text/plain; charset=utf-8"),
        page(r"/metrics", metrics.render, metrics.content_type),
        page(r"/json/counts.json", lambda: counts(server.state)),
        page(r"/json/identity.json", lambda: jsonable(facade.identity())),
        page(r"/json/shares.json", lambda: share_report(server.state)),
        page(r"/json/memory.json", lambda: memory_report(server.state)),
        page(r"/individual-plots.json", lambda: plots),  # for JupyterLab's extension
        (r"/favicon.ico", web.RedirectHandler, {"url": prefix + FAVICON}),
    ]
    if stock.serves_api():
        found.append(page(r"/api/v1/shares", lambda: share_report(server.state)))
    found += stock.stock_routes(facade, {path for path, _, _ in found}, has_token)
    found += dashboard.routes() if dashboard else [page(r"/", lambda: front_page(server))]
    paths = stock.site_paths([path for path, _, _ in found], bool(dashboard))
    site_map = {"paths": sorted(prefix + path for path in paths)}
    return [*found, page(r"/sitemap.json", lambda: site_map)]
