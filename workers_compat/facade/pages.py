"""distributed's HTTP pages over the facade.

These are ``/info``, ``/json``, the event stream, the worker proxy, and ``/api/v1`` if it is
configured: tornado handlers of distributed that take a scheduler.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import ipaddress
import json
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import distributed
from paceline.workers_compat.config.settings import texts
from paceline.workers_compat.security.http_token import is_foreign
from paceline.workers_compat.security.unpickling import deserialize

from .stock_calls import StockCoroutine

logger = logging.getLogger("distributed.scheduler")

#: Serves ``/api/v1``. Off by default, as in stock: its commands retire workers.
API = "distributed.http.scheduler.api"
#: The setting that lists the modules with routes.
ROUTES = "distributed.scheduler.http.routes"
#: Content type of commands.
JSON = "application/json"
#: Methods of requests that change nothing.
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
#: Modules of stock whose pages paceline replaces.
REPLACED = (
    "distributed.http.health",
    "distributed.http.scheduler.missing_bokeh",
    "distributed.http.scheduler.prometheus",
)
#: The websocket of the cluster map.
EVENT_STREAM = "/eventstream"
#: The file with the paths of the dashboard's pages, within the package distributed.
DASHBOARD_MODULE = ("dashboard", "scheduler.py")
#: Paths of the dashboard's pages that distributed does not have.
OWN_PATHS = (
    *("/shares", "/individual-shares"),
    *("/memory", "/individual-memory"),
)


class PageScheduler:
    """The facade with additional attributes that distributed's pages read.

    Attributes that pages or plugins set are set on the facade.
    """

    def __init__(self, facade: Any) -> None:
        object.__setattr__(self, "_facade", facade)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facade, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._facade, name, value)

    @property
    def __pdict__(self) -> dict[str, Any]:
        """Return the names that templates use."""
        names = ("workers", "tasks", "clients", "idle", "saturated", "unrunnable", "running")
        return {name: getattr(self._facade, name) for name in (*names, "erred_tasks", "address")}

    def get_logs(self, **options: Any) -> list[tuple[Any, ...]]:
        """Return (level, line), newest first."""
        return list(self._facade.handlers["get_logs"](**options))

    def get_worker_logs(self, workers: list[str]) -> StockCoroutine:
        """Return address -> lines. Await the result. Raises KeyError for an unknown worker.

        Stock connects to any address in the path, and answers after the connection timeout.
        """
        for address in workers:
            self._facade.workers[address]
        return _deserialized(self._facade.handlers["worker_logs"](workers=workers))

    def get_call_stack(self, keys: Iterable[Any]) -> StockCoroutine:
        """Return worker -> key -> call stack. Await the result."""
        return _deserialized(self._facade.handlers["call_stack"](keys=list(keys)))


def _deserialized(reply: Any) -> StockCoroutine:
    return StockCoroutine(
        reply, lambda values: {name: deserialize(value) for name, value in values.items()}
    )


def stock_routes(facade: Any, taken: Iterable[str] = (), has_token: bool = False) -> list[Any]:
    """Return the routes of the modules in `ROUTES`.

    Paths in `taken` are left out. `has_token` is whether requests are checked for a token before
    they reach a route.
    """
    modules = texts(ROUTES)
    scheduler = PageScheduler(facade)
    taken = set(taken)
    found = []
    for module in [importlib.import_module(name) for name in modules if name not in REPLACED]:
        for url, handler, options in module.routes:
            path = "/" + url.lstrip("/")
            if path in taken:
                continue
            cls = handler
            if path == EVENT_STREAM:
                cls = type(cls.__name__, (PlainEvents, cls), {})
            if module.__name__ == API:
                cls = type(cls.__name__, (CheckedCommand, cls), {"has_token": has_token})
            takes_scheduler = "dask_server" in inspect.signature(cls.initialize).parameters
            extra = {"dask_server": scheduler} if takes_scheduler else {}
            found.append((path, cls, {**options, **extra}))
    return found


def serves_api() -> bool:
    """Return whether ``/api/v1`` is configured."""
    return API in texts(ROUTES)


class CheckedCommand:
    """Checks requests that change the cluster before a handler of ``/api/v1`` executes them.

    Without a token (``has_token``), only programs on this machine may send commands.
    """

    has_token: bool
    request: Any

    def prepare(self) -> None:
        refusal = self._refusal() if self.request.method not in SAFE_METHODS else None
        if refusal is not None:
            status, reason = refusal
            self.set_status(status)  # type: ignore[attr-defined]
            self.finish({"Error": reason})  # type: ignore[attr-defined]

    def _refusal(self) -> tuple[int, str] | None:
        """Return status and reason, or None.

        A browser sends the origin of the page with each command, and forms cannot send JSON.
        """
        headers = self.request.headers
        if is_foreign(self.request):
            return 403, "Commands are not accepted from pages of other origins."
        content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if content_type != JSON and "Origin" not in headers:
            return 415, f"Commands take JSON. Send the header Content-Type: {JSON}."
        if not self.has_token and not _is_local(self.request):
            return (
                403,
                "Commands from other machines need the token of `paceline.http.token`, "
                "which is not configured.",
            )
        return None


def _is_local(request: Any) -> bool:
    """Return whether the client is on this machine and did not use a host name of another site."""
    host = urlsplit(f"//{request.host}").hostname or ""
    client = _address(request.remote_ip)
    client = getattr(client, "ipv4_mapped", None) or client
    is_loopback = client is not None and client.is_loopback
    return is_loopback and (host == "localhost" or _address(host) is not None)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


class PlainEvents:
    """Stock's event stream, without values that JSON cannot encode.

    Stock drops only bytes, and so sends no events of erred tasks, whose exception is not text.

    The plugin is registered once the websocket is open. Stock registers it with each request, and
    removes it only when a websocket is closed.
    """

    server: Any
    plugin: Any

    def initialize(self, dask_server: Any = None, extra: Any = None) -> None:
        super().initialize(dask_server=dask_server, extra=extra)  # type: ignore[misc]
        self.server.remove_plugin(name=self.plugin.name)

    def open(self) -> None:
        self.server.add_plugin(self.plugin)
        super().open()  # type: ignore[misc]

    def send(self, name: str, data: dict[str, Any]) -> None:
        super().send(name, {key: value for key, value in data.items() if _plain(value)})  # type: ignore[misc]


def _plain(value: Any) -> bool:
    """Return whether JSON can encode `value`."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


