"""Start the HTTP server of a scheduler, as configured."""

from __future__ import annotations

import os
import ssl
from functools import partial
from typing import TYPE_CHECKING

from paceline.workers_compat.config import config
from paceline.workers_compat.facade import pages
from paceline.workers_compat.security.http_connections import HttpLimits, affordable
from paceline.workers_compat.security.http_token import TokenGate

from . import dashboard_child
from .dashboard import Dashboard, EmbeddedDashboard, MissingDashboard
from .metrics import SchedulerMetrics
from .pages import routes
from .server import HttpServer, bind_or_replace

if TYPE_CHECKING:
    from paceline.scheduler.server.comm.sockets import Bind
    from paceline.scheduler.server.runtime.child_process import Spawn
    from paceline.scheduler.server.runtime.gc_policy import GcPolicy
    from paceline.scheduler.server.runtime.measures import LoopLag
    from paceline.scheduler.server.server import Server

#: Configuration of TLS for the pages.
TLS = "distributed.scheduler.dashboard.tls."
#: Limit of request bodies with ``--jupyter``, which saves a notebook in one request.
JUPYTER_BODY_NBYTES = 100 * 2**20


def start_http(
    server: Server,
    loop_lag: LoopLag,
    addresses: list[tuple[str, int]],
    *,
    default_host: str,
    prefix: str,
    dashboard: bool,
    gc_policy: GcPolicy | None = None,
    spawn: Spawn | None = None,
) -> tuple[HttpServer, Dashboard | None]:
    """Start the HTTP server. Return it and the dashboard, which is None if it is switched off.

    `default_host` is for addresses without a host. All paths begin with `prefix`. `spawn` starts
    the dashboard's process; without it the dashboard is served by this process.

    Raises:
        OSError, ValueError: no port is available; the configured TLS files cannot be used.
    """
    prefix = "/" + prefix.strip("/") if prefix.strip("/") else ""
    namespace = config.get("distributed.dashboard.prometheus.namespace", "dask")
    metrics = SchedulerMetrics(server, loop_lag, namespace or "", gc_policy)
    token_gate = gate(prefix)
    limits = http_limits(jupyter=server.scheduler.jupyter)
    shown: Dashboard | None = None
    if dashboard:
        shown = _dashboard(server, prefix, loop_lag, spawn, token_gate, limits)
    found = routes(server, metrics, shown, prefix, has_token=token_gate is not None)
    bind: Bind = bind_or_replace
    if server.durability is not None:
        bind = partial(server.durability.backend.sockets, bind=bind_or_replace, use="http ")
    http = HttpServer(
        found, addresses, default_host, prefix, ssl_context(), token_gate, limits, bind
    )
    if shown is not None:
        shown.connect(http)
    return http, shown


def gate(prefix: str) -> TokenGate | None:
    """Return the gate for ``paceline.http.token`` or ``token-file``; None if neither is set.

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
    origins = config.get("distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin")
    return TokenGate(str(token), [prefix + "/health"], origins or ()) if token else None


def http_limits(jupyter: bool = False) -> HttpLimits:
    """Return the limits of ``paceline.http``, with connections within the descriptors."""
    default = HttpLimits()
    idle_seconds = config.seconds(config.get("paceline.http.idle-timeout"))
    body_nbytes = config.nbytes(config.get("paceline.http.body-size"))
    return HttpLimits(
        connections=affordable(int(config.get("paceline.http.connections") or default.connections)),
        idle_seconds=idle_seconds or default.idle_seconds,
        body_nbytes=body_nbytes or (JUPYTER_BODY_NBYTES if jupyter else default.body_nbytes),
    )


def _dashboard(
    server: Server,
    prefix: str,
    loop_lag: LoopLag,
    spawn: Spawn | None,
    token_gate: TokenGate | None,
    limits: HttpLimits,
) -> Dashboard:
    if not pages.has_bokeh():
        return MissingDashboard(prefix)
    if spawn is None or config.get(TLS + "cert") or not dashboard_child.is_supported():
        # an encrypted connection cannot be passed to another process
        return EmbeddedDashboard(server, prefix)
    return dashboard_child.ChildDashboard(server, prefix, loop_lag, token_gate, limits, spawn)


def ssl_context() -> ssl.SSLContext | None:
    """Return the context for https; None for http. Raises ValueError for invalid files."""
    certificate = config.get(TLS + "cert")
    if not certificate:
        return None
    try:
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=config.get(TLS + "ca-file")
        )
        context.load_cert_chain(certificate, keyfile=config.get(TLS + "key"))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"the files in `{TLS.rstrip('.')}` cannot be used: {error}") from error
    return context
