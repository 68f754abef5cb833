"""Stock's ``Scheduler`` for plugins, preloads and ``Client.run_on_scheduler`` functions.

Reading computes views of the state. Requests that the scheduler handles are methods with the names
of their ops. Changes to the cluster become stimuli; within a hook of a plugin these wait for the
end of the turn. Programs may set attributes of their own.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections import ChainMap, defaultdict
from collections.abc import Awaitable, Hashable, Iterable, Mapping
from typing import Any

from dask.widgets import get_template
from distributed.comm import get_address_host
from distributed.system_monitor import SystemMonitor
from paceline.protocol.catalogue import TABLES
from paceline.workers_compat.config.config import get, seconds
from tornado.ioloop import IOLoop, PeriodicCallback

from .cluster_commands import ClusterCommands
from .handlers import RequestHandlers, StreamHandlers
from .plugins import Plugins
from .server_port import FacadeServer
from .span_views import SpansView
from .state_attributes import TICK_CHECKS, TickCallback
from .stock_calls import (
    COROUTINE_OPS,
    METHODS,
    CallingPeer,
    StockCoroutine,
    build_request,
    comm_of,
    stock_value,
)
from .stream_views import RequestComm
from .views import ReadOnlyDict

logger = logging.getLogger("distributed.scheduler")

#: Interval of the system monitor if the configuration has none, seconds.
MONITOR_SECONDS = 0.5
#: Maximum number of digests of plugins; further names are dropped.
DIGESTS_MAX = 1_000
#: Attributes that ``__init__`` sets; missing ones are not looked up elsewhere.
_OWN = frozenset(("server", "scheduler", "deferring_server", "plugin_host", "handlers"))
_PRIVATE = frozenset(("_folder", "_monitor", "_extensions"))


class SchedulerFacade(ClusterCommands):
    """The scheduler with stock's attributes and methods.

    Attributes:
        periodic_callbacks: those of plugins, and those of stock that programs stop. They end with
            the scheduler.
        digests_total, digests_max: name -> sum and maximum of what plugins measured.
    """

    def __init__(self, server: FacadeServer, scheduler: Any) -> None:
        super().__init__(server, scheduler)
        self.plugin_host = Plugins(self, server.state, server.spawn, scheduler)
        self.plugin_host.send_stimulus = server.send_stimulus
        spans = SpansView(server.state, server.now)
        self._extensions: dict[str, Any] = {"spans": spans}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._monitor: Any = None
        self.digests_total: defaultdict[Hashable, float] = defaultdict(float)
        self.digests_max: defaultdict[Hashable, float] = defaultdict(float)
        self.periodic_callbacks: dict[str, Any] = {
            name: TickCallback(self, field) for name, field in TICK_CHECKS.items()
        }
        self.handlers = RequestHandlers(self, server)
        self.stream_handlers = StreamHandlers(server)

    def __repr__(self) -> str:
        return repr(self.scheduler)

    def _repr_html_(self) -> str:
        state = self.state
        template = get_template("scheduler.html.j2")
        facts = {"workers": state.workers, "threads": state.total_nthreads, "tasks": state.tasks}
        return str(template.render(address=self.address_safe, **facts))

    def __getattr__(self, name: str) -> Any:
        """Look up a request, an attribute of the state, or one of the ``Scheduler`` object."""
        if name in _OWN or name in _PRIVATE or name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("_"):
            # stock's slots, as ``scheduler._tasks``
            return getattr(self, name[1:])
        op = TABLES["scheduler_rpc"].get(METHODS.get(name, name))
        if op is not None and self.serves(op.cls):
            return self.handlers.built_in(op.name)
        if hasattr(self.state, name):
            return getattr(self.state, name)
        try:
            # not getattr: the ``Scheduler`` object itself falls back to the facade
            return object.__getattribute__(self.scheduler, name)
        except AttributeError:
            raise AttributeError(f"paceline's scheduler has no attribute {name!r}") from None

    # Requests

    def serves(self, message_type: type) -> bool:
        """Return whether requests of this class are handled."""
        return message_type in self.server.handlers or message_type in self.server.core_types

    def request(self, message_type: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle a request from within this process, called like stock's method of its name.

        Return a value or a coroutine, as the method does in stock. Raise what the handler raises,
        and TypeError if the method does not take these arguments.
        """
        result = self.serve(message_type, *args, **kwargs)
        if isinstance(result, Awaitable) or message_type.op() in COROUTINE_OPS:
            return StockCoroutine(result)
        return stock_value(result)

    def serve(self, message_type: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the handler of a request, and return its result unchanged."""
        message = build_request(message_type, args, kwargs)
        handler = self.handlers.server_handler(message_type)
        if handler is None:
            client = getattr(message, "client", None) or ""
            return self.deferring_server.request(message, client)
        comm = comm_of(message_type, args, kwargs)
        peer = comm.peer if isinstance(comm, RequestComm) else CallingPeer(comm)
        return handler(self.deferring_server, message, peer)

    def get_profile_metadata(
        self,
        workers: Iterable[str] | None = None,
        start: float = 0,
        stop: float | None = None,
        profile_cycle_interval: Any = None,
    ) -> Any:
        """Return the number of profile samples over time. Await the result."""
        cycle = profile_cycle_interval or get("distributed.worker.profile.cycle")
        return StockCoroutine(
            self.server.profile_metadata(
                workers=workers, start=start, stop=stop, bin_seconds=seconds(cycle, "ms")
            )
        )

    # Plugins and extensions

    #: Name -> plugin. Change it with ``add_plugin`` and ``remove_plugin``.
    plugins = property(lambda self: ReadOnlyDict(self.plugin_host.by_name))
    #: Name -> pickled plugin of all workers.
    worker_plugins = property(lambda self: ReadOnlyDict(self.server.request_state.worker_plugins))
    #: Name -> pickled plugin of all nannies.
    nanny_plugins = property(lambda self: ReadOnlyDict(self.server.request_state.nanny_plugins))
    #: Name -> extension: those added here, and those of the core.
    extensions = property(lambda self: ChainMap(self._extensions, self.server.core.extensions))

    def add_plugin(
        self, plugin: Any, *, idempotent: bool = False, name: str | None = None, **_: Any
    ) -> None:
        """Register a plugin."""
        self.plugin_host.add(plugin, name, idempotent)

    def remove_plugin(self, name: str | None = None) -> None:
        """Unregister a plugin. Raises ValueError if there is none of this name."""
        self.plugin_host.remove(str(name))

    def heartbeat(self, address: str, extensions: Mapping[str, Any]) -> None:
        """Pass data in a heartbeat to the extensions that have a ``heartbeat`` method."""
        for name, data in extensions.items():
            extension: Any = self._extensions.get(name) if data else None
            ws = self.state.workers.get(address)
            if ws is None or not hasattr(extension, "heartbeat"):
                continue
            try:
                extension.heartbeat(self.worker_view(ws), data)
            except Exception:
                logger.exception("Extension %s failed on a heartbeat of %s", name, address)

    def digest_metric(self, name: Hashable, value: float) -> None:
        """Add a measured value to the digests of `name`."""
        if name in self.digests_total or len(self.digests_total) < DIGESTS_MAX:
            self.digests_total[name] += value
            self.digests_max[name] = max(self.digests_max[name], value)

    # The process

    status = property(lambda self: self.scheduler.status)
    #: The host that it listens on; "0.0.0.0" for all interfaces.
    ip = property(lambda self: get_address_host(self.scheduler.listen_address))
    thread_id = property(lambda self: threading.get_ident())
    #: psutil's object for this process.
    proc = property(lambda self: self.system_monitor().proc)
    #: Handler with the last log lines; in stock ``_deque_handler``.
    deque_handler = property(lambda self: self.server.request_state.log)
    #: Name of a service -> port.
    service_ports = property(
        lambda self: {name: each.port for name, each in self.scheduler.services.items()}
    )

    #: tornado's loop.
    loop = io_loop = property(lambda self: IOLoop.current())

    @property
    def address_safe(self) -> str:
        """Return the address, or "not-running"."""
        try:
            return str(self.scheduler.address)
        except ValueError:
            return "not-running"

    @property
    def monitor(self) -> Any:
        """Return distributed's ``SystemMonitor``, and start the profile of the event loop.

        A performance report begins by reading this attribute.
        """
        self.server.request_state.loop_profile.start()
        return self.system_monitor()

    def system_monitor(self) -> Any:
        """Return ``monitor`` without starting a profile, for metrics and pages."""
        if self._monitor is None:
            self._monitor = SystemMonitor()
            interval = seconds(get("distributed.admin.system-monitor.interval")) or MONITOR_SECONDS
            callback = PeriodicCallback(self._monitor.update, interval * 1000)
            self.periodic_callbacks["monitor"] = callback
            callback.start()
        return self._monitor

    @property
    def local_directory(self) -> str:  # type: ignore[override]
        """Return a folder for files of this scheduler, which is removed when it ends."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="paceline-scheduler-")
        return self._folder.name

    def close(self) -> None:
        """Stop periodic callbacks and remove the folder, when the scheduler has ended."""
        for callback in self.periodic_callbacks.values():
            if not isinstance(callback, TickCallback):
                callback.stop()
        if self._folder is not None:
            self._folder.cleanup()