# Paths of the dashboard, without importing bokeh


def has_bokeh() -> bool:
    """Return whether bokeh is installed. The dashboard checks its version when it starts."""
    return importlib.util.find_spec("bokeh") is not None


def dashboard_paths() -> list[str]:
    """Return the paths of the dashboard's pages.

    Those of distributed are the keys of a dict in its source.
    """
    path = os.path.join(os.path.dirname(distributed.__file__), *DASHBOARD_MODULE)
    try:
        with open(path) as file:
            table = file.read().partition("\napplications = {")[2].partition("\n}")[0]
    except OSError:
        table = ""
    found = re.findall(r'^    "(/.*?)":', table, re.MULTILINE)
    if not found:
        logger.warning("Cannot read the dashboard's pages from %s", path)
    return [*(found or ["/status"]), *OWN_PATHS]


def statics_folder() -> str:
    """Return the folder of stock's static files."""
    return os.path.join(os.path.dirname(distributed.__file__), "http", "static")


def individual_plots() -> dict[str, str]:
    """Return title -> path of the individual plots.

    The paths do not start with the prefix of the dashboard: JupyterLab's extension appends them to
    its URL.
    """
    paths = [path for path in dashboard_paths() if path.startswith("/individual-")]
    plots = sorted(Path(statics_folder()).glob("individual-*.html"))
    paths += [f"/statics/{plot.name}" for plot in plots]
    names = [path.rpartition("/")[2].removesuffix(".html") for path in paths]
    return {name.replace("-", " ").title(): path for name, path in zip(names, paths)}


def site_paths(routes: Iterable[str], dashboard: bool) -> list[str]:
    """Return all paths for the site map: the patterns of routes, and each static file."""
    found = {path for path in routes if not path.startswith("/statics")}
    if dashboard:
        found.update(dashboard_paths())
    root = Path(statics_folder())
    files = (path for path in root.rglob("*") if path.is_file())
    found.update(f"/statics/{path.relative_to(root).as_posix()}" for path in files)
    return sorted(found)
