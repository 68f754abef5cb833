"""distributed's own HTTP pages over our facade: ``/info``, ``/json``, ``/api/v1``, the event stream, the worker proxy.

They are a library of distributed's: handlers of tornado's that take a scheduler. They get one that has what they read.

Must not know: how pages are served; health and metrics, which are not stock's.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

import dask.config

from .views import opened

logger = logging.getLogger("distributed.scheduler")

#: Served though stock's configuration does not name it: deployments ask for it, and fall back where it is missing.
API = "distributed.http.scheduler.api"
#: Modules of stock's whose pages are our own.
REPLACED = (
    "distributed.http.health",
    "distributed.http.scheduler.missing_bokeh",
    "distributed.http.scheduler.prometheus",
)
#: The websocket that the cluster map listens to.
EVENT_STREAM = "/eventstream"
#: Where the dashboard's pages are named, below the package distributed.
DASHBOARD_MODULE = ("dashboard", "scheduler.py")


class PageScheduler:
    """The scheduler for distributed's pages: the facade, with what they ask for beside.

    Attributes that pages or plugins set land on the facade.
    """

    def __init__(self, facade: Any) -> None:
        object.__setattr__(self, "_facade", facade)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facade, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._facade, name, value)

    @property
    def __pdict__(self) -> dict[str, Any]:
        """Names that templates use."""
        names = ("workers", "tasks", "clients", "idle", "saturated", "unrunnable", "running")
        found = {name: getattr(self._facade, name) for name in names}
        found["erred_tasks"] = self._facade.erred_tasks
        found["address"] = self._facade.address
        return found

    def get_logs(self, **options: Any) -> list[tuple[Any, ...]]:
        """(level, line), newest first."""
        return list(self._facade.handlers["get_logs"](**options))

    def get_worker_logs(self, workers: list[str]) -> Any:
        """Address -> lines; to be awaited."""
        return self._asked("worker_logs", workers=workers)

    def get_call_stack(self, keys: Iterable[Any]) -> Any:
        """Worker -> key -> what its thread executes; to be awaited."""
        return self._asked("call_stack", keys=list(keys))

    def _asked(self, op: str, **options: Any) -> Any:
        loop = self._facade._server.loop
        future = loop.create_future()

        def done(asked: Any) -> None:
            if future.done():
                return
            if asked.cancelled():
                future.cancel()
            elif (error := asked.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result({name: opened(x) for name, x in asked.result().items()})

        loop.create_task(self._facade.handlers[op](**options)).add_done_callback(done)
        return future


def stock_routes(facade: Any, taken: Iterable[str] = ()) -> list[Any]:
    """Routes of the modules that ``distributed.scheduler.http.routes`` names, and of ``/api/v1``.

    Args:
        taken: paths that are served already.
    """
    modules = list(dask.config.get("distributed.scheduler.http.routes", []))
    if API not in modules:
        modules.append(API)
    scheduler = PageScheduler(facade)
    taken = set(taken)
    found = []
    # the pages show the buttons of /api/v1 if it is configured when they are imported
    with dask.config.set({"distributed.scheduler.http.routes": modules}):
        imported = [importlib.import_module(name) for name in modules if name not in REPLACED]
    for module in imported:
        for url, handler, options in module.routes:
            path = "/" + url.lstrip("/")
            if path in taken:
                continue
            if path == EVENT_STREAM:
                handler = type(handler.__name__, (PlainEvents, handler), {})
            if _takes_scheduler(handler.initialize):
                options = {**options, "dask_server": scheduler}
            found.append((path, handler, options))
    return found


class PlainEvents:
    """Stock's event stream, of which each event leaves what JSON cannot say.

    Stock drops bytes alone, and so says nothing of a task that erred: its exception is no text.
    """

    def send(self, name: str, data: dict[str, Any]) -> None:
        """To the browser. ``data`` is what plugins are told of an event."""
        super().send(name, {key: value for key, value in data.items() if _plain(value)})  # type: ignore[misc]


def _plain(value: Any) -> bool:
    """Whether JSON can say it."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return isinstance(value, str | int | float | None)


def _takes_scheduler(initialize: Callable[..., Any]) -> bool:
    return "dask_server" in inspect.signature(initialize).parameters


# ------------------------------------------------------------------ the dashboard's paths, without importing bokeh


def has_bokeh() -> bool:
    """Whether bokeh is installed; whether it is one that the dashboard takes is found when it starts."""
    return importlib.util.find_spec("bokeh") is not None


def dashboard_paths() -> list[str]:
    """Paths of the dashboard's pages, read from distributed's source: importing it would import bokeh."""
    import distributed

    path = os.path.join(os.path.dirname(distributed.__file__), *DASHBOARD_MODULE)
    try:
        with open(path) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError):
        logger.warning("The dashboard's pages could not be read from %s", path)
        return ["/status"]
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if any(isinstance(target, ast.Name) and target.id == "applications" for target in node.targets):
            keys = (key.value for key in node.value.keys if isinstance(key, ast.Constant))
            return [key for key in keys if isinstance(key, str)]
    return ["/status"]


def statics_folder() -> str:
    """Where stock's static files lie."""
    import distributed

    return os.path.join(os.path.dirname(distributed.__file__), "http", "static")


def individual_plots(prefix: str = "") -> dict[str, str]:
    """Title -> path of the plots that can stand alone."""
    paths = [path for path in dashboard_paths() if path.startswith("/individual-")]
    found = {path.strip("/").replace("-", " ").title(): prefix + path for path in paths}
    for name in sorted(os.listdir(statics_folder())):
        if name.startswith("individual-") and name.endswith(".html"):
            title = name.removesuffix(".html").replace("-", " ").title()
            found[title] = f"{prefix}/statics/{name}"
    return found


def site_paths(routes: Iterable[str], dashboard: bool) -> list[str]:
    """All paths, for the site map: routes as their patterns, static files one by one."""
    found = {path for path in routes if not path.startswith("/statics")}
    if dashboard:
        found.update(dashboard_paths())
    root = statics_folder()
    for folder, _, names in os.walk(root):
        below = os.path.relpath(folder, root).replace(os.sep, "/")
        start = "/statics/" if below == "." else f"/statics/{below}/"
        found.update(start + name for name in names)
    return sorted(found)
