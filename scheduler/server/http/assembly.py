"""Puts the HTTP server of a scheduler together.

Must not know: what pages show; connections of workers and clients.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.workers_compat import config, pages

from . import dashboard_child
from .dashboard import Dashboard, EmbeddedDashboard, MissingDashboard
from .metrics import MetricsPage, SchedulerMetrics
from .pages import routes
from .server import HttpServer
from .token import TokenGate

if TYPE_CHECKING:
    from ..gc_policy import GcPolicy
    from ..measures import Measures
    from ..server import Server
    from ..ticks import Ticks

TLS = "distributed.scheduler.dashboard.tls."


def start_http(
    server: Server,
    ticks: Ticks,
    addresses: list[tuple[str, int]],
    *,
    default_host: str,
    prefix: str,
    dashboard: bool,
    facts: Callable[[], dict[str, Any]],
    measures: Measures,
    gc_policy: GcPolicy | None = None,
    own_process: bool = False,
) -> tuple[HttpServer, Dashboard | None]:
    """Serve pages from now on.

    Args:
        addresses: (host, port) to listen on.
        default_host: for addresses without a host.
        prefix: before every path.
        dashboard: whether there is to be one.
        facts: for the plain front page.
        own_process: this process is the scheduler's own: the dashboard is in another one.

    Raises:
        OSError: no port could be had. ValueError: the configuration's TLS files cannot be used.
    """
    facade = server.plugins.facade
    prefix = "/" + prefix.strip("/") if prefix.strip("/") else ""
    namespace = config.get("distributed.dashboard.prometheus.namespace", "dask")
    metrics = SchedulerMetrics(server, ticks, namespace or "", gc_policy, measures)
    shown: Dashboard | None = None
    if dashboard:
        shown = _dashboard(facade, prefix, ticks, own_process)
    found = routes(
        MetricsPage(metrics),
        facts,
        facade,
        server.state,
        shown.routes() if shown is not None else None,
        prefix,
    )
    http = HttpServer(found, addresses, default_host, prefix, ssl_context(), gate(prefix))
    if shown is not None:
        shown.connect(http)
    return http, shown


def gate(prefix: str) -> TokenGate | None:
    """What asks for the token of ``paceline.http.token``, or of the file ``paceline.http.token-file``; None where there is none.

    Raises:
        ValueError: the file cannot be read or is empty.
    """
    token, path = config.get("paceline.http.token"), config.get("paceline.http.token-file")
    if not token and path:
        try:
            with open(os.path.expanduser(path), encoding="utf-8") as file:
                token = file.read().strip()
        except OSError as error:
            raise ValueError(f"paceline.http.token-file cannot be read: {error}") from error
        if not token:
            raise ValueError(f"paceline.http.token-file: {path} is empty")
    return TokenGate(str(token), [prefix + "/health"]) if token else None


def _dashboard(facade: Any, prefix: str, ticks: Ticks, own_process: bool) -> Dashboard:
    if not pages.has_bokeh():
        return MissingDashboard(prefix)
    if not own_process or config.get(TLS + "cert") or not dashboard_child.possible():
        # programs have one process; a connection that is encrypted here cannot be handed over
        return EmbeddedDashboard(facade, prefix)

    def facts() -> dict[str, Any]:
        return {"tick_seconds": ticks.seconds, "cpu": facade.measuring().recent().get("cpu", 0.0)}

    return dashboard_child.ChildDashboard(facade, prefix, facts)


def ssl_context() -> ssl.SSLContext | None:
    """For https, as ``distributed.scheduler.dashboard.tls`` says; None for http.

    Raises:
        ValueError: a file cannot be used.
    """
    certificate = config.get(TLS + "cert")
    if not certificate:
        return None
    try:
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=config.get(TLS + "ca-file")
        )
        context.load_cert_chain(certificate, keyfile=config.get(TLS + "key"))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"the files of `{TLS.rstrip('.')}` cannot be used: {error}") from error
    return context
